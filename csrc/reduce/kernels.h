// The reduction kernels. Every kernels_*.cpp defines PYCOLL_ISA, the namespace of its instruction set, and
// includes this file once; it then defines that set's KernelTable from what is here.
#include <cstddef>
#include <cstdint>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "reduce/kernel_table.h"

namespace pycoll::PYCOLL_ISA {
#include "reduce/vectors.h"
//
#include "reduce/formats.h"
#include "reduce/ops.h"

// Elements [i, i + L * U) of one call: every source is read once, all of them are combined in registers.
// N: how many sources, or 0 where only the call knows.
template <class Format, class Op, int N, int L, int U>
inline void reduce_block(const ReduceCall& call, const Op& op, size_t i, bool streaming) {
  using Element = typename Format::Element;
  using In = Vec<Element, L>;
  using Wide = Vec<typename Format::Acc, L>;
  const size_t at = i * sizeof(Element);
  const auto term = [&](size_t source, int u) __attribute__((always_inline)) {
    const char* from = static_cast<const char*>(call.sources[source]) + at;
    return op.template term<L>(static_cast<Wide>(Format::template decode<L>(load<In>(from + u * sizeof(In)))),
                               source);
  };
  Wide acc[U];
  for (int u = 0; u < U; ++u) acc[u] = term(0, u);
  const size_t n = N == 0 ? call.source_count : N;
  for (size_t source = 1; source < n; ++source) {
    for (int u = 0; u < U; ++u) acc[u] = op.template combine<L>(acc[u], term(source, u));
  }
  In out[U];
  for (int u = 0; u < U; ++u) out[u] = Format::template encode<L>(op.template finish<L>(acc[u]));
  for (size_t d = 0; d < call.destination_count; ++d) {
    char* to = static_cast<char*>(call.destinations[d]) + at;
    if (streaming) {
      for (int u = 0; u < U; ++u) store_streaming(to + u * sizeof(In), out[u]);
    } else {
      for (int u = 0; u < U; ++u) store(to + u * sizeof(In), out[u]);
    }
  }
}

// How many elements until every destination is aligned to `alignment` bytes; -1 where that never happens at
// once.
inline ptrdiff_t elements_until_aligned(const ReduceCall& call, size_t element, size_t alignment) {
  const size_t offset = reinterpret_cast<uintptr_t>(call.destinations[0]) % alignment;
  for (size_t d = 1; d < call.destination_count; ++d) {
    if (reinterpret_cast<uintptr_t>(call.destinations[d]) % alignment != offset) return -1;
  }
  const size_t bytes = (alignment - offset) % alignment;
  return bytes % element == 0 ? static_cast<ptrdiff_t>(bytes / element) : -1;
}

template <class Format, class Op, int N>
void reduce_loop(const ReduceCall& call) {
  constexpr int L = Format::kLanes;
  constexpr int U = 4;
  const Op op(call);
  const size_t count = call.count;
  size_t i = 0;
  bool streaming = false;
  if constexpr (L > 1) {
    if (call.stores == Stores::NonTemporal && count >= 4 * L * U) {
      constexpr size_t kElement = sizeof(typename Format::Element);
      const ptrdiff_t lead = elements_until_aligned(call, kElement, L * kElement);
      streaming = lead >= 0;
      for (ptrdiff_t k = 0; k < lead; ++k, ++i) reduce_block<Format, Op, N, 1, 1>(call, op, i, false);
    }
    for (; i + L * U <= count; i += L * U) reduce_block<Format, Op, N, L, U>(call, op, i, streaming);
    for (; i + L <= count; i += L) reduce_block<Format, Op, N, L, 1>(call, op, i, streaming);
  }
  for (; i < count; ++i) reduce_block<Format, Op, N, 1, 1>(call, op, i, false);
  if (streaming) finish_streaming();
}

template <class Format, template <class> class OpOf>
void reduce_kernel(const ReduceCall& call) {
  using Op = OpOf<typename Format::Acc>;
  if (call.source_count == 2) {
    reduce_loop<Format, Op, 2>(call);
  } else {
    reduce_loop<Format, Op, 0>(call);
  }
}

// Complex numbers as pairs of reals, for the ops that treat the two parts alike.
template <class Format, template <class> class OpOf>
void pairwise_kernel(const ReduceCall& call) {
  ReduceCall reals = call;
  reals.count *= 2;
  reduce_kernel<Format, OpOf>(reals);
}

template <class Format, int L>
inline void widen_block(const char* source, char* destination, size_t i, typename Format::Acc scale) {
  using Element = typename Format::Element;
  using Acc = typename Format::Acc;
  const Vec<Acc, L> wide = Format::template decode<L>(load<Vec<Element, L>>(source + i * sizeof(Element)));
  store<Vec<Acc, L>>(destination + i * sizeof(Acc), wide * broadcast<Acc, L>(scale));
}

template <class Format, int Parts = 1>
void widen_kernel(const void* source, void* destination, size_t count, double scale) {
  constexpr int L = Format::kLanes;
  const auto* from = static_cast<const char*>(source);
  auto* to = static_cast<char*>(destination);
  const auto factor = static_cast<typename Format::Acc>(scale);
  count *= Parts;
  size_t i = 0;
  for (; i + L <= count; i += L) widen_block<Format, L>(from, to, i, factor);
  for (; i < count; ++i) widen_block<Format, 1>(from, to, i, factor);
}

template <class Format, int L>
inline void narrow_block(const char* source, char* destination, size_t i,
                         const ScaledDivision<typename Format::Acc>& division) {
  using Element = typename Format::Element;
  using Acc = typename Format::Acc;
  const auto wide = load<Vec<Acc, L>>(source + i * sizeof(Acc));
  store<Vec<Element, L>>(destination + i * sizeof(Element),
                         Format::template encode<L>(division.template divide<L>(wide)));
}

template <class Format, int Parts = 1>
void narrow_kernel(const void* source, void* destination, size_t count, int divisor) {
  constexpr int L = Format::kLanes;
  const auto* from = static_cast<const char*>(source);
  auto* to = static_cast<char*>(destination);
  const ScaledDivision<typename Format::Acc> division(divisor);
  count *= Parts;
  size_t i = 0;
  for (; i + L <= count; i += L) narrow_block<Format, L>(from, to, i, division);
  for (; i < count; ++i) narrow_block<Format, 1>(from, to, i, division);
}

inline void copy_streaming(void* destination, const void* source, size_t bytes) {
  using Line = Vec<uint8_t, kVectorBytes>;
  auto* to = static_cast<char*>(destination);
  const auto* from = static_cast<const char*>(source);
  const size_t offset = reinterpret_cast<uintptr_t>(to) % kVectorBytes;
  size_t i = offset == 0 ? 0 : kVectorBytes - offset;
  if (bytes < i + 256) {
    __builtin_memcpy(to, from, bytes);
    return;
  }
  __builtin_memcpy(to, from, i);
  for (; i + 4 * kVectorBytes <= bytes; i += 4 * kVectorBytes) {
    Line lines[4];
    for (int u = 0; u < 4; ++u) lines[u] = load<Line>(from + i + u * kVectorBytes);
    for (int u = 0; u < 4; ++u) store_streaming(to + i + u * kVectorBytes, lines[u]);
  }
  __builtin_memcpy(to + i, from + i, bytes - i);
  finish_streaming();
}

constexpr size_t index(DType dtype) {
  return static_cast<size_t>(dtype);
}

template <class Format, int Parts>
constexpr void add_float_conversions(KernelTable& table, DType dtype) {
  table.widen[index(dtype)] = &widen_kernel<Format, Parts>;
  table.narrow[index(dtype)] = &narrow_kernel<Format, Parts>;
}

template <class Format>
constexpr void add_float(KernelTable& table, DType dtype) {
  ReduceKernel* row = table.reduce[index(dtype)];
  row[static_cast<int>(Op::Sum)] = &reduce_kernel<Format, SumOp>;
  row[static_cast<int>(Op::Avg)] = &reduce_kernel<Format, FloatAvgOp>;
  row[static_cast<int>(Op::Prod)] = &reduce_kernel<Format, ProdOp>;
  row[static_cast<int>(Op::Min)] = &reduce_kernel<Format, MinOp>;
  row[static_cast<int>(Op::Max)] = &reduce_kernel<Format, MaxOp>;
  row[static_cast<int>(Op::PremulSum)] = &reduce_kernel<Format, PremulSumOp>;
  add_float_conversions<Format, 1>(table, dtype);
}

template <class T>
constexpr void add_complex(KernelTable& table, DType dtype) {
  ReduceKernel* row = table.reduce[index(dtype)];
  row[static_cast<int>(Op::Sum)] = &pairwise_kernel<Native<T>, SumOp>;
  row[static_cast<int>(Op::Avg)] = &pairwise_kernel<Native<T>, FloatAvgOp>;
  row[static_cast<int>(Op::PremulSum)] = &pairwise_kernel<Native<T>, PremulSumOp>;
  add_float_conversions<Native<T>, 2>(table, dtype);
}

// The ops whose bits do not depend on the sign: one kernel serves both types of a size.
template <class Unsigned>
constexpr void add_wrapping(KernelTable& table, DType signed_dtype, DType unsigned_dtype) {
  for (DType dtype : {signed_dtype, unsigned_dtype}) {
    ReduceKernel* row = table.reduce[index(dtype)];
    row[static_cast<int>(Op::Sum)] = &reduce_kernel<Native<Unsigned>, SumOp>;
    row[static_cast<int>(Op::Prod)] = &reduce_kernel<Native<Unsigned>, ProdOp>;
    row[static_cast<int>(Op::BitAnd)] = &reduce_kernel<Native<Unsigned>, BitAndOp>;
    row[static_cast<int>(Op::BitOr)] = &reduce_kernel<Native<Unsigned>, BitOrOp>;
    row[static_cast<int>(Op::BitXor)] = &reduce_kernel<Native<Unsigned>, BitXorOp>;
    row[static_cast<int>(Op::PremulSum)] = &reduce_kernel<Native<Unsigned>, IntegerPremulSumOp>;
  }
}

template <class T>
constexpr void add_min_max(KernelTable& table, DType dtype) {
  table.reduce[index(dtype)][static_cast<int>(Op::Min)] = &reduce_kernel<Native<T>, MinOp>;
  table.reduce[index(dtype)][static_cast<int>(Op::Max)] = &reduce_kernel<Native<T>, MaxOp>;
}

template <class Format>
constexpr void add_integer_avg(KernelTable& table, DType dtype) {
  table.reduce[index(dtype)][static_cast<int>(Op::Avg)] = &reduce_kernel<Format, IntegerAvgOp>;
}

constexpr void add_hot_kernels(KernelTable& table) {
  add_float<Native<float>>(table, DType::Float32);
  add_float<Native<double>>(table, DType::Float64);
  add_float<Float16Format>(table, DType::Float16);
  add_float<BFloat16Format>(table, DType::BFloat16);
  add_complex<float>(table, DType::Complex64);
  add_complex<double>(table, DType::Complex128);
  add_wrapping<uint32_t>(table, DType::Int32, DType::UInt32);
  add_wrapping<uint64_t>(table, DType::Int64, DType::UInt64);
  add_min_max<int32_t>(table, DType::Int32);
  add_min_max<int64_t>(table, DType::Int64);
  add_integer_avg<SummedInDouble<int32_t>>(table, DType::Int32);
  table.copy_streaming = &copy_streaming;
}

}  // namespace pycoll::PYCOLL_ISA
