// Formats and operators of the CUDA kernels, for the host's compiler and the device's: how an element becomes
// an accumulator and back, and what an operator does in between. The contract is that of reduce/reduce.h, and
// so are the bits: 8- and 16-bit floats accumulate in float32; avg is scaled by a power of two first, so that
// no partial sum overflows; averages of integers are summed in integers twice as wide; min and max keep NaN.
#pragma once
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "reduce/dtype.h"
#include "reduce/reduce.h"

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define PYCOLL_BOTH __host__ __device__ __forceinline__
#else
#define PYCOLL_BOTH inline
#endif
// Arrays that a loop indexes stay in registers only where the loop is unrolled.
#if defined(__CUDA_ARCH__)
#define PYCOLL_UNROLL _Pragma("unroll")
#else
#define PYCOLL_UNROLL
#endif

namespace pycoll::cuda {

template <class To, class From>
PYCOLL_BOTH To bits(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &value, sizeof(To));
  return to;
}

// Accumulates in itself.
template <class T, DType kType>
struct Native {
  using Storage = T;
  using Acc = T;
  static constexpr DType kDType = kType;
  PYCOLL_BOTH static Acc decode(Storage value) { return value; }
  PYCOLL_BOTH static Storage encode(Acc value) { return value; }
};
using F32 = Native<float, DType::Float32>;
using F64 = Native<double, DType::Float64>;
using I32 = Native<int32_t, DType::Int32>;
using I64 = Native<int64_t, DType::Int64>;
using I128 = Native<__int128, DType::Int128>;  // what averages of I64 travel in

struct BF16 {
  using Storage = uint16_t;
  using Acc = float;
  static constexpr DType kDType = DType::BFloat16;
  PYCOLL_BOTH static Acc decode(Storage code) { return bits<float>(static_cast<uint32_t>(code) << 16); }
  PYCOLL_BOTH static Storage encode(Acc value) {
#if defined(__CUDA_ARCH__)
    return __bfloat16_as_ushort(__float2bfloat16_rn(value));
#else
    const uint32_t x = bits<uint32_t>(value);
    return static_cast<Storage>(value != value ? 0x7fc0u : (x + 0x7fffu + ((x >> 16) & 1u)) >> 16);
#endif
  }
};

// An IEEE-like format of 1 + exponent + kMantissaBits bits. kHasInf: the top exponent holds infinity and NaN;
// else only the all-ones code is NaN, and what overflows becomes the greatest number.
template <class Code, int kMantissaBits, int kBias, bool kHasInf, DType kType>
struct SmallFloat {
  using Storage = Code;
  using Acc = float;
  static constexpr DType kDType = kType;
  static constexpr int kShift = 23 - kMantissaBits;
  static constexpr int kBits = 8 * static_cast<int>(sizeof(Code));
  static constexpr uint32_t kMagnitude = (1u << (kBits - 1)) - 1;
  static constexpr uint32_t kMantissa = (1u << kMantissaBits) - 1;
  static constexpr uint32_t kRebias = static_cast<uint32_t>(127 - kBias) << 23;
  static constexpr uint32_t kInfCode = kMagnitude & ~kMantissa;
  static constexpr uint32_t kGreatest = kHasInf ? kInfCode : kMagnitude - 1;
  static constexpr uint32_t kMinNormal = static_cast<uint32_t>(128 - kBias) << 23;
  static constexpr uint32_t kOverflow = ((kHasInf ? kInfCode : kMagnitude) << kShift) + kRebias;
  static constexpr uint32_t kFloatInf = 0x7f800000u;

  PYCOLL_BOTH static Acc decode(Storage code) {
    const uint32_t sign = static_cast<uint32_t>(code >> (kBits - 1)) << 31;
    const uint32_t magnitude = code & kMagnitude;
    // A subnormal is its mantissa times the format's least value, 2^(1 - bias - mantissa bits).
    constexpr float kLeast = 1.0f / static_cast<float>(1u << (kBias + kMantissaBits - 1));
    uint32_t result = (magnitude << kShift) + kRebias;
    if (magnitude <= kMantissa) result = bits<uint32_t>(static_cast<float>(magnitude) * kLeast);
    if (kHasInf && magnitude >= kInfCode)
      result = (magnitude << kShift) | kFloatInf | (magnitude > kInfCode ? 0x00400000u : 0u);
    if (!kHasInf && magnitude == kMagnitude) result = 0x7fc00000u;
    return bits<float>(result | sign);
  }

  PYCOLL_BOTH static Storage encode(Acc value) {
    const uint32_t x = bits<uint32_t>(value);
    const uint32_t sign = (x >> 31) << (kBits - 1);
    const uint32_t magnitude = x & 0x7fffffffu;
    uint32_t result =
        (magnitude - kRebias + ((1u << (kShift - 1)) - 1u) + ((magnitude >> kShift) & 1u)) >> kShift;
    // Adding a number whose last bit weighs as much as the format's least value makes the adder round.
    constexpr uint32_t kMagic = static_cast<uint32_t>(127 + 24 - kBias - kMantissaBits) << 23;
    if (magnitude < kMinNormal)
      result = bits<uint32_t>(bits<float>(magnitude) + bits<float>(kMagic)) - kMagic;
    if (magnitude >= kOverflow || result > kGreatest) result = kGreatest;
    if (magnitude > kFloatInf)
      result = kBits == 16 ? ((magnitude >> kShift) & kMantissa) | kInfCode | 0x200u : kMagnitude;
    return static_cast<Storage>(result | sign);
  }
};
using E4M3 = SmallFloat<uint8_t, 3, 7, false, DType::Float8E4M3FN>;
using E5M2 = SmallFloat<uint8_t, 2, 15, true, DType::Float8E5M2>;

// The device's conversions of float16 are single instructions.
struct F16 : SmallFloat<uint16_t, 10, 15, true, DType::Float16> {
#if defined(__CUDA_ARCH__)
  PYCOLL_BOTH static Acc decode(Storage code) { return __half2float(__ushort_as_half(code)); }
  PYCOLL_BOTH static Storage encode(Acc value) { return __half_as_ushort(__float2half_rn(value)); }
#endif
};

// Bytes, for what is moved and never reduced.
using Raw = Native<uint8_t, DType::UInt8>;

template <class F>
inline constexpr bool kIsInteger =
    std::is_integral_v<typename F::Storage> && std::is_same_v<typename F::Acc, typename F::Storage>;
template <>
inline constexpr bool kIsInteger<I128> = true;  // std::is_integral leaves it out in strict modes

// Unsigned integers as wide: their arithmetic wraps.
template <class T>
struct UnsignedOf {
  using type = std::make_unsigned_t<T>;
};
template <>
struct UnsignedOf<__int128> {
  using type = unsigned __int128;
};

// What an operator must know of the call, prepared once on the host.
struct OpParams {
  int ranks = 1;
  bool power_of_two = true;  // ranks is one: the scale is all of the division
  double scale = 1;          // 2^-ceil(log2 ranks)
  double unscale = 1;
  double factor = 1;  // of this rank, for PremulSum

  static OpParams of(int ranks, double factor = 1) {
    OpParams params;
    params.ranks = ranks;
    params.power_of_two = (ranks & (ranks - 1)) == 0;
    while (params.unscale < ranks) params.unscale *= 2;
    params.scale = 1 / params.unscale;
    params.factor = factor;
    return params;
  }
};

// The format that partial results have between hops: wide enough for an op that scales.
template <class F, Op kOp>
struct WireOf {
  static constexpr bool kScales = kOp == Op::Avg || kOp == Op::PremulSum;
  using Float = std::conditional_t<kScales && std::is_same_v<typename F::Acc, float>, F32, F>;
  using type = Float;
};
template <>
struct WireOf<I32, Op::Avg> {
  using type = I64;
};
template <>
struct WireOf<I64, Op::Avg> {
  using type = I128;
};

// Operator kOp on format F. term() makes a summand of an element, combine() adds one to the others, finish()
// makes an element of the result.
template <class F, Op kOp>
struct Reduction {
  using Format = F;
  using Storage = typename F::Storage;
  using Wire = typename WireOf<F, kOp>::type;
  using Acc = typename Wire::Acc;
  static constexpr Op kOperator = kOp;
  static constexpr Op kWireOp = kOp == Op::Avg || kOp == Op::PremulSum ? Op::Sum : kOp;
  // Whether elements travel as they are.
  static constexpr bool kAsTheyAre = kWireOp == kOp;

  PYCOLL_BOTH static Acc term(Storage value, const OpParams& params, double factor) {
    const Acc wide = static_cast<Acc>(F::decode(value));
    if constexpr (kOp == Op::Avg && !kIsInteger<F>) return wide * static_cast<Acc>(params.scale);
    if constexpr (kOp == Op::PremulSum && !kIsInteger<F>) return wide * static_cast<Acc>(factor);
    if constexpr (kOp == Op::PremulSum && kIsInteger<F>) {
      // Whole numbers; negative ones wrap as the unsigned product does.
      const uint64_t whole =
          factor < 0 ? static_cast<uint64_t>(static_cast<int64_t>(factor)) : static_cast<uint64_t>(factor);
      using U = typename UnsignedOf<Acc>::type;
      return static_cast<Acc>(static_cast<U>(wide) * static_cast<U>(whole));
    }
    return wide;
  }

  PYCOLL_BOTH static Acc combine(Acc a, Acc b) {
    if constexpr (kWireOp == Op::Min) return ((a < b) | (a != a)) ? a : b;
    if constexpr (kWireOp == Op::Max) return ((a > b) | (a != a)) ? a : b;
    if constexpr (kIsInteger<Wire>) {
      using U = typename UnsignedOf<Acc>::type;
      if constexpr (kWireOp == Op::Sum) return static_cast<Acc>(static_cast<U>(a) + static_cast<U>(b));
      if constexpr (kWireOp == Op::Prod) return static_cast<Acc>(static_cast<U>(a) * static_cast<U>(b));
    } else {
      if constexpr (kWireOp == Op::Sum) return a + b;
      if constexpr (kWireOp == Op::Prod) return a * b;
    }
  }

  PYCOLL_BOTH static Storage finish(Acc value, const OpParams& params) {
    if constexpr (kOp == Op::Avg && kIsInteger<F>) return static_cast<Storage>(value / params.ranks);
    if constexpr (kOp == Op::Avg && !kIsInteger<F>) {
      if (!params.power_of_two)
        value = value / static_cast<Acc>(params.ranks) * static_cast<Acc>(params.unscale);
      return F::encode(static_cast<typename F::Acc>(value));
    }
    return F::encode(static_cast<typename F::Acc>(value));
  }
};

}  // namespace pycoll::cuda
