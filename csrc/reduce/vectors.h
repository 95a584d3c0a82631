// Vectors of the width that this translation unit is compiled for, and scalars under the same names (one
// lane), so that a kernel is written once. Included by kernels.h only, inside the namespace of one
// instruction set.
//
// Only compiler built-ins are used: a std:: template instantiated here would be emitted with this unit's
// instructions under a name that it shares with the units of every other processor.

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

template <class T, int L>
struct VectorOf {
  typedef T type __attribute__((vector_size(sizeof(T) * L)));
};
template <class T>
struct VectorOf<T, 1> {
  typedef T type;
};
// L lanes of T.
template <class T, int L>
using Vec = typename VectorOf<T, L>::type;

template <class V>
PYCOLL_INLINE V load(const char* from) {
  V v;
  __builtin_memcpy(&v, from, sizeof(V));
  return v;
}

template <class V>
PYCOLL_INLINE void store(char* to, V v) {
  __builtin_memcpy(to, &v, sizeof(V));
}

// Writes around the cache. `to` must be aligned to sizeof(V).
template <class V>
PYCOLL_INLINE void store_streaming(char* to, V v) {
#if defined(__AVX512F__)
  if constexpr (sizeof(V) == 64) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), load<__m512i>(reinterpret_cast<const char*>(&v)));
    return;
  }
#endif
#if defined(__AVX2__)
  if constexpr (sizeof(V) == 32) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), load<__m256i>(reinterpret_cast<const char*>(&v)));
    return;
  }
#endif
#if defined(__SSE2__)
  if constexpr (sizeof(V) == 16) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to), load<__m128i>(reinterpret_cast<const char*>(&v)));
    return;
  }
  if constexpr (sizeof(V) == 8) {
    _mm_stream_si64(reinterpret_cast<long long*>(to), load<long long>(reinterpret_cast<const char*>(&v)));
    return;
  }
#endif
  store(to, v);
}

// Streaming stores are not ordered with the flag that publishes the data: call this after the last one.
inline void finish_streaming() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

// The same bits under another type.
template <class To, class From>
PYCOLL_INLINE To bits(From v) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &v, sizeof(To));
  return to;
}

// Lane by lane as static_cast does.
template <class To, int L, class From>
PYCOLL_INLINE Vec<To, L> convert(From v) {
  if constexpr (L == 1) {
    return static_cast<To>(v);
  } else {
    return __builtin_convertvector(v, Vec<To, L>);
  }
}

// convert<uint32_t> of 8- and 16-bit codes. Compilers take the vectors apart for it, so it is spelled out.
template <int L, class From>
PYCOLL_INLINE Vec<uint32_t, L> widen_codes(From v) {
  using To [[maybe_unused]] = Vec<uint32_t, L>;
#if defined(__AVX512F__)
  if constexpr (L == 16 && sizeof(From) == 32) return bits<To>(_mm512_cvtepu16_epi32(bits<__m256i>(v)));
  if constexpr (L == 16 && sizeof(From) == 16) return bits<To>(_mm512_cvtepu8_epi32(bits<__m128i>(v)));
#elif defined(__AVX2__)
  if constexpr (L == 8 && sizeof(From) == 16) return bits<To>(_mm256_cvtepu16_epi32(bits<__m128i>(v)));
  if constexpr (L == 8 && sizeof(From) == 8) {
    return bits<To>(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bits<long long>(v))));
  }
#endif
  return convert<uint32_t, L>(v);
}

// The way back, for values that fit Code.
template <class Code, int L, class From>
PYCOLL_INLINE Vec<Code, L> narrow_codes(From v) {
  using To [[maybe_unused]] = Vec<Code, L>;
#if defined(__AVX512F__)
  if constexpr (L == 16 && sizeof(Code) == 2) return bits<To>(_mm512_cvtepi32_epi16(bits<__m512i>(v)));
  if constexpr (L == 16 && sizeof(Code) == 1) return bits<To>(_mm512_cvtepi32_epi8(bits<__m512i>(v)));
#elif defined(__AVX2__)
  if constexpr (L == 8) {
    const __m256i wide = bits<__m256i>(v);
    const __m128i half = _mm_packus_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
    if constexpr (sizeof(Code) == 2) return bits<To>(half);
    if constexpr (sizeof(Code) == 1) {
      return bits<To>(static_cast<long long>(_mm_cvtsi128_si64(_mm_packus_epi16(half, half))));
    }
  }
#endif
  return convert<Code, L>(v);
}

template <class T, int L>
PYCOLL_INLINE Vec<T, L> broadcast(T value) {
  if constexpr (L == 1) {
    return value;
  } else {
    return value - Vec<T, L>{};
  }
}
