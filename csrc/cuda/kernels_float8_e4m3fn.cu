#include "cuda/kernels.cuh"

namespace pycoll::cuda {

const FormatKernels& float8_e4m3fn_kernels() {
  static const FormatKernels all = kernels_of_format<E4M3>();
  return all;
}

}  // namespace pycoll::cuda
