// all_reduce of sparse tensors: all ranks gather all indices and values, and each adds them up by itself.
#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "torch/backend.h"

namespace pycoll::torch_adapter {
namespace {

constexpr TorchCall kSparse{c10d::OpType::_ALLREDUCE_SPARSE, "pycoll:all_reduce_sparse"};

constexpr int64_t kMostDims = 16;

// What a rank tells of its tensor before the others can receive it.
struct Shape {
  int64_t dtype, sparse_dims, dense_dims, entries;
  int64_t sizes[kMostDims];
};
constexpr size_t kShapeWords = sizeof(Shape) / sizeof(int64_t);

Shape shape_of(const at::Tensor& tensor) {
  require(tensor.dim() <= kMostDims, kSparse,
          c10::str("a sparse tensor may have up to ", kMostDims, " dimensions, got ", tensor.dim()));
  Shape shape{int64_t(tensor.scalar_type()), tensor.sparse_dim(), tensor.dense_dim(), tensor._nnz(), {}};
  std::copy(tensor.sizes().begin(), tensor.sizes().end(), shape.sizes);
  return shape;
}

std::string described(const Shape& shape) {
  const auto dims = size_t(shape.sparse_dims + shape.dense_dims);
  return c10::str("shape ", at::IntArrayRef(shape.sizes, dims), " (", shape.sparse_dims,
                  " sparse dimensions) of ", c10::toString(at::ScalarType(shape.dtype)));
}

bool alike(const Shape& a, const Shape& b) {
  return a.dtype == b.dtype && a.sparse_dims == b.sparse_dims && a.dense_dims == b.dense_dims &&
         std::equal(a.sizes, a.sizes + kMostDims, b.sizes);
}

}  // namespace

Backend::WorkPtr Backend::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  return calling([&] { return sparse_all_reduce(only(tensors, kSparse), opts); });
}

// Asynchronous calls too wait here for the other ranks, until all know how much there is to receive.
Backend::WorkPtr Backend::sparse_all_reduce(const at::Tensor& tensor, const c10d::AllreduceOptions& opts) {
  if (tensor.layout() != at::kSparse || !tensor.device().is_cpu())
    C10_THROW_ERROR(
        TypeError,
        c10::str("pycoll all_reduce_sparse takes sparse COO tensors on the CPU, got one of layout ",
                 tensor.layout(), " on ", tensor.device()));
  const auto op = opts.reduceOp.op_;
  if (op != c10d::ReduceOp::SUM && op != c10d::ReduceOp::AVG)
    throw Unsupported("pycoll all_reduce of sparse tensors supports ReduceOp.SUM and AVG only");
  at::AutoDispatchBelowADInplaceOrView no_autograd;
  const at::Tensor mine = tensor.coalesce();
  const int ranks = getSize(), rank = getRank();

  Launch launch(kSparse, tensor);
  note(launch, tensor, called_ + 1);
  const Shape shape = shape_of(mine);
  std::vector<Shape> shapes(size_t(ranks), shape);
  Launch asking(kSparse);
  CollectiveCall& ask =
      asking.add(CollectiveKind::AllGather, at::empty({0}, at::kLong), kShapeWords, opts.timeout);
  ask.input = &shape;
  ask.output = shapes.data();
  communicator_->run(ask);
  for (int r = 0; r < ranks; ++r)
    if (!alike(shapes[size_t(r)], shapes[0]))
      throw Mismatch(c10::str("group '", communicator_->options().group, "', rank ", rank,
                              ": all_reduce of a sparse tensor of ", described(shapes[0]),
                              " on rank 0, but of ", described(shapes[size_t(r)]), " on rank ", r));

  const int64_t entries = std::accumulate(shapes.begin(), shapes.end(), int64_t(0),
                                          [](int64_t sum, const Shape& s) { return sum + s.entries; });
  const bool even =
      std::all_of(shapes.begin(), shapes.end(), [&](const Shape& s) { return s.entries == shape.entries; });
  // Rows of `rows`, a rank's after another's, into one tensor.
  const auto gather = [&](const at::Tensor& rows) {
    std::vector<int64_t> sizes = rows.sizes().vec();
    sizes[0] = entries;
    at::Tensor all = at::empty(sizes, rows.options());
    const at::Tensor own = rows.contiguous();
    if (even) {
      CollectiveCall& call = launch.add(CollectiveKind::AllGather, own, size_t(own.numel()), opts.timeout);
      call.input = launch.read(own);
      call.output = launch.write(all);
      return all;
    }
    int64_t begin = 0;
    for (int r = 0; r < ranks; ++r) {
      const at::Tensor part = all.narrow(0, begin, shapes[size_t(r)].entries);
      begin += shapes[size_t(r)].entries;
      if (part.numel() == 0) continue;
      CollectiveCall& call = launch.add(CollectiveKind::Broadcast, part, size_t(part.numel()), opts.timeout);
      call.root = r;
      call.output = launch.write(part);
      if (r == rank) call.input = launch.read(own);
    }
    return all;
  };
  const at::Tensor indices = gather(mine.indices().t());
  const at::Tensor values = gather(mine.values());
  launch.conclude = [tensor, indices, values, op, ranks] {
    at::Tensor sum = at::sparse_coo_tensor(indices.t(), values, tensor.sizes(), tensor.options()).coalesce();
    if (op == c10d::ReduceOp::AVG) sum.values().div_(ranks);
    at::Tensor(tensor).copy_(sum);
  };
  return start(launch, opts.asyncOp, tensor);
}

}  // namespace pycoll::torch_adapter
