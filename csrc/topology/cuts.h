// Which sets of devices, and which partitions, are entered through the least bandwidth for what must enter
// them. Exact: bandwidths are integers here, and ratios fractions, so that no tolerance decides.
//
// f(X), for a set X of terminals, is the greatest flow that can enter X from the other terminals: the minimum
// over all placements of the other nodes (switches). It is submodular, f(X) + f(Y) >= f(X or Y) + f(X and Y),
// which is what makes the searches below polynomial.
#pragma once
#include <cstdint>
#include <vector>

#include "topology/max_flow.h"
#include "topology/topology.h"

namespace pycoll {

using Amount = FlowNetwork::Amount;

struct CutGraph {
  struct Arc {
    int from;
    int to;
    Amount capacity;
  };
  int nodes = 0;
  std::vector<Arc> arcs;
  std::vector<int> terminals;  // nodes; a set of terminals is a list of indices in this list
  double unit = 1;             // bytes/s that a capacity of 1 stands for

  CutGraph reversed() const;
};

// Terminal r is rank r. Devices that neither hold a rank nor forward are left out. Bandwidths that are whole
// bytes/s are kept exactly; others are rounded up to a unit far below any measurement's error.
CutGraph make_cut_graph(const Topology& topology);

// amount / parts, in capacity units a unit of data.
struct Ratio {
  Amount amount = 0;
  Amount parts = 1;
  double value() const { return static_cast<double>(amount) / static_cast<double>(parts); }
  bool operator<(const Ratio& other) const {
    return static_cast<__int128>(amount) * other.parts < static_cast<__int128>(other.amount) * parts;
  }
};

// f(inside), and the nodes of the least side that attains it.
struct Cut {
  Amount capacity = 0;
  std::vector<int> inside;      // terminals
  std::vector<char> sink_side;  // by node
};
Cut least_cut_into(const CutGraph& graph, const std::vector<int>& inside);

// The partition of the terminals in m >= 2 parts with the least (sum of f over the parts) / (m - 1). Needs
// two terminals.
struct Partition {
  Ratio ratio;
  std::vector<std::vector<int>> parts;
};
Partition weakest_partition(const CutGraph& graph);

// A set X and the ratio f(X) / weight(X) that it makes least, among all non-empty sets of terminals but the
// set of all.
struct WeakestSet {
  Ratio ratio;
  std::vector<int> inside;
};
WeakestSet weakest_by_outside(const CutGraph& graph);           // weight: the number of terminals outside X
WeakestSet weakest_by_inside(const CutGraph& graph, int root);  // X without root; weight: those inside X
WeakestSet weakest_from(const CutGraph& graph, int root);       // X without root; weight: 1
WeakestSet weakest(const CutGraph& graph);                      // weight: 1

}  // namespace pycoll
