#include "cuda/kernels.cuh"

namespace pycoll::cuda {

const FormatKernels& int32_kernels() {
  static const FormatKernels all = kernels_of_format<I32>();
  return all;
}

}  // namespace pycoll::cuda
