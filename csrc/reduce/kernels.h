// The reduction kernels. Every kernels_*.cpp defines PYCOLL_ISA, the namespace of its instruction set, and
// includes this file once; it then defines that set's KernelTable from what is here.
#include <cstddef>
#include <cstdint>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "reduce/kernel_table.h"

// What a block calls must be in the block, or every vector goes through memory.
#define PYCOLL_INLINE [[gnu::always_inline]] inline

namespace pycoll::PYCOLL_ISA {
#include "reduce/vectors.h"
//
#include "reduce/formats.h"
#include "reduce/ops.h"

// The buffers of a call, in registers: what is written through one of them could, for all the compiler knows,
// be the call itself. N: how many sources, or 0 where only the call knows.
template <int N>
struct Buffers {
  const char* sources[N];
  char* destination;
  void* const* destinations;
  size_t destination_count;
  explicit Buffers(const ReduceCall& call)
      : destination(static_cast<char*>(call.destinations[0])),
        destinations(call.destinations),
        destination_count(call.destination_count) {
    for (int k = 0; k < N; ++k) sources[k] = static_cast<const char*>(call.sources[k]);
  }
  const char* source(size_t k) const { return sources[k]; }
  size_t source_count() const { return N; }
};

template <>
struct Buffers<0> {
  const void* const* sources;
  size_t count;
  char* destination;
  void* const* destinations;
  size_t destination_count;
  explicit Buffers(const ReduceCall& call)
      : sources(call.sources),
        count(call.source_count),
        destination(static_cast<char*>(call.destinations[0])),
        destinations(call.destinations),
        destination_count(call.destination_count) {}
  const char* source(size_t k) const { return static_cast<const char*>(sources[k]); }
  size_t source_count() const { return count; }
};

// How a block reaches memory: whole vectors, through the cache or around it, or the first few elements of
// one.
struct Whole {
  bool streaming = false;
  template <class V>
  V read(const char* from) const {
    return load<V>(from);
  }
  template <class V>
  void write(char* to, V v) const {
    if (streaming) {
      store_streaming(to, v);
    } else {
      store(to, v);
    }
  }
};

#if defined(__AVX512BW__)
// The first `bytes` of a vector; the others are neither read nor written. The mask is of bytes: it does for
// any element.
struct Partial {
  __mmask64 mask;
  explicit Partial(size_t bytes) : mask((uint64_t{1} << bytes) - 1) {}
  template <class V>
  V read(const char* from) const {
    if constexpr (sizeof(V) == 64) {
      return bits<V>(_mm512_maskz_loadu_epi8(mask, from));
    } else if constexpr (sizeof(V) == 32) {
      return bits<V>(_mm256_maskz_loadu_epi8(static_cast<__mmask32>(mask), from));
    } else {
      static_assert(sizeof(V) == 16);
      return bits<V>(_mm_maskz_loadu_epi8(static_cast<__mmask16>(mask), from));
    }
  }
  template <class V>
  void write(char* to, V v) const {
    if constexpr (sizeof(V) == 64) {
      _mm512_mask_storeu_epi8(to, mask, bits<__m512i>(v));
    } else if constexpr (sizeof(V) == 32) {
      _mm256_mask_storeu_epi8(to, static_cast<__mmask32>(mask), bits<__m256i>(v));
    } else {
      static_assert(sizeof(V) == 16);
      _mm_mask_storeu_epi8(to, static_cast<__mmask16>(mask), bits<__m128i>(v));
    }
  }
};
#endif

struct Single {
  template <class V>
  V read(const char* from) const {
    return load<V>(from);
  }
  template <class V>
  void write(char* to, V v) const {
    store(to, v);
  }
};

// Elements [i, i + L * U) of one call: every source is read once, all of them are combined in registers.
template <class Format, class Op, int L, int U, class From, class Access>
PYCOLL_INLINE void reduce_block(const From& buffers, const Op& op, size_t i, const Access& access) {
  using Element = typename Format::Element;
  using In = Vec<Element, L>;
  using Wide = Vec<typename Format::Acc, L>;
  const size_t at = i * sizeof(Element);
  Wide acc[U];
  const char* first = buffers.source(0) + at;
#pragma GCC unroll 4
  for (int u = 0; u < U; ++u) {
    const In in = access.template read<In>(first + u * sizeof(In));
    acc[u] = op.template term<L, Wide>(Format::template decode<L>(in), 0);
  }
  for (size_t k = 1; k < buffers.source_count(); ++k) {
    const char* from = buffers.source(k) + at;
#pragma GCC unroll 4
    for (int u = 0; u < U; ++u) {
      const In in = access.template read<In>(from + u * sizeof(In));
      acc[u] =
          op.template combine<L, Wide>(acc[u], op.template term<L, Wide>(Format::template decode<L>(in), k));
    }
  }
  In out[U];
#pragma GCC unroll 4
  for (int u = 0; u < U; ++u) out[u] = Format::template encode<L>(op.template finish<L, Wide>(acc[u]));
#pragma GCC unroll 4
  for (int u = 0; u < U; ++u) access.write(buffers.destination + at + u * sizeof(In), out[u]);
  for (size_t d = 1; d < buffers.destination_count; ++d) {
    char* to = static_cast<char*>(buffers.destinations[d]) + at;
#pragma GCC unroll 4
    for (int u = 0; u < U; ++u) access.write(to + u * sizeof(In), out[u]);
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

// The last elements, fewer than a vector.
template <class Format, class Op, class From>
PYCOLL_INLINE void reduce_tail(const From& buffers, const Op& op, size_t i, size_t count) {
#if defined(__AVX512BW__)
  if constexpr (Format::kLanes > 1) {
    if (count - i > 4) {
      reduce_block<Format, Op, Format::kLanes, 1>(buffers, op, i,
                                                  Partial{(count - i) * sizeof(typename Format::Element)});
      return;
    }
  }
#endif
  for (; i < count; ++i) reduce_block<Format, Op, 1, 1>(buffers, op, i, Single{});
}

// Apart from the loop, whose registers a call of a few elements need not save.
template <class Format, class Op, int N>
[[gnu::noinline]] void reduce_few(const ReduceCall& call) {
  reduce_tail<Format, Op>(Buffers<N>(call), Op(call), 0, call.count);
}

template <class Format, class Op, int N>
[[gnu::noinline]] void reduce_loop(const ReduceCall& call) {
  constexpr int L = Format::kLanes;
  constexpr int U = 4;
  constexpr size_t kElement = sizeof(typename Format::Element);
  const Op op(call);
  const Buffers<N> buffers(call);
  const size_t count = call.count;
  size_t i = 0;
  if constexpr (L > 1) {
    Whole access;
    if (call.stores == Stores::NonTemporal && count >= 4 * L * U) {
      const ptrdiff_t lead = elements_until_aligned(call, kElement, L * kElement);
      access.streaming = lead >= 0;
      for (; static_cast<ptrdiff_t>(i) < lead; ++i) reduce_block<Format, Op, 1, 1>(buffers, op, i, Single{});
    }
    for (; i + L * U <= count; i += L * U) reduce_block<Format, Op, L, U>(buffers, op, i, access);
    if (access.streaming) finish_streaming();
    for (; i + L <= count; i += L) reduce_block<Format, Op, L, 1>(buffers, op, i, Whole{});
  }
  reduce_tail<Format, Op>(buffers, op, i, count);
}

template <class Format, class Op, int N>
PYCOLL_INLINE void reduce_sources(const ReduceCall& call) {
  if (call.count < Format::kLanes) {
    reduce_few<Format, Op, N>(call);
  } else {
    reduce_loop<Format, Op, N>(call);
  }
}

// Two sources, those of a hop or of a pair of ranks, get code of their own.
template <class Format, template <class> class OpOf>
void reduce_kernel(const ReduceCall& call) {
  using Op = OpOf<typename Format::Acc>;
  if (call.source_count == 2) {
    reduce_sources<Format, Op, 2>(call);
  } else {
    reduce_sources<Format, Op, 0>(call);
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
PYCOLL_INLINE void widen_block(const char* source, char* destination, size_t i, typename Format::Acc scale) {
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
PYCOLL_INLINE void narrow_block(const char* source, char* destination, size_t i,
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

// Aligned stores from wherever the source is. The C library's memcpy may use `rep movsb`, which on some
// processors slows to a third where the destination lies a little past the source within a page.
template <bool Streaming>
void copy_vectors(void* destination, const void* source, size_t bytes) {
  using Line = Vec<uint8_t, kVectorBytes>;
  constexpr size_t kBlock = 4 * kVectorBytes;
  auto* to = static_cast<char*>(destination);
  const auto* from = static_cast<const char*>(source);
  if (bytes < 2 * kBlock) {
    __builtin_memcpy(to, from, bytes);
    return;
  }
  const size_t lead = -reinterpret_cast<uintptr_t>(to) % kVectorBytes;
  store(to, load<Line>(from));
  size_t i = lead;
  for (; i + kBlock <= bytes; i += kBlock) {
    Line lines[4];
#pragma GCC unroll 4
    for (int u = 0; u < 4; ++u) lines[u] = load<Line>(from + i + u * kVectorBytes);
#pragma GCC unroll 4
    for (int u = 0; u < 4; ++u) Whole{Streaming}.write(to + i + u * kVectorBytes, lines[u]);
  }
  for (; i + kVectorBytes <= bytes; i += kVectorBytes) store(to + i, load<Line>(from + i));
  const size_t last = bytes - kVectorBytes;
  store(to + last, load<Line>(from + last));
  if (Streaming) finish_streaming();
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

// What every instruction set compiles for itself; the baseline adds the rest.
constexpr void add_hot_kernels(KernelTable& table) {
  add_float<Native<float>>(table, DType::Float32);
  add_float<Native<double>>(table, DType::Float64);
  add_float<Float16Format>(table, DType::Float16);
  add_float<BFloat16Format>(table, DType::BFloat16);
  add_float<Float8E4M3FNFormat>(table, DType::Float8E4M3FN);
  add_float<Float8E5M2Format>(table, DType::Float8E5M2);
  add_complex<float>(table, DType::Complex64);
  add_complex<double>(table, DType::Complex128);
  add_wrapping<uint32_t>(table, DType::Int32, DType::UInt32);
  add_wrapping<uint64_t>(table, DType::Int64, DType::UInt64);
  add_min_max<int32_t>(table, DType::Int32);
  add_min_max<int64_t>(table, DType::Int64);
  add_integer_avg<SummedInDouble<int32_t>>(table, DType::Int32);
  table.copy = &copy_vectors<false>;
  table.copy_streaming = &copy_vectors<true>;
}

}  // namespace pycoll::PYCOLL_ISA
