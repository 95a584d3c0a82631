// Collectives in which a rank holds, or gets, a shard a rank.
#include "torch/backend.h"
#include "torch/older_torch.h"

namespace pycoll::torch_adapter {
namespace {

constexpr TorchCall kAllGather{c10d::OpType::ALLGATHER, "pycoll:all_gather"};
constexpr TorchCall kAllGatherBase{c10d::OpType::_ALLGATHER_BASE, "pycoll:all_gather_into_tensor"};
constexpr TorchCall kAllGatherCoalesced{c10d::OpType::COALESCED, "pycoll:all_gather_into_tensor_coalesced"};
constexpr TorchCall kReduceScatter{c10d::OpType::REDUCE_SCATTER, "pycoll:reduce_scatter"};
constexpr TorchCall kReduceScatterBase{c10d::OpType::_REDUCE_SCATTER_BASE, "pycoll:reduce_scatter_tensor"};
constexpr TorchCall kReduceScatterCoalesced{kReduceScatterTensorCoalesced,
                                            "pycoll:reduce_scatter_tensor_coalesced"};
constexpr TorchCall kGather{c10d::OpType::GATHER, "pycoll:gather"};
constexpr TorchCall kGatherSingle{c10d::OpType::GATHER, "pycoll:gather_single"};
constexpr TorchCall kScatter{c10d::OpType::SCATTER, "pycoll:scatter"};

bool equal_sizes(at::TensorList tensors) {
  for (const at::Tensor& tensor : tensors)
    if (tensor.numel() != tensors[0].numel()) return false;
  return true;
}

void require_numel(const at::Tensor& tensor, int64_t numel, const char* which, const TorchCall& what) {
  require(tensor.numel() == numel, what,
          c10::str(which, " must have ", numel, " elements, got ", tensor.numel(), " (shape ", tensor.sizes(),
                   ")"));
}

void require_pairs(at::TensorList outputs, at::TensorList inputs, const TorchCall& what) {
  require(outputs.size() == inputs.size(), what,
          c10::str("needs as many outputs as inputs, got ", outputs.size(), " and ", inputs.size()));
}

}  // namespace

Backend::WorkPtr Backend::allgather(std::vector<Tensors>& output_lists, Tensors& inputs,
                                    const c10d::AllgatherOptions& opts) {
  return calling([&] {
    const at::Tensor& input = only(inputs, kAllGather);
    const Tensors& outputs = only_list(output_lists, kAllGather);
    for (const at::Tensor& output : outputs) require_same_dtype(input, output, kAllGather);
    require_numel(input, outputs[size_t(getRank())].numel(), "the input, like this rank's own output,",
                  kAllGather);
    Launch launch(kAllGather, inputs, &enter_device_);
    if (equal_sizes(outputs)) {
      CollectiveCall& call =
          launch.add(CollectiveKind::AllGather, input, size_t(input.numel()), opts.timeout);
      call.input = launch.read(input);
      call.output = launch.write_all(outputs);
      return start(launch, opts.asyncOp, outputs);
    }
    // Uneven shards: every rank broadcasts its own. All ranks know all sizes from the list.
    for (int r = 0; r < getSize(); ++r) {
      const at::Tensor& output = outputs[size_t(r)];
      CollectiveCall& call =
          launch.add(CollectiveKind::Broadcast, output, size_t(output.numel()), opts.timeout);
      call.root = r;
      call.output = launch.write(output);
      if (r == getRank()) call.input = launch.read(input);
    }
    return start(launch, opts.asyncOp, outputs);
  });
}

Backend::WorkPtr Backend::allgather_coalesced(std::vector<Tensors>& output_lists, Tensors& inputs,
                                              const c10d::AllgatherOptions& opts) {
  return calling([&] {
    require(output_lists.size() == size_t(getSize()), kAllGatherCoalesced,
            c10::str("needs a list of outputs for each of ", getSize(), " ranks, got ", output_lists.size()));
    for (const Tensors& outputs : output_lists) require_pairs(outputs, inputs, kAllGatherCoalesced);
    Launch launch(kAllGatherCoalesced, inputs, &enter_device_);
    Tensors results;
    for (size_t i = 0; i < inputs.size(); ++i) {
      Tensors outputs;
      for (const Tensors& of_rank : output_lists) {
        require_same_dtype(inputs[i], of_rank[i], kAllGatherCoalesced);
        require_numel(of_rank[i], inputs[i].numel(), "each output, like its input,", kAllGatherCoalesced);
        outputs.push_back(of_rank[i]);
      }
      CollectiveCall& call =
          launch.add(CollectiveKind::AllGather, inputs[i], size_t(inputs[i].numel()), opts.timeout);
      call.input = launch.read(inputs[i]);
      call.output = launch.write_all(outputs);
      results.insert(results.end(), outputs.begin(), outputs.end());
    }
    return start(launch, opts.asyncOp, results);
  });
}

void Backend::add_all_gather(Launch& launch, const at::Tensor& output, const at::Tensor& input,
                             const c10d::AllgatherOptions& opts) {
  require_same_dtype(input, output, launch.what());
  require_numel(output, input.numel() * getSize(), "the output, an input a rank,", launch.what());
  CollectiveCall& call = launch.add(CollectiveKind::AllGather, input, size_t(input.numel()), opts.timeout);
  call.input = launch.read(input);
  call.output = launch.write(output);
}

Backend::WorkPtr Backend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                          const c10d::AllgatherOptions& opts) {
  return calling([&] {
    Launch launch(kAllGatherBase, input, &enter_device_);
    add_all_gather(launch, output, input, opts);
    return start(launch, opts.asyncOp, output);
  });
}

Backend::WorkPtr Backend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                          const c10d::AllgatherOptions& opts) {
  return calling([&] {
    require_pairs(outputs, inputs, kAllGatherCoalesced);
    Launch launch(kAllGatherCoalesced, inputs, &enter_device_);
    for (size_t i = 0; i < inputs.size(); ++i) add_all_gather(launch, outputs[i], inputs[i], opts);
    return start(launch, opts.asyncOp, outputs);
  });
}

Backend::WorkPtr Backend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& input_lists,
                                         const c10d::ReduceScatterOptions& opts) {
  return calling([&] {
    const at::Tensor& output = only(outputs, kReduceScatter);
    const Tensors& inputs = only_list(input_lists, kReduceScatter);
    for (const at::Tensor& input : inputs) require_same_dtype(output, input, kReduceScatter);
    require_numel(output, inputs[size_t(getRank())].numel(), "the output, like this rank's own input,",
                  kReduceScatter);
    Launch launch(kReduceScatter, inputs, &enter_device_);
    if (equal_sizes(inputs)) {
      CollectiveCall& call =
          launch.add(CollectiveKind::ReduceScatter, output, size_t(output.numel()), opts.timeout);
      launch.set_op(call, opts.reduceOp);
      call.input = launch.read_all(inputs);
      call.output = launch.write(output);
      return start(launch, opts.asyncOp, outputs);
    }
    // Uneven shards: each is reduced to the rank that owns it. All ranks know all sizes from the list.
    for (int r = 0; r < getSize(); ++r) {
      const at::Tensor& input = inputs[size_t(r)];
      CollectiveCall& call = launch.add(CollectiveKind::Reduce, input, size_t(input.numel()), opts.timeout);
      launch.set_op(call, opts.reduceOp);
      call.root = r;
      call.input = launch.read(input);
      if (r == getRank()) call.output = launch.write(output);
    }
    return start(launch, opts.asyncOp, outputs);
  });
}

void Backend::add_reduce_scatter(Launch& launch, const at::Tensor& output, const at::Tensor& input,
                                 const c10d::ReduceScatterOptions& opts) {
  require_same_dtype(input, output, launch.what());
  require_numel(input, output.numel() * getSize(), "the input, an output a rank,", launch.what());
  CollectiveCall& call =
      launch.add(CollectiveKind::ReduceScatter, output, size_t(output.numel()), opts.timeout);
  launch.set_op(call, opts.reduceOp);
  call.input = launch.read(input);
  call.output = launch.write(output);
}

Backend::WorkPtr Backend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                               const c10d::ReduceScatterOptions& opts) {
  return calling([&] {
    Launch launch(kReduceScatterBase, input, &enter_device_);
    add_reduce_scatter(launch, output, input, opts);
    return start(launch, opts.asyncOp, output);
  });
}

Backend::WorkPtr Backend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                          const c10d::ReduceScatterOptions& opts) {
  return calling([&] {
    require_pairs(outputs, inputs, kReduceScatterCoalesced);
    Launch launch(kReduceScatterCoalesced, inputs, &enter_device_);
    for (size_t i = 0; i < inputs.size(); ++i) add_reduce_scatter(launch, outputs[i], inputs[i], opts);
    return start(launch, opts.asyncOp, outputs);
  });
}

Backend::WorkPtr Backend::gather(std::vector<Tensors>& output_lists, Tensors& inputs,
                                 const c10d::GatherOptions& opts) {
  return calling([&] {
    const at::Tensor& input = only(inputs, kGather);
    Launch launch(kGather, inputs, &enter_device_);
    CollectiveCall& call = launch.add(CollectiveKind::Gather, input, size_t(input.numel()), opts.timeout);
    call.root = root_of(opts.rootRank, launch.what());
    call.input = launch.read(input);
    if (call.root != getRank()) {
      require(output_lists.empty(), kGather, "only the root takes a list of outputs");
      return start(launch, opts.asyncOp, {});
    }
    const Tensors& outputs = only_list(output_lists, kGather);
    for (const at::Tensor& output : outputs) {
      require_same_dtype(input, output, kGather);
      require_numel(output, input.numel(), "each output, like the input,", kGather);
    }
    call.output = launch.write_all(outputs);
    return start(launch, opts.asyncOp, outputs);
  });
}

Backend::WorkPtr Backend::gather_single(at::Tensor& output, at::Tensor& input,
                                        const c10d::GatherOptions& opts) {
  return calling([&] {
    Launch launch(kGatherSingle, input, &enter_device_);
    CollectiveCall& call = launch.add(CollectiveKind::Gather, input, size_t(input.numel()), opts.timeout);
    call.root = root_of(opts.rootRank, launch.what());
    call.input = launch.read(input);
    if (call.root != getRank()) return start(launch, opts.asyncOp, {});
    require_same_dtype(input, output, kGatherSingle);
    require_numel(output, input.numel() * getSize(), "the output, an input a rank,", kGatherSingle);
    call.output = launch.write(output);
    return start(launch, opts.asyncOp, output);
  });
}

Backend::WorkPtr Backend::scatter(Tensors& outputs, std::vector<Tensors>& input_lists,
                                  const c10d::ScatterOptions& opts) {
  return calling([&] {
    const at::Tensor& output = only(outputs, kScatter);
    Launch launch(kScatter, input_lists.empty() ? at::TensorList() : at::TensorList(input_lists[0]),
                  &enter_device_);
    CollectiveCall& call = launch.add(CollectiveKind::Scatter, output, size_t(output.numel()), opts.timeout);
    call.root = root_of(opts.rootRank, launch.what());
    call.output = launch.write(output);
    if (call.root != getRank()) {
      require(input_lists.empty(), kScatter, "only the root takes a list of inputs");
      return start(launch, opts.asyncOp, outputs);
    }
    const Tensors& inputs = only_list(input_lists, kScatter);
    for (const at::Tensor& input : inputs) {
      require_same_dtype(output, input, kScatter);
      require_numel(input, output.numel(), "each input, like the output,", kScatter);
    }
    call.input = launch.read_all(inputs);
    return start(launch, opts.asyncOp, outputs);
  });
}

}  // namespace pycoll::torch_adapter
