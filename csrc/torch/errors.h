// pycoll's errors as the kinds that torch users catch, with the same text.
#pragma once
#include <c10/util/Exception.h>

#include <exception>
#include <string>

#include "core/error.h"

namespace pycoll::torch_adapter {

//   InvalidArgument  -> ValueError
//   Unsupported      -> DistError
//   every other kind -> DistBackendError (both of these are RuntimeErrors)
// What is no pycoll error is passed on as it is.
std::exception_ptr for_torch(std::exception_ptr error) noexcept;

// Its message; of one of torch's without the backtrace.
std::string text_of(const std::exception_ptr& error);

// Runs a method of the backend, and lets its errors out as torch's.
template <class Method>
auto translating_errors(Method&& method) {
  try {
    return method();
  } catch (const Error&) {
    std::rethrow_exception(for_torch(std::current_exception()));
  }
}

}  // namespace pycoll::torch_adapter
