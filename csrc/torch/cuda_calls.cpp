// What becomes of a call on CUDA tensors.
#include <ATen/record_function.h>

#include "torch/backend.h"

namespace pycoll::torch_adapter {

std::shared_ptr<CudaGroup> Backend::gpus() const {
  const std::lock_guard lock(gpus_mutex_);
  return gpus_;
}

std::shared_ptr<CudaGroup> Backend::open_gpus(c10::Device device, const char* what) {
  if (!accelerator_ || device.type() != accelerator_->type)
    C10_THROW_ERROR(TypeError, c10::str("pycoll ", what, " takes dense tensors of the CPU",
                                        accelerator_ ? c10::str(" and of ", accelerator_->type) : "",
                                        ", got one on device ", device));
  const std::lock_guard opening(opening_mutex_);
  auto gpus = this->gpus();
  if (!gpus) {  // without the other lock: abort() must not wait for the other ranks
    gpus = std::make_shared<CudaGroup>(communicator_, *accelerator_, device);
    const std::lock_guard lock(gpus_mutex_);
    gpus_ = gpus;
  }
  if (device != gpus->device())
    C10_THROW_ERROR(ValueError, c10::str("pycoll ", what, ": the tensor is on ", device,
                                         ", but this rank's part in group '", communicator_->options().group,
                                         "' is ", gpus->device(), ": a rank of a group has one device"));
  return gpus;
}

void Backend::eagerConnectSingleDevice(at::Device device) {
  if (device.is_cpu()) return;
  calling([&] { open_gpus(device, "init_process_group"); });
}

// The calls are on the group's stream when this returns. A synchronous one is one whose end the caller's
// stream waits for.
Backend::WorkPtr Backend::start_on_device(Launch& launch, bool async, at::TensorList results) {
  const auto gpus = this->gpus();
  note(launch, results, called_);
  auto timeout = options_->timeout;
  for (const CollectiveCall& call : launch.calls)
    if (call.timeout) timeout = std::chrono::duration_cast<std::chrono::milliseconds>(*call.timeout);
  auto work = coalescing_on_device_;
  if (!work) work = c10::make_intrusive<CudaWork>(getRank(), launch, called_, gpus, timeout);
  if (coalescing_) coalescing_on_device_ = work;

  std::exception_ptr error;
  try {
    for (const CollectiveCall& call : launch.calls) gpus->run(call);
    launch.write_back();
  } catch (...) {  // what was put on the stream before still needs its tensors
    error = std::current_exception();
    launch.flight.failed(text_of(error));
  }
  launch.leave_device();
  work->take(std::move(launch), results);
  if (coalescing_) {
    if (error) std::rethrow_exception(error);
    return async ? work : nullptr;
  }
  work->seal();
  if (error) {
    work->follow();  // else a graph's capture could not end
    std::rethrow_exception(error);
  }
  if (async) return work;
  work->wait(kNoTimeout);
  return nullptr;
}

// A barrier is the CPU's, after the GPU has ended this group's calls; with device_ids also what else is on
// the current stream.
void Backend::wait_for_gpus(const c10d::BarrierOptions& opts) {
  const auto gpus = this->gpus();
  if (!gpus) return;
  gpus->watchdog().require_usable();
  if (!opts.device_ids.empty()) {
    const auto stream = gpus->current_stream();
    stream.synchronize();
  }
  const auto limit = opts.timeout.count() > 0 ? opts.timeout : options_->timeout;
  if (gpus->watchdog().wait_for_all(Nanoseconds(limit))) return;
  gpus->watchdog().fail(c10::str("barrier timed out after ", limit.count(), " ms waiting for the GPU"));
  gpus->watchdog().require_usable();
}

}  // namespace pycoll::torch_adapter
