#include "topology/bound.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "core/error.h"
#include "topology/cuts.h"
#include "topology/latency_bound.h"

namespace pycoll {

namespace {

std::vector<int> others(const std::vector<int>& inside, int n) {
  std::vector<char> mark(static_cast<size_t>(n), 0);
  for (int rank : inside) mark[static_cast<size_t>(rank)] = 1;
  std::vector<int> rest;
  for (int rank = 0; rank < n; ++rank)
    if (!mark[static_cast<size_t>(rank)]) rest.push_back(rank);
  return rest;
}

class Search {
 public:
  Search(const Topology& topology, double size, int root)
      : topology_(topology),
        size_(size),
        root_(root),
        n_(topology.rank_count()),
        graph_(make_cut_graph(topology)) {}

  Bound result(CollectiveKind kind) {
    switch (kind) {
      case CollectiveKind::AllReduce:
        over_partitions();
        if (!symmetric()) {
          const WeakestSet set = weakest(graph_);
          enter(set.inside, size_);
        }
        break;
      case CollectiveKind::AllGather:
        enter_shards(weakest_by_outside(graph_).inside);
        break;
      case CollectiveKind::ReduceScatter:
        leave(weakest_by_outside(graph_.reversed()).inside, kind);
        break;
      case CollectiveKind::Broadcast:
        enter(weakest_from(graph_, root_).inside, size_);
        break;
      case CollectiveKind::Reduce:
        leave(weakest_from(graph_.reversed(), root_).inside, kind);
        break;
      case CollectiveKind::Scatter: {
        const WeakestSet set = weakest_by_inside(graph_, root_);
        enter(set.inside, size_ * share(set.inside));
        break;
      }
      case CollectiveKind::Gather:
        leave(weakest_by_inside(graph_.reversed(), root_).inside, kind);
        break;
      case CollectiveKind::AllToAll:
        over_candidates();
        break;
      case CollectiveKind::Barrier:
        break;
    }
    name_binding_links();
    return std::move(best_);
  }

 private:
  double share(const std::vector<int>& ranks) const { return static_cast<double>(ranks.size()) / n_; }

  double bandwidth_into(const std::vector<int>& inside) const {
    return static_cast<double>(least_cut_into(graph_, inside).capacity) * graph_.unit;
  }

  // `bytes` must enter `inside`; nothing is there before the first arrival.
  void enter(const std::vector<int>& inside, double bytes) {
    offer(bytes / bandwidth_into(inside), entry_latency(topology_, inside), {inside, others(inside, n_)},
          {inside});
  }
  void enter_shards(const std::vector<int>& inside) { enter(inside, size_ * (1 - share(inside))); }

  // A set of the mirror image: what must enter it there must leave it here, so enter all the others.
  void leave(const std::vector<int>& set, CollectiveKind kind) {
    const auto rest = others(set, n_);
    const double bytes = kind == CollectiveKind::ReduceScatter ? size_ * share(rest)
                         : kind == CollectiveKind::Gather      ? size_ * share(set)
                                                               : size_;
    offer(bytes / bandwidth_into(rest), entry_latency(topology_, rest), {set, rest}, {rest});
  }

  // Sum over the parts of f * (T - entry latency) >= 2 (m-1) S.
  void over_partitions() {
    const Partition partition = weakest_partition(graph_);
    double sum = 0, idle = 0;
    for (const auto& part : partition.parts) {
      const double bandwidth = bandwidth_into(part);
      sum += bandwidth;
      idle += bandwidth * entry_latency(topology_, part);
    }
    const double m = static_cast<double>(partition.parts.size());
    offer(2 * (m - 1) * size_ / sum, idle / sum, partition.parts, partition.parts);
  }

  void over_candidates() {
    std::vector<std::vector<int>> sets = weakest_partition(graph_).parts;
    for (int rank = 0; rank < n_; ++rank) sets.push_back({rank});
    sets.push_back(weakest_by_outside(graph_).inside);
    sets.push_back(weakest_by_outside(graph_.reversed()).inside);
    sets.push_back(weakest(graph_).inside);
    const size_t found = sets.size();
    for (size_t i = 0; i < found; ++i) sets.push_back(others(sets[i], n_));
    for (const auto& set : sets) {
      const double bytes = size_ * share(set) * (1 - share(set));
      if (bytes / bandwidth_into(set) > best_.bandwidth_seconds) enter(set, bytes);
    }
  }

  void offer(double bandwidth_seconds, double idle_seconds, std::vector<std::vector<int>> parts,
             std::vector<std::vector<int>> entered) {
    if (bandwidth_seconds <= best_.bandwidth_seconds) return;
    best_.bandwidth_seconds = bandwidth_seconds;
    best_.seconds = bandwidth_seconds + idle_seconds;
    best_.parts = std::move(parts);
    entered_ = std::move(entered);
  }

  // Those from outside into the side of a least cut.
  void name_binding_links() {
    std::vector<char> binds(topology_.links.size(), 0);
    for (const auto& part : entered_) {
      const Cut cut = least_cut_into(graph_, part);
      for (size_t link = 0; link < binds.size(); ++link)
        if (!cut.sink_side[static_cast<size_t>(topology_.links[link].from)] &&
            cut.sink_side[static_cast<size_t>(topology_.links[link].to)])
          binds[link] = 1;
    }
    for (size_t link = 0; link < binds.size(); ++link)
      if (binds[link]) best_.binding.push_back(static_cast<int>(link));
  }

  bool symmetric() const {
    auto forth = graph_.arcs, back = graph_.reversed().arcs;
    const auto order = [](const CutGraph::Arc& a, const CutGraph::Arc& b) {
      return std::pair(a.from, a.to) < std::pair(b.from, b.to);
    };
    std::ranges::sort(forth, order);
    std::ranges::sort(back, order);
    return std::ranges::equal(forth, back, [](const CutGraph::Arc& a, const CutGraph::Arc& b) {
      return a.from == b.from && a.to == b.to && a.capacity == b.capacity;
    });
  }

  const Topology& topology_;
  const double size_;
  const int root_;
  const int n_;
  const CutGraph graph_;
  Bound best_;
  std::vector<std::vector<int>> entered_;
};

}  // namespace

Bound bound(const Topology& topology, CollectiveKind kind, double size, int root) {
  const int n = topology.rank_count();
  if (!(size >= 0)) throw InvalidArgument("the size of a buffer must be 0 bytes or more");
  if (root < 0 || root >= n)
    throw InvalidArgument("root must be between 0 and " + std::to_string(n - 1) + ", not " +
                          std::to_string(root));
  Bound best;
  if (n < 2) return best;
  // The parts are found with a size that is not 0, so that they are named for an empty buffer too.
  const double asked = size > 0 ? size : 1;
  best = Search(topology, asked, root).result(kind);
  if (size == 0) best.seconds = best.bandwidth_seconds = 0;
  best.latency_seconds = latency_bound(topology, kind, root);
  best.seconds = std::max(best.seconds, best.latency_seconds);
  return best;
}

}  // namespace pycoll
