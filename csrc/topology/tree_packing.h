// The greatest fractional packing of spanning trees of the ranks into a machine: data that is divided over
// the trees in proportion to their weights flows at the packing's rate.
//
// By linear programming duality the rate equals the least, over prices of links, of (sum of price *
// bandwidth) / (price of the cheapest tree); by Tutte (1961) and Nash-Williams (1961), on machines whose
// links are as fast in both directions, it equals the bound of the weakest partition. ForestColl (arXiv
// 2402.06787) builds such packings by maximum flows and edge splitting, for a routing that is free; here
// trees come one by one as the cheapest at the present prices, which also does for routes that are given, and
// for links that differ by direction.
#pragma once
#include <vector>

#include "schedule/collective.h"
#include "topology/topology.h"

namespace pycoll {

// Ranks' parents, -1 at the root. A reduction goes up to the root along `up`, a broadcast down along `down`.
// They are one tree unless links differ by direction; one of them is empty where only the other is needed.
struct WeightedTree {
  int root;
  std::vector<int> up;
  std::vector<int> down;
  double weight;  // bytes/s
};

struct TreePacking {
  std::vector<WeightedTree> trees;  // the heaviest first
  double rate = 0;                  // sum of weights: bytes/s of the buffer
  // No schedule over these routes is faster. Infinite where that was not proved: allreduce on machines whose
  // links differ by direction.
  double rate_limit = 0;
};

struct PackingRequest {
  CollectiveKind kind = CollectiveKind::AllReduce;  // or Broadcast, Reduce
  int root = 0;                                     // of Broadcast and Reduce
  // Whether each pair of ranks may use any way, and several, rather than its route of find_routes.
  bool free_routes = false;
  // Whether ranks may be neighbours in a tree only if links of their own join their devices. Without effect
  // where routes are free; nothing is packed where such links do not join all ranks.
  bool direct_links = false;
  double tolerance = 1e-3;  // ends when no packing is faster by more than this part
  double enough = 1e300;    // ends at this rate, bytes/s
  int max_trees = 20000;    // ends after so many were tried
};

TreePacking pack_trees(const Topology& topology, const PackingRequest& request);

}  // namespace pycoll
