#include "cuda/kernels.cuh"

namespace pycoll::cuda {

const FormatKernels& bfloat16_kernels() {
  static const FormatKernels all = kernels_of_format<BF16>();
  return all;
}

}  // namespace pycoll::cuda
