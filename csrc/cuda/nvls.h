// Collectives through the NVLink switch (NVLS): memory of all ranks is bound to one multicast object, at
// whose addresses a load returns the sum over the ranks and a store reaches them all. An allreduce then moves
// every byte to the switch once and back once, whatever the number of ranks.
//
// Each block has its part of every shard and meets only the same block of other ranks. Where it meets them,
// everybody's stores so far are seen by everybody: after the inputs are in working memory, and after the
// shards are reduced, which also is when working memory may be filled anew.
//
// Numerics: a shard is reduced by one rank's loads, so all ranks get the same bits; in what order the switch
// adds is its own affair. 16-bit floats accumulate in float32 and are rounded once. avg and premul_sum are
// scaled before, in float32. min and max (of 16-bit floats; PTX has no others) may lose a NaN.
//
// Further needs of a Context, beside slices.h's, interpreter.h's sync and all:
//   load_reduced<R>(const char*)          16 bytes at a multicast address, reduced over the ranks in R's wire
//                                         format
//   store_everywhere(char*, Vector)       16 bytes at a multicast address
//   raise_everywhere(uint32_t*)           adds 1 at a multicast address, release
//   await_count(const uint32_t*, value)   acquire, until so many were added, modulo 2^32; false: aborted
//   fence_aliases()                       orders accesses at the two addresses that working memory has
#pragma once
#include "cuda/layout.h"
#include "cuda/slices.h"

namespace pycoll::cuda {

enum class NvlsKind : int32_t { AllReduce, ReduceScatter, AllGather };

struct NvlsCall {
  Layout layout;
  char* heap;   // this rank's
  char* multi;  // all ranks' at once
  int rank;
  NvlsKind kind;
  // Of the user's buffer, or of each of its blocks (a shard of it, a rank's part) in this window.
  uint64_t elements;
  uint64_t stride;  // elements from one block of the user's buffer to the next
  const char* input;
  char* output;
  OpParams params;
};

// What the switch can reduce.
template <class R>
inline constexpr bool kNvlsReduces =
    (std::is_same_v<typename R::Wire, F32> && R::kWireOp == Op::Sum) ||
    ((std::is_same_v<typename R::Wire, F16> || std::is_same_v<typename R::Wire, BF16>) &&
     (R::kWireOp == Op::Sum || R::kWireOp == Op::Min || R::kWireOp == Op::Max));

// Vectors that a block of `elements` takes in working memory.
PYCOLL_BOTH uint64_t nvls_vectors(uint64_t elements, uint64_t wire_size) {
  return (elements * wire_size + 15) / 16;
}

template <class R, class Context>
struct NvlsBlock {
  using Storage = typename R::Storage;
  using Wire = typename R::Wire;
  static constexpr int kElements = 16 / static_cast<int>(sizeof(typename Wire::Storage));

  Context& context;
  const NvlsCall& call;
  uint32_t meetings;

  PYCOLL_BOTH NvlsBlock(Context& used, const NvlsCall& made) : context(used), call(made) {
    meetings = *counter();
  }
  PYCOLL_BOTH uint32_t* counter() const {
    return reinterpret_cast<uint32_t*>(call.heap + call.layout.multicast_meetings(context.block()));
  }
  PYCOLL_BOTH bool meet() {
    const size_t flag = call.layout.multicast_flag(context.block());
    context.fence_aliases();
    context.sync();
    ++meetings;
    bool fine = true;
    if (context.thread() == 0) {
      context.raise_everywhere(reinterpret_cast<uint32_t*>(call.multi + flag));
      fine = context.await_count(reinterpret_cast<const uint32_t*>(call.heap + flag),
                                 meetings * static_cast<uint32_t>(call.layout.ranks));
    }
    fine = context.all(fine);
    context.fence_aliases();
    return fine;
  }
  // After the last meeting.
  PYCOLL_BOTH bool end() const {
    if (context.thread() == 0) *counter() = meetings;
    return true;
  }

  // A shard's vectors in working memory. An allreduce cuts all of the buffer, the others have equal blocks.
  PYCOLL_BOTH Range shard(int index) const {
    const auto ranks = static_cast<uint64_t>(call.layout.ranks), i = static_cast<uint64_t>(index);
    const uint64_t vectors = nvls_vectors(call.elements, sizeof(typename Wire::Storage));
    if (call.kind == NvlsKind::AllReduce) return part_of(vectors, i, ranks);
    return {i * vectors, (i + 1) * vectors};
  }
  // For the vectors of a shard that are this thread's: put(v, first, left, take(v, first, left)), several in
  // flight. v is the vector's place in working memory; `first` its first element in the user's buffer, with
  // all shards or with the rank's own alone; `left` the elements from there to the end of what the buffer
  // has.
  template <class Take, class Put>
  PYCOLL_BOTH void move_shard(int index, bool alone, const Take& take, const Put& put) const {
    constexpr int kVectors = 4;
    const Range all = shard(index);
    const Range mine = part_of(all.end - all.begin, static_cast<uint64_t>(context.block()),
                               static_cast<uint64_t>(context.blocks()));
    const bool whole = call.kind == NvlsKind::AllReduce;
    const uint64_t base = whole ? all.begin * kElements : 0;
    const uint64_t before = whole || alone ? 0 : static_cast<uint64_t>(index) * call.stride;
    const auto step = static_cast<uint64_t>(context.threads());
    const auto some = [&]<int kCount>(std::integral_constant<int, kCount>, uint64_t v) {
      Vector vectors[kCount];
      PYCOLL_UNROLL
      for (int u = 0; u < kCount; ++u) {
        const uint64_t at = v + u * step, element = base + at * kElements;
        vectors[u] = take(all.begin + at, before + element, call.elements - element);
      }
      PYCOLL_UNROLL
      for (int u = 0; u < kCount; ++u) {
        const uint64_t at = v + u * step, element = base + at * kElements;
        put(all.begin + at, before + element, call.elements - element, vectors[u]);
      }
    };
    uint64_t v = mine.begin + static_cast<uint64_t>(context.thread());
    for (; v + (kVectors - 1) * step < mine.end; v += kVectors * step)
      some(std::integral_constant<int, kVectors>{}, v);
    for (; v < mine.end; v += step) some(std::integral_constant<int, 1>{}, v);
  }
  // The three ways there are: into working memory, out of it, and to all ranks.
  PYCOLL_BOTH void fill(int index) const {
    move_shard(
        index, false, [&](uint64_t, uint64_t first, uint64_t left) { return load(first, left); },
        [&](uint64_t v, uint64_t, uint64_t, const Vector& vector) { context.store(work(v), vector); });
  }
  PYCOLL_BOTH void empty(int index) const {
    move_shard(
        index, false, [&](uint64_t v, uint64_t, uint64_t) { return context.load(work(v)); },
        [&](uint64_t, uint64_t first, uint64_t left, const Vector& vector) { store(first, left, vector); });
  }
  template <class Take>
  PYCOLL_BOTH void spread(int index, const Take& take) const {
    move_shard(index, true, take, [&](uint64_t v, uint64_t, uint64_t, const Vector& vector) {
      context.store_everywhere(everywhere(v), vector);
    });
  }

  PYCOLL_BOTH Vector load(uint64_t first, uint64_t left) const {
    const auto* const from = reinterpret_cast<const Storage*>(call.input) + first;
    if constexpr (R::kAsTheyAre)
      if (left >= kElements && reinterpret_cast<uintptr_t>(from) % 16 == 0)
        return context.load(reinterpret_cast<const Vector*>(from));
    typename Wire::Storage elements[kElements];
    PYCOLL_UNROLL
    for (int i = 0; i < kElements; ++i) {
      elements[i] = {};
      if (static_cast<uint64_t>(i) >= left) continue;
      if constexpr (R::kAsTheyAre) {
        elements[i] = from[i];
      } else {
        elements[i] = Wire::encode(R::term(from[i], call.params, call.params.factor));
      }
    }
    Vector vector;
    memcpy(&vector, elements, 16);
    return vector;
  }
  PYCOLL_BOTH void store(uint64_t first, uint64_t left, const Vector& vector) const {
    auto* const to = reinterpret_cast<Storage*>(call.output) + first;
    if constexpr (R::kAsTheyAre)
      if (left >= kElements && reinterpret_cast<uintptr_t>(to) % 16 == 0)
        return context.store(reinterpret_cast<Vector*>(to), vector);
    typename Wire::Storage elements[kElements];
    memcpy(elements, &vector, 16);
    PYCOLL_UNROLL
    for (int i = 0; i < kElements; ++i) {
      if (static_cast<uint64_t>(i) >= left) continue;
      if constexpr (R::kAsTheyAre) {
        to[i] = elements[i];
      } else {
        to[i] = R::finish(Wire::decode(elements[i]), call.params);
      }
    }
  }
  PYCOLL_BOTH Vector* work(uint64_t vector) const {
    return reinterpret_cast<Vector*>(call.heap + call.layout.staging_begin()) + vector;
  }
  PYCOLL_BOTH char* everywhere(uint64_t vector) const {
    return call.multi + call.layout.staging_begin() + vector * 16;
  }
};

// AllReduce and reduce_scatter of one window. False: the group was aborted, and the output holds anything.
template <class R, class Context>
PYCOLL_BOTH bool run_nvls(Context& context, const NvlsCall& call) {
  NvlsBlock<R, Context> block(context, call);
  const int ranks = call.layout.ranks;
  const auto sum = [&](uint64_t v, uint64_t, uint64_t) {
    return context.template load_reduced<R>(block.everywhere(v));
  };
  for (int shard = 0; shard < ranks; ++shard) block.fill(shard);
  if (!block.meet()) return false;
  if (call.kind == NvlsKind::ReduceScatter) {
    block.move_shard(call.rank, true, sum,
                     [&](uint64_t, uint64_t first, uint64_t left, const Vector& vector) {
                       block.store(first, left, vector);
                     });
    return block.meet() && block.end();
  }
  block.spread(call.rank, sum);
  if (!block.meet()) return false;
  for (int shard = 0; shard < ranks; ++shard) block.empty(shard);
  return block.end();
}

// Of bytes: every rank's input to all.
template <class Context>
PYCOLL_BOTH bool run_nvls_all_gather(Context& context, const NvlsCall& call) {
  NvlsBlock<Reduction<Raw, Op::Sum>, Context> block(context, call);
  if (!block.meet()) return false;  // until everybody has taken what the call before left
  block.spread(call.rank, [&](uint64_t, uint64_t first, uint64_t left) { return block.load(first, left); });
  if (!block.meet()) return false;
  for (int shard = 0; shard < call.layout.ranks; ++shard) block.empty(shard);
  return block.end();
}

}  // namespace pycoll::cuda
