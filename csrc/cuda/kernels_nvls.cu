// The kernels that work through the NVLink switch. For machines before compute capability 9.0 they are empty.
#include "cuda/device_context.h"
#include "cuda/kernels.h"
#include "cuda/nvls.h"

namespace pycoll::cuda {
namespace {

template <class R>
__global__ void __launch_bounds__(kThreads, 1)
    nvls_kernel([[maybe_unused]] const __grid_constant__ NvlsCall call,
                [[maybe_unused]] const uint32_t* aborted) {
#if __CUDA_ARCH__ >= 900
  DeviceContext context(aborted);
  run_nvls<R>(context, call);
#endif
}

__global__ void __launch_bounds__(kThreads, 1)
    nvls_all_gather([[maybe_unused]] const __grid_constant__ NvlsCall call,
                    [[maybe_unused]] const uint32_t* aborted) {
#if __CUDA_ARCH__ >= 900
  DeviceContext context(aborted);
  run_nvls_all_gather(context, call);
#endif
}

template <class F>
NvlsKernel of_format(Op op) {
  const auto of = []<class R>(R) {
    return NvlsKernel{reinterpret_cast<const void*>(&nvls_kernel<R>), sizeof(typename R::Wire::Storage)};
  };
  if (op == Op::Sum) return of(Reduction<F, Op::Sum>{});
  if (op == Op::Avg) return of(Reduction<F, Op::Avg>{});
  if (op == Op::PremulSum) return of(Reduction<F, Op::PremulSum>{});
  if constexpr (kNvlsReduces<Reduction<F, Op::Min>>) {
    if (op == Op::Min) return of(Reduction<F, Op::Min>{});
    if (op == Op::Max) return of(Reduction<F, Op::Max>{});
  }
  return {};
}

}  // namespace

NvlsKernel nvls_kernel_of(DType dtype, Op op) {
  if (dtype == DType::Float32) return of_format<F32>(op);
  if (dtype == DType::Float16) return of_format<F16>(op);
  if (dtype == DType::BFloat16) return of_format<BF16>(op);
  return {};
}

const void* nvls_all_gather_kernel() {
  return reinterpret_cast<const void*>(&nvls_all_gather);
}

}  // namespace pycoll::cuda
