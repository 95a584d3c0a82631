#include "cuda/kernels.cuh"

namespace pycoll::cuda {

const FormatKernels& float32_kernels() {
  static const FormatKernels all = kernels_of_format<F32>();
  return all;
}

}  // namespace pycoll::cuda
