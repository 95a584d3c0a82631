// Buffers that nobody registered, but that lie in pools of segments which peers have mapped: the ranks find
// out in the kernel whether every one of them has such a buffer for this call. Each tells each where its own
// is; a rank that has none says so, and then all use staging. So neither the order of allocations nor
// anything else need be the same on all ranks, and no rank's host waits for another's.
//
// For a sender and a block there is room for two calls in flight. It does for the reason that stands in
// packets.h: who begins call k+2 has heard of call k+1 from every peer, which had ended call k by then.
#pragma once
#include "cuda/layout.h"

namespace pycoll::cuda {

constexpr int kMostSegments = 4096;  // of a rank
constexpr int kOffsetBits = 44;      // of an offset in units of 16 bytes; above it are segments

// Where a rank's buffer is: in which of the segments that it told of, from 0, and how far in. Aligned to 16.
constexpr uint64_t offer_of(uint64_t segment, uint64_t offset) {
  return (segment + 1) << kOffsetBits | offset / 16;
}

struct Offer {
  bool asks;              // alike on all ranks: whether they tell each other
  uint64_t mine;          // 0: no such buffer
  char* const* segments;  // by rank and segment, as mapped here
};

// All ranks' buffers, or `otherwise` where one has none. Null when the group was aborted.
template <class Context>
PYCOLL_BOTH char* const* agreed_memories(Context& context, const Layout& layout, char* const* heaps, int rank,
                                         const Offer& offer, char* const* otherwise) {
  char* const heap = heaps[rank];
  const int block = context.block();
  auto* const counter = reinterpret_cast<uint32_t*>(heap + layout.offer_calls(block));
  auto** const memories = reinterpret_cast<char**>(heap + layout.agreed(block));
  const uint32_t call = *counter + 1;
  for (int peer = context.thread(); peer < layout.ranks; peer += context.threads())
    if (peer != rank)
      context.post(reinterpret_cast<Packet*>(heaps[peer] + layout.offer(block, call, rank)),
                   static_cast<uint32_t>(offer.mine), static_cast<uint32_t>(offer.mine >> 32), call);
  bool fine = true, everyone = true;
  for (int peer = context.thread(); fine && peer < layout.ranks; peer += context.threads()) {
    uint64_t told = offer.mine;
    if (peer != rank) {
      uint32_t low = 0, high = 0;
      fine = context.receive(reinterpret_cast<const Packet*>(heap + layout.offer(block, call, peer)), call,
                             low, high);
      told = low | static_cast<uint64_t>(high) << 32;
    }
    if (!fine || told == 0) {
      everyone = false;
      continue;
    }
    const uint64_t segment = (told >> kOffsetBits) - 1;
    const uint64_t offset = (told & ((uint64_t{1} << kOffsetBits) - 1)) * 16;
    memories[peer] = offer.segments[static_cast<uint64_t>(peer) * kMostSegments + segment] + offset;
  }
  if (!context.all(fine)) return nullptr;
  if (context.thread() == 0) *counter = call;
  return context.all(everyone) ? memories : otherwise;
}

}  // namespace pycoll::cuda
