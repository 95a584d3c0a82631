// The GPUs of a process group: opened by all ranks together at the first CUDA tensor, on the CPU's
// communicator.
#pragma once
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/communicator.h"
#include "torch/cuda_library.h"
#include "torch/cuda_watchdog.h"

namespace pycoll::torch_adapter {

class CudaGroup {
 public:
  // Collective. Where it fails on any rank it throws on every one, and names it.
  CudaGroup(std::shared_ptr<Communicator> communicator, const Accelerator& accelerator, c10::Device device);
  ~CudaGroup();

  c10::Device device() const { return device_; }
  c10::Stream stream() const { return stream_; }
  c10::Stream current_stream() const { return guard_.getStream(device_); }
  CudaWatchdog& watchdog() { return *watchdog_; }

  // Makes the group's stream wait for what is on the current one by now.
  void follow_current_stream();
  // Puts a collective on the group's stream. Unsupported for what the kernels do not have.
  void run(const CollectiveCall& call);
  // Whether what is put on the group's stream now becomes part of a graph.
  bool capturing() const { return captures(stream_handle_); }

  // Waits for this rank's works, and for what other ranks still do with this rank's memory; frees everything.
  void leave(Nanoseconds limit);

 private:
  template <class Step>
  std::vector<std::string> together(const Step& step);
  void open(const Accelerator& accelerator);
  void free();
  bool captures(void* stream) const;
  void stop_kernels();
  void require_open() const;
  std::optional<int> small_kernel(const CollectiveCall& call) const;
  int32_t plan(CollectiveKind kind, int root);

  const std::shared_ptr<Communicator> communicator_;
  const c10::Device device_;
  const c10::impl::VirtualGuardImpl guard_;
  const c10::Stream stream_;
  std::shared_ptr<const CudaLibrary> library_;
  void* stream_handle_ = nullptr;

  std::mutex mutex_;        // one thread at a time uses the group
  std::mutex abort_mutex_;  // which any thread may
  pycoll_cuda_group* group_ = nullptr;
  c10::Event called_;
  std::map<std::pair<CollectiveKind, int>, int32_t> plans_;  // by root
  std::unique_ptr<CudaWatchdog> watchdog_;
};

}  // namespace pycoll::torch_adapter
