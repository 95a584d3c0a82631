// The links that leave, or that enter, each node of a topology, in the order of the topology's links.
#pragma once
#include <span>
#include <vector>

#include "topology/topology.h"

namespace pycoll {

class Adjacency {
 public:
  enum class Side { Leaving, Entering };

  Adjacency(const Topology& topology, Side side);

  // Indices of links.
  std::span<const int> of(int node) const {
    const auto at = static_cast<size_t>(node);
    return {links_.data() + begin_[at], begin_[at + 1] - begin_[at]};
  }

 private:
  std::vector<size_t> begin_;
  std::vector<int> links_;
};

}  // namespace pycoll
