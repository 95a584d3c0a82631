#include <algorithm>

#include "algorithms/builder.h"
#include "algorithms/list.h"
#include "topology/rank_order.h"

namespace pycoll {

namespace {

// Positions are the ranks themselves, or on a topology an order of them in which near ones are neighbours.
// Block b starts at rank b + 1, travels once around collecting every contribution, and ends complete at rank
// b. In every step each rank sends one block and receives another.
void reduce_scatter_around(ScheduleBuilder& schedule) {
  const int n = schedule.ranks();
  for (int step = 0; step < n - 1; ++step)
    for (int position = 0; position < n; ++position)
      schedule.reduce(step, schedule.rank_at(position), schedule.rank_at(position + 1),
                      schedule.shard(schedule.rank_at(position - step - 1 + n)));
}

// Block b starts at rank b and travels once around.
void all_gather_around(ScheduleBuilder& schedule, int first_round) {
  const int n = schedule.ranks();
  for (int step = 0; step < n - 1; ++step)
    for (int position = 0; position < n; ++position)
      schedule.copy(first_round + step, schedule.rank_at(position), schedule.rank_at(position + 1),
                    schedule.shard(schedule.rank_at(position - step + n)));
}

// A chain from the root: piece p makes its hop h in round h + p, so that all links are busy at once.
void broadcast_along_chain(ScheduleBuilder& schedule) {
  for (int hop = 0; hop < schedule.ranks() - 1; ++hop)
    for (int piece = 0; piece < schedule.pieces(); ++piece)
      schedule.copy(hop + piece, schedule.rank_at(hop), schedule.rank_at(hop + 1), {piece, piece + 1});
}

// The chain that ends at the root.
void reduce_along_chain(ScheduleBuilder& schedule) {
  for (int hop = 0; hop < schedule.ranks() - 1; ++hop)
    for (int piece = 0; piece < schedule.pieces(); ++piece)
      schedule.reduce(hop + piece, schedule.rank_at(hop + 1), schedule.rank_at(hop + 2), {piece, piece + 1});
}

std::vector<int> choose_order(const ScheduleBuilder& schedule, const Topology& topology) {
  if (!is_rooted(schedule.kind())) return ring_order(topology);
  std::vector<int> order = chain_order(topology, schedule.root());
  if (schedule.kind() == CollectiveKind::Reduce) std::reverse(order.begin() + 1, order.end());
  return order;
}

Schedule build_ring(const BuildRequest& request) {
  ScheduleBuilder schedule("ring", request, request.ranks);
  if (request.topology) schedule.follow(choose_order(schedule, *request.topology));
  switch (schedule.kind()) {
    case CollectiveKind::ReduceScatter:
      reduce_scatter_around(schedule);
      break;
    case CollectiveKind::AllGather:
      all_gather_around(schedule, 0);
      break;
    case CollectiveKind::Broadcast:
      broadcast_along_chain(schedule);
      break;
    case CollectiveKind::Reduce:
      reduce_along_chain(schedule);
      break;
    default:
      reduce_scatter_around(schedule);
      all_gather_around(schedule, schedule.ranks() - 1);
  }
  return schedule.finish();
}

}  // namespace

Algorithm ring() {
  return {
      .name = "ring",
      .description =
          "every rank sends to its successor only; the least traffic a rank, n-1 steps (2(n-1) for "
          "allreduce); broadcast and reduce are a pipelined chain; on a topology near ranks are neighbours",
      .source =
          "Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, JPDC 69 "
          "(2009)",
      .collectives = {CollectiveKind::AllReduce, CollectiveKind::ReduceScatter, CollectiveKind::AllGather,
                      CollectiveKind::Broadcast, CollectiveKind::Reduce},
      .valid_ranks = "any",
      .accepts = any_ranks,
      .build = build_ring,
  };
}

}  // namespace pycoll
