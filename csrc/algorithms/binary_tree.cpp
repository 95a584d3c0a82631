#include <numeric>
#include <utility>

#include "algorithms/list.h"
#include "algorithms/tree.h"
#include "topology/clusters.h"

namespace pycoll {

namespace {

// The complete binary tree in breadth-first order: the children of position i are 2i + 1 and 2i + 2. On a
// topology, one within each of the innermost groups, and one among the groups' first ranks at every level: no
// more than one edge enters a group.
Schedule build_binary_tree(const BuildRequest& request) {
  ScheduleBuilder schedule("binary_tree", request, 1);
  std::vector<RankGroups> levels;
  if (request.topology) levels = find_clusters(*request.topology);
  std::vector<int> parent(static_cast<size_t>(schedule.ranks()), -1), ranks(parent.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  std::vector<int> tops;  // of the trees there are so far, the root's first
  for (int position = 0; position < schedule.ranks(); ++position) tops.push_back(schedule.rank_at(position));
  levels.push_back({tops});
  for (const RankGroups& groups : levels) {
    std::vector<int> group_of(parent.size());
    for (size_t group = 0; group < groups.size(); ++group)
      for (int rank : groups[group]) group_of[static_cast<size_t>(rank)] = static_cast<int>(group);
    std::vector<std::vector<int>> members(groups.size());
    std::vector<int> next_tops;
    for (int rank : tops) {
      auto& group = members[static_cast<size_t>(group_of[static_cast<size_t>(rank)])];
      if (group.empty())
        next_tops.push_back(rank);
      else
        parent[static_cast<size_t>(rank)] = group[(group.size() - 1) / 2];
      group.push_back(rank);
    }
    tops = std::move(next_tops);
  }
  Tree(std::move(parent), std::move(ranks)).run(schedule, schedule.all());
  return schedule.finish();
}

}  // namespace

Algorithm binary_tree() {
  return {
      .name = "binary_tree",
      .description =
          "reduces up and broadcasts down a complete binary tree, pieces pipelined; logarithmic latency, "
          "but the leaves (half the ranks) send at half the rate of the others",
      .source =
          "Sanders, Speck and Traff, Two-tree algorithms for full bandwidth broadcast, reduction and scan, "
          "Parallel Computing 35 (2009), the pipelined binary tree",
      .collectives = {CollectiveKind::AllReduce, CollectiveKind::Broadcast, CollectiveKind::Reduce,
                      CollectiveKind::Barrier},
      .valid_ranks = "any",
      .accepts = any_ranks,
      .build = build_binary_tree,
  };
}

}  // namespace pycoll
