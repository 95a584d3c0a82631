#include <numeric>
#include <vector>

#include "algorithms/builder.h"
#include "algorithms/list.h"

namespace pycoll {

namespace {

// The ranks a piece comes from or goes to.
std::vector<int> expand(int sole, int ranks) {
  if (sole != Collective::kEveryRank) return {sole};
  std::vector<int> every(static_cast<size_t>(ranks));
  std::iota(every.begin(), every.end(), 0);
  return every;
}

// The collective's own definition as a schedule: whoever contributes to a piece sends it to whoever is owed
// it.
Schedule build_direct(const BuildRequest& request) {
  ScheduleBuilder schedule("direct", request, kLeastPieces);
  for (int piece = 0; piece < schedule.pieces(); ++piece) {
    const int contributor = schedule.collective().sole_contributor(piece);
    const Action action = contributor == Collective::kEveryRank ? Action::Reduce : Action::Copy;
    for (int src : expand(contributor, schedule.ranks()))
      for (int dst : expand(schedule.collective().sole_recipient(piece), schedule.ranks()))
        if (src != dst) schedule.add(0, src, dst, {piece, piece + 1}, action);
  }
  return schedule.finish();
}

// Rank b reduces block b of everybody, then hands it to everybody.
Schedule build_direct_two_shot(const BuildRequest& request) {
  ScheduleBuilder schedule("direct_two_shot", request, request.ranks);
  for (int rank = 0; rank < schedule.ranks(); ++rank)
    for (int peer = 0; peer < schedule.ranks(); ++peer) {
      if (peer == rank) continue;
      schedule.reduce(0, peer, rank, schedule.shard(rank));
      schedule.copy(1, rank, peer, schedule.shard(rank));
    }
  return schedule.finish();
}

}  // namespace

Algorithm direct() {
  return {
      .name = "direct",
      .description =
          "one round: each rank sends its piece to everyone who needs it; the least latency, and for "
          "allreduce n-1 times the data a rank",
      .source =
          "the collective's definition; for allreduce known as one-shot (TensorRT-LLM, vLLM custom "
          "allreduce)",
      .collectives = {CollectiveKind::AllReduce, CollectiveKind::ReduceScatter, CollectiveKind::AllGather,
                      CollectiveKind::Broadcast, CollectiveKind::Reduce, CollectiveKind::Gather,
                      CollectiveKind::Scatter, CollectiveKind::AllToAll, CollectiveKind::Barrier},
      .valid_ranks = "any",
      .accepts = any_ranks,
      .build = build_direct,
  };
}

Algorithm direct_two_shot() {
  return {
      .name = "direct_two_shot",
      .description =
          "two rounds: a direct reduce_scatter, then a direct all_gather; the ring's traffic at a fixed "
          "latency, where every pair of ranks is connected",
      .source =
          "Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, "
          "IJHPCA 19 (2005), Reduce-Scatter and Allreduce, with the pairwise steps taken at once; known as "
          "two-shot",
      .collectives = {CollectiveKind::AllReduce},
      .valid_ranks = "any",
      .accepts = any_ranks,
      .build = build_direct_two_shot,
  };
}

}  // namespace pycoll
