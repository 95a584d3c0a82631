#include "cuda/kernels.cuh"

namespace pycoll::cuda {

const FormatKernels& float8_e5m2_kernels() {
  static const FormatKernels all = kernels_of_format<E5M2>();
  return all;
}

}  // namespace pycoll::cuda
