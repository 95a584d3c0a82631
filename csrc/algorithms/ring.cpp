#include "algorithms/builder.h"
#include "algorithms/list.h"

namespace pycoll {

namespace {

// Block b starts at rank b + 1, travels once around collecting every contribution, and ends complete at rank
// b. In every step each rank sends one block and receives another.
void reduce_scatter_around(ScheduleBuilder& schedule) {
  const int n = schedule.ranks();
  for (int step = 0; step < n - 1; ++step)
    for (int rank = 0; rank < n; ++rank)
      schedule.reduce(step, rank, (rank + 1) % n, schedule.shard((rank - step - 1 + n) % n));
}

// Block b starts at rank b and travels once around.
void all_gather_around(ScheduleBuilder& schedule, int first_round) {
  const int n = schedule.ranks();
  for (int step = 0; step < n - 1; ++step)
    for (int rank = 0; rank < n; ++rank)
      schedule.copy(first_round + step, rank, (rank + 1) % n, schedule.shard((rank - step + n) % n));
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

Schedule build_ring(const BuildRequest& request) {
  ScheduleBuilder schedule("ring", request, request.ranks);
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
          "allreduce); broadcast and reduce are a pipelined chain",
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
