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

void Backend::share_pool(at::Device device) {
  calling([&] { open_gpus(device, "share_pool")->share_pool(); });
}

// The calls are on the group's stream when this returns. A synchronous one is one whose end the caller's
// stream waits for. `messages`: what the call is, where it is not the launch's calls; `limit`: its timeout.
Backend::WorkPtr Backend::start_on_device(Launch& launch, bool async, at::TensorList results,
                                          const CudaMessages& messages, std::chrono::milliseconds limit) {
  const auto gpus = this->gpus();
  note(launch, results, called_);
  auto timeout = limit.count() > 0 ? limit : options_->timeout;
  for (const CollectiveCall& call : launch.calls)
    if (call.timeout) timeout = std::chrono::duration_cast<std::chrono::milliseconds>(*call.timeout);
  auto work = coalescing_on_device_;
  if (!work) work = c10::make_intrusive<CudaWork>(getRank(), launch, called_, gpus, timeout);
  if (coalescing_) coalescing_on_device_ = work;

  std::exception_ptr error;
  try {
    for (const CollectiveCall& call : launch.calls) gpus->run(call);
    gpus->put(messages, gpus->stream());
    launch.write_back();
  } catch (...) {  // what was put on the stream before still needs its tensors
    error = std::current_exception();
    launch.flight.failed(text_of(error));
  }
  launch.leave_device();
  work->take(std::move(launch), results);
  if (coalescing_) {
    collects_on_device_ = true;
    if (error) std::rethrow_exception(error);
    return async ? WorkPtr(work) : ended_work();
  }
  work->seal(gpus->stream());
  return finish_on_device(std::move(work), async, error);
}

Backend::WorkPtr Backend::finish_on_device(c10::intrusive_ptr<CudaWork> work, bool async,
                                           std::exception_ptr error) {
  if (error) {
    work->follow();  // else a graph's capture could not end
    std::rethrow_exception(error);
  }
  if (async) return work;
  work->wait(kNoTimeout);
  return ended_work();
}

// A message goes on the stream of its peer and direction; while coalescing it is kept, to go with the others.
Backend::WorkPtr Backend::message_on_device(const TorchCall& what, Tensors& tensors, bool sends, int peer,
                                            int tag) {
  const at::Tensor& tensor = tensors[0];
  require(peer >= 0 && peer < getSize() && peer != getRank(), what,
          c10::str("messages of CUDA tensors go to and come from other ranks of this group, 0 to ",
                   getSize() - 1, ", not ", peer));
  std::optional<c10::Stream> stream;
  const EnterDevice enter = [&](c10::Device device, const TorchCall& call) {
    const auto gpus = open_gpus(device, call.name());
    stream = coalescing_ ? gpus->batch_stream() : gpus->message_stream(peer, sends);
    gpus->follow_current_stream(*stream, peer);
    return *stream;
  };
  Launch launch(what, tensors, &enter);
  void* const data = sends ? const_cast<void*>(launch.read(tensor)) : launch.write(tensor);
  require_one_device(launch);
  note_message(launch, tensors, sends, peer, tag);
  const pycoll_cuda_message message{data, tensor.nbytes(), uint32_t(tag), peer, sends ? 1 : 0};
  const auto gpus = this->gpus();
  auto work = coalescing_on_device_;
  if (!work) work = c10::make_intrusive<CudaWork>(getRank(), launch, called_, gpus, options_->timeout);
  if (coalescing_) {
    launch.leave_device();
    coalescing_on_device_ = work;
    kept_messages_.push_back({message, std::move(launch), tensors});
    return work;
  }
  std::exception_ptr error;
  try {
    gpus->put({&message, 1}, *stream);
    launch.write_back();
  } catch (...) {
    error = std::current_exception();
    launch.flight.failed(text_of(error));
  }
  launch.leave_device();
  work->take(std::move(launch), tensors, peer);
  work->seal(*stream);
  return finish_on_device(std::move(work), true, error);
}

// Sends the messages that were kept, all at once, and makes the work that collected them one of all.
void Backend::seal_on_device(CudaWork& work) {
  const auto gpus = this->gpus();
  const bool collectives = std::exchange(collects_on_device_, false);
  auto kept = std::exchange(kept_messages_, {});
  if (kept.empty()) return work.seal(gpus->stream());
  const c10::Stream stream = gpus->batch_stream();
  std::exception_ptr error;
  {
    const c10::StreamGuard there(stream);
    CudaMessages messages;
    for (const KeptMessage& each : kept) messages.push_back(each.message);
    try {
      gpus->put(messages, stream);
      for (KeptMessage& each : kept) each.launch.write_back();
    } catch (...) {
      error = std::current_exception();
      for (KeptMessage& each : kept) each.launch.flight.failed(text_of(error));
    }
  }
  for (KeptMessage& each : kept) work.take(std::move(each.launch), each.tensors, each.message.peer);
  if (collectives) gpus->join(stream, gpus->stream());
  work.seal(stream);
  if (!error) return;
  work.follow();
  std::rethrow_exception(error);
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
  if (gpus->watchdog().wait_for_collectives(Nanoseconds(limit))) return;
  gpus->watchdog().fail(c10::str("barrier timed out after ", limit.count(), " ms waiting for the GPU"));
  gpus->watchdog().require_usable();
}

}  // namespace pycoll::torch_adapter
