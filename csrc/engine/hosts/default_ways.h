#pragma once
#include "engine/decisions.h"
#include "engine/placement.h"

namespace pycoll {

// How a call across hosts goes that is too large for the meeting and for which no table says anything.
// `fixed_order`: sums are to be the same bits for any size and layout.
Way default_way(CollectiveKind kind, uint64_t bytes, const Placement& placement, bool fixed_order = false);

}  // namespace pycoll
