#include <algorithm>
#include <bit>

#include "algorithms/builder.h"
#include "algorithms/list.h"
#include "topology/clusters.h"

namespace pycoll {

namespace {

// Position c, not 0, hangs below c without its lowest set bit, and leads the subtree of positions [c, c +
// that bit). Edges of one length, the lowest set bit, meet no position twice: they form one round.
template <typename Visit>  // visit(parent, child, round when the long edges come first, round when they come
                           // last)
void for_each_edge(int ranks, Visit visit) {
  const int rounds = std::bit_width(static_cast<unsigned>(ranks - 1));
  for (int child = 1; child < ranks; ++child) {
    const int length_bit = std::countr_zero(static_cast<unsigned>(child));
    visit(child & (child - 1), child, rounds - 1 - length_bit, length_bit);
  }
}

void reduce_up(ScheduleBuilder& schedule) {
  for_each_edge(schedule.ranks(), [&](int parent, int child, int, int round) {
    schedule.reduce(round, schedule.rank_at(child), schedule.rank_at(parent), schedule.all());
  });
}

void broadcast_down(ScheduleBuilder& schedule, int first_round) {
  for_each_edge(schedule.ranks(), [&](int parent, int child, int round, int) {
    schedule.copy(first_round + round, schedule.rank_at(parent), schedule.rank_at(child), schedule.all());
  });
}

template <typename Visit>  // visit(rank) for the ranks of the subtree that `child` leads
void for_each_in_subtree(const ScheduleBuilder& schedule, int child, Visit visit) {
  const int end = std::min(child + (child & -child), schedule.ranks());
  for (int position = child; position < end; ++position) visit(schedule.rank_at(position));
}

void gather_up(ScheduleBuilder& schedule) {
  for_each_edge(schedule.ranks(), [&](int parent, int child, int, int round) {
    for_each_in_subtree(schedule, child, [&](int rank) {
      schedule.copy(round, schedule.rank_at(child), schedule.rank_at(parent), schedule.shard(rank));
    });
  });
}

void scatter_down(ScheduleBuilder& schedule) {
  for_each_edge(schedule.ranks(), [&](int parent, int child, int round, int) {
    for_each_in_subtree(schedule, child, [&](int rank) {
      schedule.copy(round, schedule.rank_at(parent), schedule.rank_at(child), schedule.shard(rank));
    });
  });
}

Schedule build_binomial_tree(const BuildRequest& request) {
  ScheduleBuilder schedule("binomial_tree", request, kLeastPieces);
  if (request.topology) schedule.follow(clustered_order(*request.topology, schedule.root()));
  switch (schedule.kind()) {
    case CollectiveKind::Broadcast:
      broadcast_down(schedule, 0);
      break;
    case CollectiveKind::Reduce:
      reduce_up(schedule);
      break;
    case CollectiveKind::Gather:
      gather_up(schedule);
      break;
    case CollectiveKind::Scatter:
      scatter_down(schedule);
      break;
    default:  // a barrier: everybody is known to have come, then everybody is told
      reduce_up(schedule);
      broadcast_down(schedule, std::bit_width(static_cast<unsigned>(schedule.ranks() - 1)));
  }
  return schedule.finish();
}

}  // namespace

Algorithm binomial_tree() {
  return {
      .name = "binomial_tree",
      .description =
          "in every round each rank that has the data serves one that has not; ceil(log2 n) rounds, the "
          "least for one port a rank; barrier is a reduce and then a broadcast",
      .source =
          "Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, "
          "IJHPCA 19 (2005), Broadcast and Reduce",
      .collectives = {CollectiveKind::Broadcast, CollectiveKind::Reduce, CollectiveKind::Gather,
                      CollectiveKind::Scatter, CollectiveKind::Barrier},
      .valid_ranks = "any",
      .accepts = any_ranks,
      .build = build_binomial_tree,
  };
}

}  // namespace pycoll
