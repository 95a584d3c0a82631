// Instantiates the kernels of one format; included by one file a format, so that they compile side by side.
#pragma once
#include "cuda/device_context.h"
#include "cuda/kernels.h"

namespace pycoll::cuda {

// Calls are constant memory of the launch: __grid_constant__ keeps them there.
template <class R>
__global__ void __launch_bounds__(kThreads, 1)
    schedule_kernel(const __grid_constant__ ScheduleCall call, const uint32_t* aborted) {
  DeviceContext context(aborted);
  run_schedule<R>(context, call);
}

template <class R>
__global__ void __launch_bounds__(kThreads, 1)
    one_shot_kernel(const __grid_constant__ PacketCall call, const uint32_t* aborted) {
  DeviceContext context(aborted);
  run_one_shot<R>(context, call);
}

template <class R>
__global__ void __launch_bounds__(kThreads, 1)
    two_shot_kernel(const __grid_constant__ PacketCall call, const uint32_t* aborted) {
  DeviceContext context(aborted);
  run_two_shot<R>(context, call);
}

template <class R>
Kernels kernels() {
  return {.schedule = reinterpret_cast<const void*>(&schedule_kernel<R>),
          .one_shot = reinterpret_cast<const void*>(&one_shot_kernel<R>),
          .two_shot = reinterpret_cast<const void*>(&two_shot_kernel<R>),
          .wire_size = sizeof(typename R::Wire::Storage)};
}

// By Op, in the order of the enum.
struct FormatKernels {
  Kernels by_op[9];
};

template <class F>
FormatKernels kernels_of_format() {
  FormatKernels all;
  all.by_op[static_cast<int>(Op::Sum)] = kernels<Reduction<F, Op::Sum>>();
  all.by_op[static_cast<int>(Op::Avg)] = kernels<Reduction<F, Op::Avg>>();
  all.by_op[static_cast<int>(Op::Prod)] = kernels<Reduction<F, Op::Prod>>();
  all.by_op[static_cast<int>(Op::Min)] = kernels<Reduction<F, Op::Min>>();
  all.by_op[static_cast<int>(Op::Max)] = kernels<Reduction<F, Op::Max>>();
  all.by_op[static_cast<int>(Op::PremulSum)] = kernels<Reduction<F, Op::PremulSum>>();
  return all;
}

const FormatKernels& float32_kernels();
const FormatKernels& float64_kernels();
const FormatKernels& float16_kernels();
const FormatKernels& bfloat16_kernels();
const FormatKernels& float8_e4m3fn_kernels();
const FormatKernels& float8_e5m2_kernels();
const FormatKernels& int32_kernels();
const FormatKernels& int64_kernels();

}  // namespace pycoll::cuda
