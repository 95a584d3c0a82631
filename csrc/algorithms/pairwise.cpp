#include <bit>

#include "algorithms/builder.h"
#include "algorithms/list.h"

namespace pycoll {

namespace {

// In step s every rank sends to one rank and receives from one: its partner r xor s when n is a power of two,
// else to r + s and from r - s.
Schedule build_pairwise(const BuildRequest& request) {
  ScheduleBuilder schedule("pairwise", request, kLeastPieces);
  const int n = schedule.ranks();
  const bool exchange = std::has_single_bit(static_cast<unsigned>(n));
  for (int step = 1; step < n; ++step)
    for (int rank = 0; rank < n; ++rank) {
      const int peer = exchange ? rank ^ step : (rank + step) % n;
      schedule.copy(step - 1, rank, peer, schedule.block(rank * n + peer, n * n));
    }
  return schedule.finish();
}

}  // namespace

Algorithm pairwise() {
  return {
      .name = "pairwise",
      .description =
          "n-1 rounds, in each of which every rank sends one block to one rank and receives one from one",
      .source =
          "Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, "
          "IJHPCA 19 (2005), All-to-All, long messages",
      .collectives = {CollectiveKind::AllToAll},
      .valid_ranks = "any",
      .accepts = any_ranks,
      .build = build_pairwise,
  };
}

}  // namespace pycoll
