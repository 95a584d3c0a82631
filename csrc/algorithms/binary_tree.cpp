#include "algorithms/list.h"
#include "algorithms/tree.h"

namespace pycoll {

namespace {

// The complete binary tree in breadth-first order: the children of position i are 2i + 1 and 2i + 2.
Schedule build_binary_tree(const BuildRequest& request) {
  ScheduleBuilder schedule("binary_tree", request, 1);
  std::vector<int> parent, ranks;
  for (int position = 0; position < schedule.ranks(); ++position) {
    parent.push_back(position == 0 ? -1 : (position - 1) / 2);
    ranks.push_back(schedule.rank_at(position));
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
