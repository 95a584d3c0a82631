#include "cuda/kernels.cuh"

namespace pycoll::cuda {

const FormatKernels& float16_kernels() {
  static const FormatKernels all = kernels_of_format<F16>();
  return all;
}

}  // namespace pycoll::cuda
