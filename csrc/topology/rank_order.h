#pragma once
#include <vector>

#include "topology/topology.h"

namespace pycoll {

// An order of the ranks in which a ring, each rank sending to the next and the last to the first, takes
// little of every link: near ranks follow each other, so that each slow link is crossed once where that can
// be. The ranks' own order stays if none better is found.
std::vector<int> ring_order(const Topology& topology);

// Of a chain that starts at `first`.
std::vector<int> chain_order(const Topology& topology, int first);

}  // namespace pycoll
