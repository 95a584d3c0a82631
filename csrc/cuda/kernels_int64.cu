#include "cuda/kernels.cuh"

namespace pycoll::cuda {

const FormatKernels& int64_kernels() {
  static const FormatKernels all = kernels_of_format<I64>();
  return all;
}

}  // namespace pycoll::cuda
