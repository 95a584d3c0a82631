#pragma once
#include <vector>

#include "schedule/collective.h"
#include "topology/topology.h"

namespace pycoll {

// Seconds that the collective takes at least with a buffer of no bytes. See bound.h.
double latency_bound(const Topology& topology, CollectiveKind kind, int root);

// Seconds of the whole time in which no bytes can be on their way from ranks outside to ranks inside: the
// least overhead before the first ones leave, the least latency before the last ones are there.
double entry_latency(const Topology& topology, const std::vector<int>& inside);

}  // namespace pycoll
