#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "algorithms/builder.h"
#include "algorithms/list.h"
#include "algorithms/params.h"
#include "algorithms/tree.h"
#include "topology/tree_packing.h"

namespace pycoll {

namespace {

// On a flat switch stars do best, one around every rank: two hops deep, and all ports are in use all the
// time. A broadcast from one root cannot have them; its stars stand around the other ranks, a hop from the
// root.
std::vector<WeightedTree> stars(CollectiveKind kind, int n, int root) {
  std::vector<WeightedTree> trees;
  for (int centre = 0; centre < n; ++centre) {
    if (is_rooted(kind) && centre == root && n > 1) continue;
    const int top = is_rooted(kind) ? root : centre;
    std::vector<int> parent(static_cast<size_t>(n), centre);
    parent[static_cast<size_t>(centre)] = top;
    parent[static_cast<size_t>(top)] = -1;
    trees.push_back({top, parent, parent, 1});
  }
  return trees;
}

std::vector<WeightedTree> choose_trees(const BuildRequest& request) {
  if (!request.topology || request.ranks < 2) return stars(request.kind, request.ranks, request.root);
  PackingRequest packing;
  packing.kind = request.kind;
  packing.root = request.root;
  packing.tolerance = number_param(request, "tolerance", 1e-3, 0, 1);
  return pack_trees(*request.topology, packing).trees;
}

// How many of the pieces each tree gets: in proportion to its weight, by largest remainders.
std::vector<int> shares(const std::vector<WeightedTree>& trees, int pieces) {
  double sum = 0;
  for (const WeightedTree& tree : trees) sum += tree.weight;
  std::vector<int> count;
  std::vector<std::pair<double, size_t>> remainders;
  int given = 0;
  for (size_t i = 0; i < trees.size(); ++i) {
    const double exact = trees[i].weight / sum * pieces;
    count.push_back(static_cast<int>(std::floor(exact)));
    given += count.back();
    remainders.emplace_back(count.back() - exact, i);
  }
  std::ranges::sort(remainders);
  for (size_t i = 0; given < pieces; ++i, ++given) ++count[remainders[i % remainders.size()].second];
  return count;
}

// The tree of each piece, every tree's pieces spread evenly over all.
std::vector<size_t> interleaved(const std::vector<int>& count) {
  std::vector<std::pair<double, size_t>> places;
  for (size_t tree = 0; tree < count.size(); ++tree)
    for (int i = 0; i < count[tree]; ++i) places.emplace_back((i + 0.5) / count[tree], tree);
  std::ranges::stable_sort(places, {}, [](const auto& place) { return place.first; });
  std::vector<size_t> order;
  for (const auto& place : places) order.push_back(place.second);
  return order;
}

// How many pieces start a round, so that a round is about as long as one piece takes from rank to rank: as
// many as there are pairs of ranks for each transfer of a piece.
double pieces_a_round(const std::vector<WeightedTree>& trees, const std::vector<int>& count, int pieces) {
  std::set<std::pair<int, int>> pairs;
  int64_t transfers = 0;
  for (size_t i = 0; i < trees.size(); ++i) {
    if (count[i] == 0) continue;
    for (size_t rank = 0; rank < std::max(trees[i].up.size(), trees[i].down.size()); ++rank) {
      const int child = static_cast<int>(rank);
      if (child == trees[i].root) continue;
      if (!trees[i].up.empty()) pairs.emplace(child, trees[i].up[rank]);
      if (!trees[i].down.empty()) pairs.emplace(trees[i].down[rank], child);
      transfers += (!trees[i].up.empty() + !trees[i].down.empty()) * count[i];
    }
  }
  return std::max(1.0, static_cast<double>(pairs.size()) * pieces / static_cast<double>(transfers));
}

// Each piece goes up its tree and comes down it again, right behind the piece before: a pipeline.
Schedule build_packed_trees(const BuildRequest& request) {
  const std::vector<WeightedTree> trees = choose_trees(request);
  const int least = std::max(request.ranks, static_cast<int>(trees.size()));
  const int rounds_of_all = request.topology ? integer_param(request, "depth", 4, 1, 1 << 16) : 1;
  ScheduleBuilder schedule("packed_trees", request, std::min(least * rounds_of_all, 1 << 13),
                           {"tolerance", "depth", "pace"});
  if (schedule.ranks() == 1) return schedule.finish();
  const std::vector<int> count = shares(trees, schedule.pieces());
  const std::vector<size_t> order = interleaved(count);
  const double pace =
      pieces_a_round(trees, count, schedule.pieces()) * number_param(request, "pace", 8, 1e-3, 1e3);
  std::vector<int> ranks;
  for (int rank = 0; rank < schedule.ranks(); ++rank) ranks.push_back(rank);
  std::vector<Tree> up, down;
  for (const WeightedTree& tree : trees) {
    up.emplace_back(tree.up.empty() ? tree.down : tree.up, ranks);
    down.emplace_back(tree.down.empty() ? tree.up : tree.down, ranks);
  }
  for (int piece = 0; piece < schedule.pieces(); ++piece) {
    const size_t tree = order[static_cast<size_t>(piece)];
    int round = static_cast<int>(std::floor(piece / pace));
    if (schedule.kind() != CollectiveKind::Broadcast) {
      up[tree].reduce_up(schedule, {piece, piece + 1}, round);
      round += up[tree].height();
    }
    if (schedule.kind() != CollectiveKind::Reduce)
      down[tree].broadcast_down(schedule, {piece, piece + 1}, round);
  }
  return schedule.finish();
}

}  // namespace

Algorithm packed_trees() {
  return {
      .name = "packed_trees",
      .description =
          "pipelined spanning trees, as many as fill all links of the machine: the least time for large "
          "buffers on any topology; stars on a flat switch",
      .source =
          "Zhao et al., ForestColl: Throughput-optimal collective communications on heterogeneous network "
          "fabrics, arXiv 2402.06787; Tutte and Nash-Williams (1961)",
      .collectives = {CollectiveKind::AllReduce, CollectiveKind::Broadcast, CollectiveKind::Reduce},
      .valid_ranks = "any",
      .accepts = any_ranks,
      .build = build_packed_trees,
  };
}

}  // namespace pycoll
