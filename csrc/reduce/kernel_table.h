// The boundary between reduce.cpp, compiled for the baseline processor, and the kernels, compiled once for
// each instruction set. Nothing here may contain code: an inline function would be emitted by every one of
// these units, and the linker could keep the one that needs AVX-512.
#pragma once
#include <cstddef>

#include "reduce/dtype.h"
#include "reduce/reduce.h"

namespace pycoll {

constexpr size_t kDTypes = static_cast<size_t>(DType::Int128) + 1;
constexpr size_t kOps = static_cast<size_t>(Op::PremulSum) + 1;

// The arguments of reduce_many, checked.
struct ReduceCall {
  const void* const* sources;
  size_t source_count;  // at least 1
  void* const* destinations;
  size_t destination_count;  // at least 1
  size_t count;              // elements
  const double* factors;     // PremulSum only
  int divisor;               // Avg only, at least 1
  Stores stores;
};

using ReduceKernel = void (*)(const ReduceCall&);
// destination[i] = wide(source[i]) * scale
using WidenKernel = void (*)(const void* source, void* destination, size_t count, double scale);
// destination[i] = rounded(source[i] * 2^ceil(log2 divisor) / divisor)
using NarrowKernel = void (*)(const void* source, void* destination, size_t count, int divisor);
using CopyKernel = void (*)(void* destination, const void* source, size_t bytes);

struct KernelTable {
  const char* name;
  ReduceKernel reduce[kDTypes][kOps];  // null: the pair has no meaning
  WidenKernel widen[kDTypes];          // float and complex dtypes only
  NarrowKernel narrow[kDTypes];        // float and complex dtypes only
  CopyKernel copy;
  CopyKernel copy_streaming;
};

// Complete. The others start from it and replace what gains from wider vectors.
extern const KernelTable kBaselineKernels;
#if defined(__x86_64__)
extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvx512Kernels;
#endif

}  // namespace pycoll
