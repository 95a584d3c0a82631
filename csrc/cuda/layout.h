// What every rank's heap holds, and where: one piece of device memory that all peers have mapped. Offsets are
// the same on all ranks, so an address at a peer is the peer's base plus an offset.
#pragma once
#include <cstddef>
#include <cstdint>

#include "cuda/numerics.h"

namespace pycoll::cuda {

// Data and flag in one 16-byte word: each half is written and read as one 8-byte access, so a reader that
// finds both flags has both data, and no fence is needed.
struct alignas(16) Packet {
  uint32_t data0, flag0, data1, flag1;
};

struct Layout {
  int ranks = 1;
  int blocks = 1;      // the most that a kernel is launched with
  int slots = 1;       // flags that one rank has at one block of one other
  int packets = 2;     // a sender has at one block, for each of two calls in flight
  size_t staging = 0;  // bytes of working memory, aligned to 16

  static Layout of(int ranks, int blocks, int slots, int packets, size_t staging) {
    Layout layout;
    layout.ranks = ranks;
    layout.blocks = blocks;
    layout.slots = slots;
    layout.packets = packets;
    layout.staging = (staging + 15) / 16 * 16;
    return layout;
  }

  // Counters of calls, a block's own: only that block touches them, so kernels of any number of blocks may
  // follow each other, and a replayed CUDA graph counts on. Those of schedules, and their flags, have 64
  // bits: 32 are counted through in days, and then a flag that no call has raised for long looks like a later
  // one.
  PYCOLL_BOTH size_t schedule_calls(int block) const { return static_cast<size_t>(block) * 64; }
  PYCOLL_BOTH size_t packet_calls(int block) const { return schedule_calls(block) + 8; }
  // Rank 0's are the tickets of arrival; every rank's own say who is late.
  PYCOLL_BOTH size_t ticket(int block) const { return schedule_calls(block) + 16; }
  PYCOLL_BOTH size_t late(int block) const { return schedule_calls(block) + 24; }
  PYCOLL_BOTH size_t offer_calls(int block) const { return schedule_calls(block) + 40; }
  // Every rank counts it up at all ranks at once; and how often this rank did.
  PYCOLL_BOTH size_t multicast_flag(int block) const { return schedule_calls(block) + 48; }
  PYCOLL_BOTH size_t multicast_meetings(int block) const { return schedule_calls(block) + 52; }
  PYCOLL_BOTH size_t flag(int block, int from, int slot) const {
    const size_t index = (static_cast<size_t>(block) * ranks + from) * slots + slot;
    return static_cast<size_t>(blocks) * 64 + index * 8;
  }
  PYCOLL_BOTH size_t packets_begin() const { return (flag(blocks, 0, 0) + 15) / 16 * 16; }
  PYCOLL_BOTH size_t packet(int block, uint32_t call, int from) const {
    const size_t index = (static_cast<size_t>(block) * 2 + (call & 1u)) * ranks + from;
    return packets_begin() + index * packets * sizeof(Packet);
  }
  // Where ranks tell of buffers in a pool (agreement.h), for two calls in flight; and what a block knows
  // then.
  PYCOLL_BOTH size_t offer(int block, uint32_t call, int from) const {
    const size_t index = (static_cast<size_t>(block) * 2 + (call & 1u)) * ranks + from;
    return packet(blocks, 0, 0) + index * sizeof(Packet);
  }
  PYCOLL_BOTH size_t agreed(int block) const {
    return offer(blocks, 0, 0) + static_cast<size_t>(block) * ranks * sizeof(char*);
  }
  PYCOLL_BOTH size_t staging_begin() const { return (agreed(blocks) + 15) / 16 * 16; }
  PYCOLL_BOTH size_t bytes() const { return staging_begin() + staging; }
};

// Part `index` of `parts` of a length, all as equal as can be.
struct Range {
  uint64_t begin;
  uint64_t end;
};
PYCOLL_BOTH uint64_t part_begin(uint64_t length, uint64_t index, uint64_t parts) {
  return index * (length / parts) + index * (length % parts) / parts;
}
PYCOLL_BOTH Range part_of(uint64_t length, uint64_t index, uint64_t parts) {
  return {part_begin(length, index, parts), part_begin(length, index + 1, parts)};
}

}  // namespace pycoll::cuda
