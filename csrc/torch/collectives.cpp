// Collectives whose every rank holds the whole buffer.
#include "torch/backend.h"

namespace pycoll::torch_adapter {
namespace {

constexpr TorchCall kAllReduce{c10d::OpType::ALLREDUCE, "pycoll:all_reduce"};
constexpr TorchCall kAllReduceCoalesced{c10d::OpType::ALLREDUCE_COALESCED, "pycoll:all_reduce_coalesced"};
constexpr TorchCall kBroadcast{c10d::OpType::BROADCAST, "pycoll:broadcast"};
constexpr TorchCall kReduce{c10d::OpType::REDUCE, "pycoll:reduce"};
constexpr TorchCall kBarrier{c10d::OpType::BARRIER, "pycoll:barrier"};

// Tensors of a coalesced call up to this size together travel as one buffer: two copies through the cache
// cost less than a collective each.
constexpr int64_t kPackedBytes = 256 * 1024;

bool worth_packing(at::TensorList tensors) {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.scalar_type() != tensors[0].scalar_type()) return false;
    bytes += int64_t(tensor.nbytes());
  }
  return tensors.size() > 1 && bytes <= kPackedBytes;
}

}  // namespace

Backend::WorkPtr Backend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  return calling([&] {
    const at::Tensor& tensor = only(tensors, kAllReduce);
    if (tensor.layout() == at::kSparse) return sparse_all_reduce(tensor, opts);
    Launch launch(kAllReduce, tensors, &enter_device_);
    CollectiveCall& call =
        launch.add(CollectiveKind::AllReduce, tensor, size_t(tensor.numel()), opts.timeout);
    launch.set_op(call, opts.reduceOp);
    call.input = call.output = launch.update(tensor);
    return start(launch, opts.asyncOp, tensors);
  });
}

Backend::WorkPtr Backend::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) {
  return calling([&] {
    Launch launch(kAllReduceCoalesced, tensors, &enter_device_);
    for (const at::Tensor& tensor : tensors) require_dense(tensor, kAllReduceCoalesced);
    const auto add = [&](at::TensorList part) {
      size_t count = 0;
      for (const at::Tensor& tensor : part) count += size_t(tensor.numel());
      CollectiveCall& call = launch.add(CollectiveKind::AllReduce, part[0], count, opts.timeout);
      launch.set_op(call, opts.reduceOp);
      call.input = call.output = launch.update_all(part);
      if (part.size() > 1) call.parts = sizes_in_words(part);
    };
    if (worth_packing(tensors))
      add(tensors);
    else
      for (const at::Tensor& tensor : tensors) add(tensor);
    return start(launch, opts.asyncOp, tensors);
  });
}

Backend::WorkPtr Backend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  return calling([&] {
    const at::Tensor& tensor = only(tensors, kBroadcast);
    Launch launch(kBroadcast, tensors, &enter_device_);
    CollectiveCall& call =
        launch.add(CollectiveKind::Broadcast, tensor, size_t(tensor.numel()), opts.timeout);
    call.root = root_of(opts.rootRank, launch.what());
    if (call.root == getRank()) {
      call.input = launch.read(tensor);
      call.output = const_cast<void*>(call.input);  // where the root's values are already
    } else {
      call.output = launch.write(tensor);
    }
    return start(launch, opts.asyncOp, tensors);
  });
}

Backend::WorkPtr Backend::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  return calling([&] {
    const at::Tensor& tensor = only(tensors, kReduce);
    Launch launch(kReduce, tensors, &enter_device_);
    CollectiveCall& call = launch.add(CollectiveKind::Reduce, tensor, size_t(tensor.numel()), opts.timeout);
    launch.set_op(call, opts.reduceOp);
    call.root = root_of(opts.rootRank, launch.what());
    if (call.root == getRank())
      call.input = call.output = launch.update(tensor);
    else
      call.input = launch.read(tensor);
    return start(launch, opts.asyncOp, tensors);
  });
}

Backend::WorkPtr Backend::barrier(const c10d::BarrierOptions& opts) {
  return calling([&] {
    if (!opts.asyncOp) wait_for_gpus(opts);
    Launch launch(kBarrier);
    CollectiveCall& call = launch.calls.emplace_back();
    call.kind = CollectiveKind::Barrier;
    call.timeout = timeout_from(opts.timeout);
    return start(launch, opts.asyncOp, {});
  });
}

}  // namespace pycoll::torch_adapter
