// _cuda.so by its C interface (cuda/api.h), opened when it is first needed. No CUDA header is needed here.
#pragma once
#include <c10/core/Stream.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cuda/api.h"

namespace pycoll::torch_adapter {

// Which device a backend serves beside the CPU, and how to reach it. CUDA, but in tests.
struct Accelerator {
  c10::DeviceType type;
  // Path of a library with the interface of cuda/api.h. Throws Unsupported that says what is missing.
  std::function<std::string()> library;
  std::function<void*(const c10::Stream&)> stream_handle;  // a cudaStream_t
  // Of an index; and, on rank 0, the table of ways (cuda_ways.h) from what `place` says on every rank.
  std::function<std::string(int)> place;
  std::function<std::string(const std::vector<std::string>&)> ways;
};

class CudaLibrary {
 public:
  explicit CudaLibrary(const std::string& path);  // Unsupported; stays open for the life of the process

  // Throws what a status says.
  void check(int status) const;

  decltype(&pycoll_cuda_open) open;
  decltype(&pycoll_cuda_handle_bytes) handle_bytes;
  decltype(&pycoll_cuda_handle) handle;
  decltype(&pycoll_cuda_connect) connect;
  decltype(&pycoll_cuda_close) close;
  decltype(&pycoll_cuda_abort) abort;
  decltype(&pycoll_cuda_plan) plan;
  decltype(&pycoll_cuda_run) run;
  decltype(&pycoll_cuda_packets) packets;
  decltype(&pycoll_cuda_packets_limit) packets_limit;
  decltype(&pycoll_cuda_capturing) capturing;
  decltype(&pycoll_cuda_relax_capture) relax_capture;
  decltype(&pycoll_cuda_pool_batch_bytes) pool_batch_bytes;
  decltype(&pycoll_cuda_pool_offer) pool_offer;
  decltype(&pycoll_cuda_pool_connect) pool_connect;
  decltype(&pycoll_cuda_pool_use) pool_use;
  decltype(&pycoll_cuda_capture) capture;
  decltype(&pycoll_cuda_messages_open) messages_open;
  decltype(&pycoll_cuda_messages_connect) messages_connect;
  decltype(&pycoll_cuda_messages) messages;
  decltype(&pycoll_cuda_messages_complaint) messages_complaint;

 private:
  decltype(&pycoll_cuda_error) error_;
};

}  // namespace pycoll::torch_adapter
