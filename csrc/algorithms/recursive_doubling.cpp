#include "algorithms/list.h"
#include "algorithms/recursive.h"

namespace pycoll {

namespace {

// In step k participants at distance 2^k reduce their partial results into each other.
void allreduce_by_doubling(ScheduleBuilder& schedule) {
  const Fold fold(schedule.ranks());
  for (int pair = 0; pair < fold.pairs(); ++pair) schedule.reduce(0, 2 * pair, 2 * pair + 1, schedule.all());
  const int first = fold.rounds_before();
  for (int step = 0; step < fold.steps(); ++step)
    for (int v = 0; v < fold.participants(); ++v)
      schedule.reduce(first + step, fold.rank_of(v), fold.rank_of(v ^ 1 << step), schedule.all());
  for (int pair = 0; pair < fold.pairs(); ++pair)
    schedule.copy(first + fold.steps(), 2 * pair + 1, 2 * pair, schedule.all());
}

Schedule build_recursive_doubling(const BuildRequest& request) {
  ScheduleBuilder schedule("recursive_doubling", request, kLeastPieces);
  if (schedule.kind() == CollectiveKind::AllGather)
    all_gather_by_doubling(schedule);
  else
    allreduce_by_doubling(schedule);
  return schedule.finish();
}

}  // namespace

Algorithm recursive_doubling() {
  return {
      .name = "recursive_doubling",
      .description =
          "partners at distance 1, 2, 4, ... exchange all they have; log2 n rounds, and two more when n is "
          "no power of two",
      .source =
          "Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, "
          "IJHPCA 19 (2005), Allgather and Allreduce",
      .collectives = {CollectiveKind::AllReduce, CollectiveKind::AllGather, CollectiveKind::Barrier},
      .valid_ranks = "any",
      .accepts = any_ranks,
      .build = build_recursive_doubling,
  };
}

}  // namespace pycoll
