#include "cuda/kernels.cuh"
#include "cuda/kernels.h"

namespace pycoll::cuda {
namespace {

__global__ void __launch_bounds__(kThreads, 1)
    all_gather_packets(const __grid_constant__ PacketCall call, const uint32_t* aborted) {
  DeviceContext context(aborted);
  run_all_gather(context, call);
}

}  // namespace

const Kernels& kernels_of(DType dtype, Op op) {
  static const Kernels none;
  const auto of = [op](const FormatKernels& all) -> const Kernels& {
    return all.by_op[static_cast<int>(op)];
  };
  switch (dtype) {
    case DType::Float32:
      return of(float32_kernels());
    case DType::Float64:
      return of(float64_kernels());
    case DType::Float16:
      return of(float16_kernels());
    case DType::BFloat16:
      return of(bfloat16_kernels());
    case DType::Float8E4M3FN:
      return of(float8_e4m3fn_kernels());
    case DType::Float8E5M2:
      return of(float8_e5m2_kernels());
    case DType::Int32:
      return of(int32_kernels());
    case DType::Int64:
      return of(int64_kernels());
    default:
      return none;
  }
}

const void* all_gather_kernel() {
  return reinterpret_cast<const void*>(&all_gather_packets);
}

const Kernels& moving_kernels() {
  using Bytes = Reduction<Raw, Op::Sum>;
  static const Kernels kernels{.schedule = reinterpret_cast<const void*>(&schedule_kernel<Bytes>),
                               .one_shot = nullptr,
                               .two_shot = nullptr,
                               .wire_size = 1};
  return kernels;
}

}  // namespace pycoll::cuda
