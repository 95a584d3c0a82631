// What a collective call means for one rank's buffers.
#pragma once
#include <string>

#include "engine/communicator.h"

namespace pycoll {

// The call's input and output in bytes, as this rank's part in it has them.
struct Extents {
  size_t input;
  size_t output;
};
Extents extents_of(const CollectiveCall& call, int ranks);

// The larger of a rank's two buffers, the same on every rank: what decision tables go by.
uint64_t table_bytes(const CollectiveCall& call, int ranks);

// Throws InvalidArgument or Unsupported for a call that cannot be made.
void check_call(const CollectiveCall& call, int rank, int ranks, const std::string& group);

}  // namespace pycoll
