#pragma once
#include "engine/decisions.h"
#include "engine/placement.h"

namespace pycoll {

// How a call across hosts goes that is too large for the meeting and for which no table says anything.
Way default_way(CollectiveKind kind, uint64_t bytes, const Placement& placement);

}  // namespace pycoll
