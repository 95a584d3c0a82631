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
inline V load(const char* from) {
  V v;
  __builtin_memcpy(&v, from, sizeof(V));
  return v;
}

template <class V>
inline void store(char* to, V v) {
  __builtin_memcpy(to, &v, sizeof(V));
}

// Writes around the cache. `to` must be aligned to sizeof(V).
template <class V>
inline void store_streaming(char* to, V v) {
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
inline To bits(From v) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &v, sizeof(To));
  return to;
}

// Lane by lane as static_cast does.
template <class To, int L, class From>
inline Vec<To, L> convert(From v) {
  if constexpr (L == 1) {
    return static_cast<To>(v);
  } else {
    return __builtin_convertvector(v, Vec<To, L>);
  }
}

template <class T, int L>
inline Vec<T, L> broadcast(T value) {
  if constexpr (L == 1) {
    return value;
  } else {
    return value - Vec<T, L>{};
  }
}
