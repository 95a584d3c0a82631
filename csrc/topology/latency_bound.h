#pragma once
#include <vector>

#include "schedule/collective.h"
#include "topology/topology.h"

namespace pycoll {

// Seconds that the collective takes at least with a buffer of no bytes. See bound.h.
double latency_bound(const Topology& topology, CollectiveKind kind, int root);

// Seconds from the start before any transfer from a rank outside can be at a rank inside, bytes aside.
double entry_latency(const Topology& topology, const std::vector<int>& inside);

}  // namespace pycoll
