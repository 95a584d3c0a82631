// Ranks that are near each other: hosts, racks, and so on outwards, as far as the topology has such levels.
#pragma once
#include <vector>

#include "topology/topology.h"

namespace pycoll {

using RankGroups = std::vector<std::vector<int>>;

// Partitions of the ranks from the innermost outwards, each of them coarser than the one before; neither the
// single ranks nor all of them together count. A level is where the ranks fall apart into two groups or more
// when only pairs are joined whose route is at least so fast (and, of equally fast ones, at most so many hops
// long), and every group is as close throughout: no machine has a level just because neighbours chain up, as
// in a torus.
std::vector<RankGroups> find_clusters(const Topology& topology);

// The leaves of those levels from left to right: near ranks next to each other. `first` and the groups that
// it is in come first.
std::vector<int> clustered_order(const Topology& topology, int first = 0);

}  // namespace pycoll
