#include "topology/adjacency.h"

#include <numeric>

namespace pycoll {

Adjacency::Adjacency(const Topology& topology, Side side)
    : begin_(topology.nodes.size() + 1), links_(topology.links.size()) {
  const auto node_of = [side](const Link& link) {
    return static_cast<size_t>(side == Side::Leaving ? link.from : link.to);
  };
  for (const Link& link : topology.links) ++begin_[node_of(link) + 1];
  std::partial_sum(begin_.begin(), begin_.end(), begin_.begin());
  std::vector<size_t> next(begin_.begin(), begin_.end() - 1);
  for (size_t i = 0; i < topology.links.size(); ++i)
    links_[next[node_of(topology.links[i])]++] = static_cast<int>(i);
}

}  // namespace pycoll
