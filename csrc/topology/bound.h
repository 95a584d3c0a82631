// The least time any algorithm could take on a topology, and what binds it.
#pragma once
#include <vector>

#include "schedule/collective.h"
#include "topology/topology.h"

namespace pycoll {

struct Bound {
  double seconds = 0;  // the greater of the two below, and of the bytes' time after the first arrival
  double bandwidth_seconds = 0;  // bytes that must enter parts of the machine, over the bandwidth into them
  double latency_seconds = 0;    // of an empty buffer
  // The ranks of each part: of the partition that binds (allreduce), else of a set and of all the others, the
  // set that must be entered (that must be left, for reductions) first. Empty for one rank, and for barrier.
  std::vector<std::vector<int>> parts;
  std::vector<int> binding;  // indices of the links that enter the parts through their least cuts
};

// `size` is the bytes of the logical buffer (see schedule/collective.h). No reduction inside switches is
// assumed; what switches forward, and which way, is free, as is every division of the data.
//
// allreduce: each piece takes at least 2 (m-1) transfers between the m parts of a partition, so
//   T >= 2 (m-1) S / sum of f(part); the worst partition of all is found. Also S / f(X) for every set X,
//   which is more only where links differ by direction.
// all_gather: T >= S (1 - |X|/n) / f(X), ForestColl's cut (arXiv 2402.06787); reduce_scatter is its mirror
//   image. broadcast: S / the least flow from the root to a rank (Edmonds 1973); reduce mirrored.
// scatter: S |X|/n / f(X) for X without the root; gather mirrored.
// all_to_all: S |X| (n-|X|) / n^2 / f(X), over single ranks and the sets found for the other collectives: the
//   worst of all sets is NP-hard to find, so this bound may be beaten by a greater one.
//
// Latency: nothing reaches a rank before the shortest way there, counting the overhead of every device that
// sends, and (Karp et al., Optimal broadcast and summation in the LogP model, SPAA 1993) ports that are few
// let the number of ranks that know something only grow so fast.
Bound bound(const Topology& topology, CollectiveKind kind, double size, int root = 0);

}  // namespace pycoll
