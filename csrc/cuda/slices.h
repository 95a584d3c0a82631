// Loops over memory, as the threads of one block share them: 16-byte accesses, several in flight.
// A Context (device_context.h; in tests threads of the host) has
//   thread(), threads(), block(), blocks()
//   load(const Vector*), store(Vector*, Vector)   16 bytes, aligned
#pragma once
#include <cstddef>
#include <cstdint>

#include "cuda/layout.h"
#include "cuda/numerics.h"

namespace pycoll::cuda {

struct alignas(16) Vector {
  uint32_t words[4];
};

// What one block has of a piece, in bytes from the start of working memory: whole vectors, and at one block
// also what is before the first and after the last vector of the piece.
struct Slice {
  Range edges[2];
  Range body;  // aligned to 16
};

// All ranks cut alike: a block meets the same bytes at every rank.
PYCOLL_BOTH Slice slice_of(Range piece, int block, int blocks) {
  const uint64_t first = (piece.begin + 15) / 16 * 16, last = piece.end / 16 * 16;
  if (first >= last) {
    const Range none{piece.end, piece.end};
    return {{block == 0 ? piece : none, none}, none};
  }
  const Range part =
      part_of((last - first) / 16, static_cast<uint64_t>(block), static_cast<uint64_t>(blocks));
  const Range body{first + part.begin * 16, first + part.end * 16};
  if (block != 0) return {{{body.begin, body.begin}, {body.end, body.end}}, body};
  return {{{piece.begin, first}, {last, piece.end}}, body};
}

// Vectors that a thread has in flight, so many that its accumulators still fit in registers.
template <class Format>
inline constexpr int kInFlight = sizeof(typename Format::Storage) == 1 ? 2 : 4;

template <class Context>
PYCOLL_BOTH void copy_slice(Context& context, char* to, const char* from, const Slice& slice) {
  constexpr int kVectors = 8;
  const uint64_t step = static_cast<uint64_t>(context.threads()) * 16;
  uint64_t at = slice.body.begin + static_cast<uint64_t>(context.thread()) * 16;
  for (; at + (kVectors - 1) * step < slice.body.end; at += kVectors * step) {
    Vector vectors[kVectors];
    PYCOLL_UNROLL
    for (int u = 0; u < kVectors; ++u)
      vectors[u] = context.load(reinterpret_cast<const Vector*>(from + at + u * step));
    PYCOLL_UNROLL
    for (int u = 0; u < kVectors; ++u)
      context.store(reinterpret_cast<Vector*>(to + at + u * step), vectors[u]);
  }
  for (; at < slice.body.end; at += step)
    context.store(reinterpret_cast<Vector*>(to + at),
                  context.load(reinterpret_cast<const Vector*>(from + at)));
  for (const Range& edge : slice.edges)
    for (uint64_t i = edge.begin + static_cast<uint64_t>(context.thread()); i < edge.end;
         i += static_cast<uint64_t>(context.threads()))
      to[i] = from[i];
}

// The elements of one vector, as accumulators.
template <class R>
struct Accumulators {
  using Wire = typename R::Wire;
  using Storage = typename Wire::Storage;
  static constexpr int kElements = 16 / static_cast<int>(sizeof(Storage));
  typename R::Acc values[kElements];

  PYCOLL_BOTH explicit Accumulators(const Vector& vector) {
    Storage elements[kElements];
    memcpy(elements, &vector, 16);
    PYCOLL_UNROLL
    for (int i = 0; i < kElements; ++i) values[i] = Wire::decode(elements[i]);
  }
  PYCOLL_BOTH void combine(const Vector& vector) {
    Storage elements[kElements];
    memcpy(elements, &vector, 16);
    PYCOLL_UNROLL
    for (int i = 0; i < kElements; ++i) values[i] = R::combine(values[i], Wire::decode(elements[i]));
  }
  PYCOLL_BOTH Vector rounded() const {
    Storage elements[kElements];
    PYCOLL_UNROLL
    for (int i = 0; i < kElements; ++i) elements[i] = Wire::encode(values[i]);
    Vector vector;
    memcpy(&vector, elements, 16);
    return vector;
  }
};

// to = source(0) op source(1) ..., of two sources or more, in this order and rounded once; `also`, unless
// null, gets the same. `to` may be a source.
template <class R, class Context, class SourceAt>
PYCOLL_BOTH void reduce_slice(Context& context, char* to, char* also, int sources, const SourceAt& source,
                              const Slice& slice) {
  using Wire = typename R::Wire;
  using Storage = typename Wire::Storage;
  constexpr int kVectors = kInFlight<Wire>;
  const uint64_t step = static_cast<uint64_t>(context.threads()) * 16;

  const auto some = [&]<int kCount>(std::integral_constant<int, kCount>, uint64_t at) {
    // Vectors of the first two sources are requested together. Of more sources one vector after another:
    // accumulators of all would not fit in registers.
    Vector sums[kCount], others[kCount];
    const char* const first = source(0);
    const char* const second = source(1);
    PYCOLL_UNROLL
    for (int u = 0; u < kCount; ++u) {
      sums[u] = context.load(reinterpret_cast<const Vector*>(first + at + u * step));
      others[u] = context.load(reinterpret_cast<const Vector*>(second + at + u * step));
    }
    PYCOLL_UNROLL
    for (int u = 0; u < kCount; ++u) {
      Accumulators<R> sum(sums[u]);
      sum.combine(others[u]);
      for (int s = 2; s < sources; ++s)
        sum.combine(context.load(reinterpret_cast<const Vector*>(source(s) + at + u * step)));
      sums[u] = sum.rounded();
    }
    PYCOLL_UNROLL
    for (int u = 0; u < kCount; ++u) {
      context.store(reinterpret_cast<Vector*>(to + at + u * step), sums[u]);
      if (also != nullptr) context.store(reinterpret_cast<Vector*>(also + at + u * step), sums[u]);
    }
  };

  uint64_t at = slice.body.begin + static_cast<uint64_t>(context.thread()) * 16;
  for (; at + (kVectors - 1) * step < slice.body.end; at += kVectors * step)
    some(std::integral_constant<int, kVectors>{}, at);
  for (; at < slice.body.end; at += step) some(std::integral_constant<int, 1>{}, at);

  for (const Range& edge : slice.edges)
    for (uint64_t i = edge.begin + static_cast<uint64_t>(context.thread()) * sizeof(Storage); i < edge.end;
         i += static_cast<uint64_t>(context.threads()) * sizeof(Storage)) {
      const auto element = [&](int s) {
        return Wire::decode(*reinterpret_cast<const Storage*>(source(s) + i));
      };
      typename R::Acc sum = element(0);
      for (int s = 1; s < sources; ++s) sum = R::combine(sum, element(s));
      *reinterpret_cast<Storage*>(to + i) = Wire::encode(sum);
      if (also != nullptr) *reinterpret_cast<Storage*>(also + i) = Wire::encode(sum);
    }
}

// Calls each(i) for the slice's elements of `size` bytes, i counted from the start of working memory.
template <class Context, class Each>
PYCOLL_BOTH void for_each_element(Context& context, const Slice& slice, uint64_t size, const Each& each) {
  const auto step = static_cast<uint64_t>(context.threads());
  const auto visit = [&](const Range& range) {
    for (uint64_t i = range.begin / size + static_cast<uint64_t>(context.thread()); i < range.end / size;
         i += step)
      each(i);
  };
  visit(slice.edges[0]);
  visit(slice.body);
  visit(slice.edges[1]);
}

}  // namespace pycoll::cuda
