#include <utility>

#include "algorithms/list.h"
#include "algorithms/tree.h"
#include "topology/clusters.h"

namespace pycoll {

namespace {

// The in-order binary tree on positions 1..last: a position's lowest set bit is its height, so that odd
// positions are leaves. Its top hangs below position 0, the root.
int in_order_parent(int position, int last) {
  const int lowest = position & -position;
  const int below = position ^ lowest;
  const int parent = below | (lowest << 1);
  return parent <= last ? parent : below;
}

// The second tree's position for one of the first's: where the first has its leaves, the second has its inner
// nodes. Mirrored when there is an even number of positions below the root, else shifted by one.
int in_second_tree(int position, int last) {
  if (last % 2 == 0) return last + 1 - position;
  return position == 1 ? last : position - 1;
}

// Two trees, each for half the pieces. Every rank but the root is an inner node of at most one of them, and
// so sends and receives every piece about once each way: both directions of every link work all the time.
Schedule build_double_binary_tree(const BuildRequest& request) {
  ScheduleBuilder schedule("double_binary_tree", request, 2);
  if (request.topology) schedule.follow(clustered_order(*request.topology, schedule.root()));
  const int last = schedule.ranks() - 1;
  std::vector<int> parent = {-1}, first = {schedule.root()}, second = {schedule.root()};
  for (int position = 1; position <= last; ++position) {
    parent.push_back(in_order_parent(position, last));
    first.push_back(schedule.rank_at(position));
    second.push_back(schedule.rank_at(in_second_tree(position, last)));
  }
  Tree(parent, std::move(first)).run(schedule, schedule.block(0, 2));
  Tree(parent, std::move(second)).run(schedule, schedule.block(1, 2));
  return schedule.finish();
}

}  // namespace

Algorithm double_binary_tree() {
  return {
      .name = "double_binary_tree",
      .description =
          "two binary trees, each for half the pieces, where the leaves of one are inner nodes of the other; "
          "logarithmic latency at full bandwidth",
      .source =
          "Sanders, Speck and Traff, Two-tree algorithms for full bandwidth broadcast, reduction and scan, "
          "Parallel Computing 35 (2009), the two-tree algorithm; used by NCCL since 2.4",
      .collectives = {CollectiveKind::AllReduce, CollectiveKind::Broadcast, CollectiveKind::Reduce},
      .valid_ranks = "any",
      .accepts = any_ranks,
      .build = build_double_binary_tree,
  };
}

}  // namespace pycoll
