// What torch had under other names before 2.13. Older releases are not among those supported; the adapter
// compiles against 2.11 and 2.12 for who has to try it there.
#pragma once
#include <torch/version.h>

#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace pycoll::torch_adapter {

#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 13
using PremulSumSupplement = c10d::NCCLPreMulSumSupplement;
constexpr c10d::OpType kReduceScatterTensorCoalesced = c10d::OpType::COALESCED;
#else
using PremulSumSupplement = c10d::PreMulSumSupplement;
constexpr c10d::OpType kReduceScatterTensorCoalesced = c10d::OpType::REDUCE_SCATTER_TENSOR_COALESCED;
#endif

}  // namespace pycoll::torch_adapter
