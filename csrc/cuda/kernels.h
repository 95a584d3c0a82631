// The kernels of every format and operator, as a table of addresses that the host launches from.
#pragma once
#include <cstdint>

#include "cuda/interpreter.h"
#include "cuda/packets.h"

namespace pycoll::cuda {

constexpr int kThreads = 512;

// Kernels of one format and operator; each takes (call, const uint32_t* aborted).
struct Kernels {
  const void* schedule = nullptr;
  const void* one_shot = nullptr;
  const void* two_shot = nullptr;
  uint64_t wire_size = 0;  // bytes of an element between hops
};

// Null entries: not built (the dtype is none of a GPU's, or the op not one of its).
const Kernels& kernels_of(DType dtype, Op op);
const void* all_gather_kernel();
const Kernels& moving_kernels();  // of bytes; only `schedule`

// Through the NVLink switch (nvls.h); takes (NvlsCall, const uint32_t* aborted). Null: it cannot reduce so.
struct NvlsKernel {
  const void* kernel = nullptr;
  uint64_t wire_size = 0;
};
NvlsKernel nvls_kernel_of(DType dtype, Op op);
const void* nvls_all_gather_kernel();

}  // namespace pycoll::cuda
