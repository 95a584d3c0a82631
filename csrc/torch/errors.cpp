#include "torch/errors.h"

namespace pycoll::torch_adapter {

std::exception_ptr for_torch(std::exception_ptr error) noexcept {
  if (!error) return error;
  try {
    try {
      std::rethrow_exception(error);
    } catch (const InvalidArgument& e) {
      C10_THROW_ERROR(ValueError, e.what());
    } catch (const Unsupported& e) {
      C10_THROW_ERROR(DistError, e.what());
    } catch (const Error& e) {
      C10_THROW_ERROR(DistBackendError, e.what());
    }
  } catch (...) {
    return std::current_exception();
  }
}

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an unknown error";
  }
}

}  // namespace pycoll::torch_adapter
