#include "torch/backend.h"

namespace pycoll::torch_adapter {
namespace {

constexpr TorchCall kSend{c10d::OpType::SEND, "pycoll:send"};
constexpr TorchCall kReceive{c10d::OpType::RECV, "pycoll:recv"};
constexpr TorchCall kReceiveAny{c10d::OpType::RECVANYSOURCE, "pycoll:recvAnySource"};

uint64_t engine_tag(int tag) {
  return uint32_t(tag);
}

}  // namespace

Backend::WorkPtr Backend::send(Tensors& tensors, int destination, int tag) {
  return calling([&]() -> WorkPtr {
    const at::Tensor& tensor = only(tensors, kSend);
    if (!tensor.device().is_cpu()) return message_on_device(kSend, tensors, true, destination, tag);
    Launch launch(kSend, tensors);
    const void* data = launch.read(tensor);
    require_one_device(launch);
    note_message(launch, tensors, true, destination, tag);
    auto work = coalescing_ ? coalescing_ : new_work(launch);
    work->take(std::move(launch), tensors);
    work->add(communicator_->send(data, tensor.nbytes(), destination, engine_tag(tag)));
    return finish(std::move(work), true);
  });
}

Backend::WorkPtr Backend::recv(Tensors& tensors, int source, int tag) {
  return calling([&]() -> WorkPtr {
    require(source >= 0 && source < getSize(), kReceive,
            c10::str("the source must be a rank below ", getSize(), ", got ", source));
    return receive(kReceive, tensors, source, tag);
  });
}

Backend::WorkPtr Backend::recvAnysource(Tensors& tensors, int tag) {
  return calling([&] { return receive(kReceiveAny, tensors, -1, tag); });
}

Backend::WorkPtr Backend::receive(const TorchCall& what, Tensors& tensors, int source, int tag) {
  const at::Tensor& tensor = only(tensors, what);
  if (!tensor.device().is_cpu()) {
    if (source < 0)
      throw Unsupported(c10::str("pycoll ", what.name(),
                                 ": a CUDA tensor is received from a rank that is named "
                                 "(src=), got one on ",
                                 tensor.device()));
    return message_on_device(what, tensors, false, source, tag);
  }
  Launch launch(what, tensors);
  void* data = launch.write(tensor);
  require_one_device(launch);
  note_message(launch, tensors, false, source, tag);
  // A message may never come: leaving the group does not wait for it.
  auto work = coalescing_ ? coalescing_ : new_work(launch, false);
  work->take(std::move(launch), tensors);
  int* heard = source < 0 ? work->source_slot() : nullptr;
  work->add(communicator_->recv(data, tensor.nbytes(), source, engine_tag(tag), std::nullopt, heard));
  return finish(std::move(work), true);
}

}  // namespace pycoll::torch_adapter
