// How a dtype is loaded into its accumulator and rounded back. Included by kernels.h only.
// The conversions equal torch's scalar casts bit for bit, round to nearest even, and give the same bits
// whether an instruction (F16C) or the integer arithmetic here does them. All are written without branches,
// so they vectorise.

constexpr uint32_t kSignBit = 0x80000000u;
constexpr uint32_t kFloatInf = 0x7f800000u;

// Accumulates in itself.
template <class T>
struct Native {
  using Element = T;
  using Acc = T;
  static constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(T));
  template <int L>
  PYCOLL_INLINE static Vec<T, L> decode(Vec<T, L> v) {
    return v;
  }
  template <int L>
  PYCOLL_INLINE static Vec<T, L> encode(Vec<T, L> v) {
    return v;
  }
};

// For types the compiler has no vectors of (128-bit integers, complex numbers).
template <class T>
struct Scalar : Native<T> {
  static constexpr int kLanes = 1;
};

struct BFloat16Format {
  using Element = uint16_t;
  using Acc = float;
  static constexpr int kLanes = kVectorBytes / 4;
  template <int L>
  PYCOLL_INLINE static Vec<float, L> decode(Vec<uint16_t, L> v) {
    return bits<Vec<float, L>>(widen_codes<L>(v) << 16);
  }
  template <int L>
  PYCOLL_INLINE static Vec<uint16_t, L> encode(Vec<float, L> v) {
    using U = Vec<uint32_t, L>;
    const U x = bits<U>(v);
    const U rounded = (x + 0x7fffu + ((x >> 16) & 1u)) >> 16;
    const U nan = broadcast<uint32_t, L>(0x7fc0u);
    return narrow_codes<uint16_t, L>(v != v ? nan : rounded);
  }
};

// An IEEE-like binary format of 1 + exponent + M bits. HasInf: the top exponent holds infinity and NaN; else
// (e4m3fn) only the all-ones code is NaN, and what overflows becomes NaN.
template <class Storage, int M, int Bias, bool HasInf>
struct SmallFloatFormat {
  using Element = Storage;
  using Acc = float;
  static constexpr int kLanes = kVectorBytes / 4;
  static constexpr int kShift = 23 - M;
  static constexpr int kBits = 8 * static_cast<int>(sizeof(Storage));
  static constexpr uint32_t kSign = 1u << (kBits - 1);
  static constexpr uint32_t kMagnitude = kSign - 1;
  static constexpr uint32_t kMantissa = (1u << M) - 1;
  static constexpr uint32_t kRebias = static_cast<uint32_t>(127 - Bias) << 23;
  static constexpr uint32_t kInfCode = kMagnitude & ~kMantissa;
  static constexpr uint32_t kGreatest = HasInf ? kInfCode : kMagnitude - 1;
  static constexpr uint32_t kMinNormal = static_cast<uint32_t>(128 - Bias) << 23;  // as float32 bits
  // The least float32 magnitude, as bits, that is past kGreatest before any rounding.
  static constexpr uint32_t kOverflow = ((HasInf ? kInfCode : kMagnitude) << kShift) + kRebias;

  template <int L>
  PYCOLL_INLINE static Vec<float, L> decode(Vec<Storage, L> v) {
    using U = Vec<uint32_t, L>;
    const U code = widen_codes<L>(v);
    const U sign = (code & kSign) << (32 - kBits);
    const U magnitude = code & kMagnitude;
    const U normal = (magnitude << kShift) + kRebias;
    // A subnormal is its mantissa times the format's least value, 2^(1 - Bias - M).
    constexpr float kLeast = 1.0f / static_cast<float>(1u << (Bias + M - 1));
    const U subnormal = bits<U>(convert<float, L>(bits<Vec<int32_t, L>>(magnitude)) * kLeast);
    U result = magnitude > kMantissa ? normal : subnormal;
    if constexpr (HasInf) {
      const U special = (magnitude << kShift) | kFloatInf;
      const U quiet = special | 0x00400000u;
      result = magnitude >= kInfCode ? (magnitude > kInfCode ? quiet : special) : result;
    } else {
      const U nan = broadcast<uint32_t, L>(0x7fc00000u);
      result = magnitude == kMagnitude ? nan : result;
    }
    return bits<Vec<float, L>>(result | sign);
  }

  template <int L>
  PYCOLL_INLINE static Vec<Storage, L> encode(Vec<float, L> v) {
    using U = Vec<uint32_t, L>;
    const U x = bits<U>(v);
    const U sign = (x & kSignBit) >> (32 - kBits);
    const U magnitude = x & ~kSignBit;
    const U normal =
        (magnitude - kRebias + ((1u << (kShift - 1)) - 1u) + ((magnitude >> kShift) & 1u)) >> kShift;
    // Adding a number whose last bit weighs as much as the format's least value makes the adder round.
    constexpr uint32_t kMagic = static_cast<uint32_t>(127 + 24 - Bias - M) << 23;
    const Vec<float, L> magic = bits<Vec<float, L>>(broadcast<uint32_t, L>(kMagic));
    const U subnormal = bits<U>(bits<Vec<float, L>>(magnitude) + magic) - kMagic;
    U result = magnitude < kMinNormal ? subnormal : normal;
    const U overflow = broadcast<uint32_t, L>(kGreatest);
    result = ((magnitude >= kOverflow) | (result > kGreatest)) ? overflow : result;
    result = magnitude > kFloatInf ? nan_code<L>(magnitude) : result;
    return narrow_codes<Storage, L>(result | sign);
  }

  // float16 keeps the payload's upper bits, as the instruction does; the 8-bit formats have one NaN.
  template <int L>
  PYCOLL_INLINE static Vec<uint32_t, L> nan_code(Vec<uint32_t, L> magnitude) {
    if constexpr (kBits == 16) {
      return ((magnitude >> kShift) & kMantissa) | (kInfCode | 0x200u);
    } else {
      return broadcast<uint32_t, L>(kMagnitude);
    }
  }
};

using Float8E4M3FNFormat = SmallFloatFormat<uint8_t, 3, 7, false>;
using Float8E5M2Format = SmallFloatFormat<uint8_t, 2, 15, true>;
using PortableFloat16Format = SmallFloatFormat<uint16_t, 10, 15, true>;

#if defined(__F16C__)
struct Float16Format {
  using Element = uint16_t;
  using Acc = float;
  static constexpr int kLanes = kVectorBytes / 4;
  template <int L>
  PYCOLL_INLINE static Vec<float, L> decode(Vec<uint16_t, L> v) {
    if constexpr (L == 1) {
      return _cvtsh_ss(v);
    } else if constexpr (L == 8) {
      return bits<Vec<float, L>>(_mm256_cvtph_ps(bits<__m128i>(v)));
    } else {
#if defined(__AVX512F__)
      static_assert(L == 16);
      return bits<Vec<float, L>>(_mm512_cvtph_ps(bits<__m256i>(v)));
#endif
    }
  }
  template <int L>
  PYCOLL_INLINE static Vec<uint16_t, L> encode(Vec<float, L> v) {
    constexpr int kNearestEven = 0;
    if constexpr (L == 1) {
      return _cvtss_sh(v, kNearestEven);
    } else if constexpr (L == 8) {
      return bits<Vec<uint16_t, L>>(_mm256_cvtps_ph(bits<__m256>(v), kNearestEven));
    } else {
#if defined(__AVX512F__)
      static_assert(L == 16);
      return bits<Vec<uint16_t, L>>(_mm512_cvtps_ph(bits<__m512>(v), kNearestEven));
#endif
    }
  }
};
#else
using Float16Format = PortableFloat16Format;
#endif

// Integers up to 32 bits, for Avg: a double holds the sum of 2^20 of them exactly, and every processor can
// convert, add and divide vectors of doubles.
template <class T>
struct SummedInDouble {
  using Element = T;
  using Acc = double;
  static constexpr int kLanes = kVectorBytes / 8;
  template <int L>
  PYCOLL_INLINE static Vec<double, L> decode(Vec<T, L> v) {
    return convert<double, L>(convert<int32_t, L>(v));
  }
  template <int L>
  PYCOLL_INLINE static Vec<T, L> encode(Vec<double, L> v) {
    return convert<T, L>(convert<int32_t, L>(v));
  }
};

// Integers whose Avg is summed in a wider integer.
template <class T, class Wide>
struct SummedInWide {
  using Element = T;
  using Acc = Wide;
  static constexpr int kLanes = 1;
  template <int L>
  PYCOLL_INLINE static Wide decode(T v) {
    return static_cast<Wide>(v);
  }
  template <int L>
  PYCOLL_INLINE static T encode(Wide v) {
    return static_cast<T>(v);
  }
};

// One byte a truth value; anything but zero is true, results are 0 or 1.
struct BoolFormat {
  using Element = uint8_t;
  using Acc = uint8_t;
  static constexpr int kLanes = kVectorBytes;
  template <int L>
  PYCOLL_INLINE static Vec<uint8_t, L> decode(Vec<uint8_t, L> v) {
    if constexpr (L == 1) {
      return v != 0;
    } else {
      return bits<Vec<uint8_t, L>>(v != 0) & 1;
    }
  }
  template <int L>
  PYCOLL_INLINE static Vec<uint8_t, L> encode(Vec<uint8_t, L> v) {
    return v;
  }
};
