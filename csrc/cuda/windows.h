// How a call on users' buffers becomes launches: one where all of it fits in working memory, else one for
// each window of the buffer (or of each of its equal blocks).
#pragma once
#include <algorithm>

#include "cuda/interpreter.h"
#include "schedule/collective.h"

namespace pycoll::cuda {

// The block counts' share of the call: `count` elements of the caller's call, of which [begin, begin +
// length) of every block are this window's. Sets all that depends on it; `input` and `output` are the users'
// buffers.
inline void set_window(ScheduleCall& call, const Collective& collective, const void* input, void* output,
                       uint64_t element_size, uint64_t count, uint64_t begin, uint64_t length) {
  call.pieces = collective.pieces;
  call.pieces_per_block = collective.pieces / collective.pieces_multiple();
  call.elements = collective.logical_elements(length);
  call.block_elements = length;
  call.input = static_cast<const char*>(input) + begin * element_size;
  call.output = static_cast<char*>(output) + begin * element_size;
  call.input_stride = call.output_stride = count;
}

// Elements of every block that one window may have, in so much working memory. 0: not even one fits.
inline uint64_t window_length(const Collective& collective, uint64_t wire_size, uint64_t count,
                              uint64_t bytes) {
  const uint64_t blocks = std::max<uint64_t>(collective.logical_elements(1), 1);
  return std::min(count, bytes / wire_size / blocks);
}

}  // namespace pycoll::cuda
