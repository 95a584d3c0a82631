// How a call on users' buffers becomes launches: one where all of it fits in working memory, else one for
// each window of the buffer (or of each of its equal blocks).
#pragma once
#include <algorithm>

#include "cuda/interpreter.h"
#include "schedule/collective.h"

namespace pycoll::cuda {

// Thread blocks load and store slices of their own, and none waits for another. Where a place of the user's
// buffer is loaded from as one block and stored to as another, as in an all_to_all in place, both must be cut
// alike: blocks of working memory then begin at whole vectors.
inline bool cuts_blocks_alike(const Collective& collective) {
  return collective.kind == CollectiveKind::AllToAll;
}

// The block counts' share of the call: `count` elements of the caller's call, of which [begin, begin +
// length) of every block are this window's. Sets all that depends on it; `input` and `output` are the users'
// buffers.
inline void set_window(ScheduleCall& call, const Collective& collective, const void* input, void* output,
                       uint64_t element_size, uint64_t count, uint64_t begin, uint64_t length) {
  call.pieces = collective.pieces;
  call.pieces_per_block = collective.pieces / collective.pieces_multiple();
  call.elements = collective.logical_elements(length);
  call.block_elements = length;
  call.block_stride = cuts_blocks_alike(collective) ? (length + 15) / 16 * 16 : length;
  call.input = static_cast<const char*>(input) + begin * element_size;
  call.output = static_cast<char*>(output) + begin * element_size;
  call.input_stride = call.output_stride = count;
}

// Elements of every block that one window may have, in so much working memory. 0: not even one fits.
inline uint64_t window_length(const Collective& collective, uint64_t wire_size, uint64_t count,
                              uint64_t bytes) {
  const uint64_t blocks = std::max<uint64_t>(collective.logical_elements(1), 1);
  if (cuts_blocks_alike(collective)) return std::min(count, bytes / wire_size / blocks / 16 * 16);
  return std::min(count, bytes / wire_size / blocks);
}

// Below it a block's slice of a piece is not worth its flags.
constexpr uint64_t kLeastSlice = 16 << 10;

// Thread blocks for a window, of `most`. Alike on all ranks.
inline int blocks_for(const ScheduleCall& call, uint64_t wire_size, int most) {
  const uint64_t piece = call.elements * wire_size / static_cast<uint64_t>(call.pieces);
  return static_cast<int>(std::clamp<uint64_t>(piece / kLeastSlice, 1, static_cast<uint64_t>(most)));
}

}  // namespace pycoll::cuda
