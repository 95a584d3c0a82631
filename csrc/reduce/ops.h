// What an op does to summands in the accumulator. Included by kernels.h only.
// Each op is made from the call once, then for each vector of elements: term() on every summand, combine() in
// the order of the sources, finish() on the result.

// Lane-wise a * b. C++ promotes narrow unsigned scalars to int, whose product may overflow: multiply as
// unsigned.
template <class V>
PYCOLL_INLINE V multiply(V a, V b) {
  if constexpr (sizeof(V) <= 2) {
    return static_cast<V>(static_cast<uint32_t>(a) * static_cast<uint32_t>(b));
  } else {
    return a * b;
  }
}

struct KeepTerms {
  explicit KeepTerms(const ReduceCall&) {}
  template <int L, class V>
  PYCOLL_INLINE V term(V v, size_t) const {
    return v;
  }
  template <int L, class V>
  PYCOLL_INLINE V finish(V v) const {
    return v;
  }
};

template <class Acc>
struct SumOp : KeepTerms {
  using KeepTerms::KeepTerms;
  template <int L, class V>
  PYCOLL_INLINE V combine(V a, V b) const {
    return a + b;
  }
};

template <class Acc>
struct ProdOp : KeepTerms {
  using KeepTerms::KeepTerms;
  template <int L, class V>
  PYCOLL_INLINE V combine(V a, V b) const {
    return multiply(a, b);
  }
};

// The first NaN wins; of equal values (so of -0 and 0) the later one.
template <class Acc>
struct MinOp : KeepTerms {
  using KeepTerms::KeepTerms;
  template <int L, class V>
  PYCOLL_INLINE V combine(V a, V b) const {
    return ((a < b) | (a != a)) ? a : b;
  }
};

template <class Acc>
struct MaxOp : KeepTerms {
  using KeepTerms::KeepTerms;
  template <int L, class V>
  PYCOLL_INLINE V combine(V a, V b) const {
    return ((a > b) | (a != a)) ? a : b;
  }
};

template <class Acc>
struct BitAndOp : KeepTerms {
  using KeepTerms::KeepTerms;
  template <int L, class V>
  PYCOLL_INLINE V combine(V a, V b) const {
    return a & b;
  }
};

template <class Acc>
struct BitOrOp : KeepTerms {
  using KeepTerms::KeepTerms;
  template <int L, class V>
  PYCOLL_INLINE V combine(V a, V b) const {
    return a | b;
  }
};

template <class Acc>
struct BitXorOp : KeepTerms {
  using KeepTerms::KeepTerms;
  template <int L, class V>
  PYCOLL_INLINE V combine(V a, V b) const {
    return a ^ b;
  }
};

template <class Acc>
struct PremulSumOp {
  const double* factors;
  explicit PremulSumOp(const ReduceCall& call) : factors(call.factors) {}
  template <int L, class V>
  PYCOLL_INLINE V term(V v, size_t source) const {
    return v * broadcast<Acc, L>(static_cast<Acc>(factors[source]));
  }
  template <int L, class V>
  PYCOLL_INLINE V combine(V a, V b) const {
    return a + b;
  }
  template <int L, class V>
  PYCOLL_INLINE V finish(V v) const {
    return v;
  }
};

// Factors are whole numbers here; negative ones wrap as the unsigned product does.
template <class Acc>
struct IntegerPremulSumOp {
  const double* factors;
  explicit IntegerPremulSumOp(const ReduceCall& call) : factors(call.factors) {}
  template <int L, class V>
  PYCOLL_INLINE V term(V v, size_t source) const {
    const double factor = factors[source];
    const uint64_t whole =
        factor < 0 ? static_cast<uint64_t>(static_cast<int64_t>(factor)) : static_cast<uint64_t>(factor);
    return multiply(v, broadcast<Acc, L>(static_cast<Acc>(whole)));
  }
  template <int L, class V>
  PYCOLL_INLINE V combine(V a, V b) const {
    return static_cast<V>(a + b);
  }
  template <int L, class V>
  PYCOLL_INLINE V finish(V v) const {
    return v;
  }
};

// 2^exponent, |exponent| <= 31.
template <class Acc>
PYCOLL_INLINE Acc power_of_two(int exponent) {
  return exponent < 0 ? Acc(1) / static_cast<Acc>(uint32_t(1) << -exponent)
                      : static_cast<Acc>(uint32_t(1) << exponent);
}

inline int ceil_log2(int n) {
  return n <= 1 ? 0 : 32 - __builtin_clz(static_cast<unsigned>(n) - 1);
}

// Divides a sum of terms that were scaled by 2^-ceil(log2 divisor), so that no partial sum overflowed. The
// scale is undone after the division, when the result fits if the mean does. Both steps but the division are
// exact (above the subnormal numbers), so the bits are those of sum / divisor. A power of two needs neither.
template <class Acc>
struct ScaledDivision {
  bool exact;
  Acc divisor;
  Acc unscale;
  explicit ScaledDivision(int n)
      : exact((n & (n - 1)) == 0), divisor(static_cast<Acc>(n)), unscale(power_of_two<Acc>(ceil_log2(n))) {}
  template <int L, class V>
  PYCOLL_INLINE V divide(V scaled) const {
    if (exact) return scaled;
    return scaled / broadcast<Acc, L>(divisor) * broadcast<Acc, L>(unscale);
  }
};

template <class Acc>
struct FloatAvgOp {
  Acc scale;
  ScaledDivision<Acc> division;
  explicit FloatAvgOp(const ReduceCall& call)
      : scale(power_of_two<Acc>(-ceil_log2(call.divisor))), division(call.divisor) {}
  template <int L, class V>
  PYCOLL_INLINE V term(V v, size_t) const {
    return v * broadcast<Acc, L>(scale);
  }
  template <int L, class V>
  PYCOLL_INLINE V combine(V a, V b) const {
    return a + b;
  }
  template <int L, class V>
  PYCOLL_INLINE V finish(V v) const {
    return division.template divide<L>(v);
  }
};

// Truncates where the format converts back: a double quotient of such integers never rounds up to the next
// integer.
template <class Acc>
struct IntegerAvgOp {
  Acc divisor;
  explicit IntegerAvgOp(const ReduceCall& call) : divisor(static_cast<Acc>(call.divisor)) {}
  template <int L, class V>
  PYCOLL_INLINE V term(V v, size_t) const {
    return v;
  }
  template <int L, class V>
  PYCOLL_INLINE V combine(V a, V b) const {
    return a + b;
  }
  template <int L, class V>
  PYCOLL_INLINE V finish(V v) const {
    return v / broadcast<Acc, L>(divisor);
  }
};

// The plain formula. C's complex multiplication repairs infinities at several times the cost; NumPy's does
// not.
template <class Acc>
struct Complex {
  Acc real;
  Acc imaginary;
};

template <class Acc>
PYCOLL_INLINE Complex<Acc> operator*(Complex<Acc> a, Complex<Acc> b) {
  return {a.real * b.real - a.imaginary * b.imaginary, a.real * b.imaginary + a.imaginary * b.real};
}
