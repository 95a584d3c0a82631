#include "torch/cuda_library.h"

#include <dlfcn.h>

#include "core/error.h"

namespace pycoll::torch_adapter {
namespace {

template <class Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr)
    throw Unsupported(std::string("pycoll's CUDA part has no ") + name +
                      ": it is of another version of pycoll; install pycoll again");
}

}  // namespace

CudaLibrary::CudaLibrary(const std::string& path) {
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    throw Unsupported("pycoll's CUDA part cannot be loaded: " + std::string(::dlerror()));
  decltype(&pycoll_cuda_abi) abi;
  find(library, "pycoll_cuda_abi", abi);
  if (const int found = abi(); found != PYCOLL_CUDA_ABI)
    throw Unsupported(path + " is of another version of pycoll (" + std::to_string(found) + ", not " +
                      std::to_string(PYCOLL_CUDA_ABI) + "); install pycoll again");
  find(library, "pycoll_cuda_error", error_);
  find(library, "pycoll_cuda_open", open);
  find(library, "pycoll_cuda_handle_bytes", handle_bytes);
  find(library, "pycoll_cuda_handle", handle);
  find(library, "pycoll_cuda_connect", connect);
  find(library, "pycoll_cuda_close", close);
  find(library, "pycoll_cuda_abort", abort);
  find(library, "pycoll_cuda_plan", plan);
  find(library, "pycoll_cuda_run", run);
  find(library, "pycoll_cuda_packets", packets);
  find(library, "pycoll_cuda_packets_limit", packets_limit);
  find(library, "pycoll_cuda_capturing", capturing);
  find(library, "pycoll_cuda_relax_capture", relax_capture);
  find(library, "pycoll_cuda_pool_batch_bytes", pool_batch_bytes);
  find(library, "pycoll_cuda_pool_offer", pool_offer);
  find(library, "pycoll_cuda_pool_connect", pool_connect);
  find(library, "pycoll_cuda_pool_use", pool_use);
  find(library, "pycoll_cuda_capture", capture);
  find(library, "pycoll_cuda_messages_open", messages_open);
  find(library, "pycoll_cuda_messages_connect", messages_connect);
  find(library, "pycoll_cuda_messages", messages);
  find(library, "pycoll_cuda_messages_complaint", messages_complaint);
}

void CudaLibrary::check(int status) const {
  switch (status) {
    case PYCOLL_CUDA_OK:
      return;
    case PYCOLL_CUDA_INVALID:
      throw InvalidArgument(error_());
    case PYCOLL_CUDA_UNSUPPORTED:
      throw Unsupported(error_());
    default:
      throw Error(error_());
  }
}

}  // namespace pycoll::torch_adapter
