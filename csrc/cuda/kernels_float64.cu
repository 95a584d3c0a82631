#include "cuda/kernels.cuh"

namespace pycoll::cuda {

const FormatKernels& float64_kernels() {
  static const FormatKernels all = kernels_of_format<F64>();
  return all;
}

}  // namespace pycoll::cuda
