#include <vector>

#include "algorithms/list.h"
#include "algorithms/recursive.h"

namespace pycoll {

namespace {

// Participants halve, step by step, the range of blocks that they answer for: of two partners the one whose
// distance bit is 0 keeps the lower half. After all steps each answers for one block.
class Halving {
 public:
  Halving(const Fold& fold, std::vector<int> distances) : fold_(fold), distances_(std::move(distances)) {}

  // Distances n/2, ..., 2, 1: participant v ends with block v, which reduce_scatter and all_gather need.
  static Halving far_first(const Fold& fold) {
    std::vector<int> distances;
    for (int distance = fold.participants() / 2; distance > 0; distance /= 2) distances.push_back(distance);
    return {fold, distances};
  }
  // Distances 1, 2, ..., n/2: the most data goes to the nearest partner.
  static Halving near_first(const Fold& fold) {
    std::vector<int> distances;
    for (int distance = 1; distance < fold.participants(); distance *= 2) distances.push_back(distance);
    return {fold, distances};
  }

  // Each hands its partner the half that the partner keeps.
  template <typename PiecesOf>
  void halve(ScheduleBuilder& schedule, int first_round, PiecesOf pieces_of) const {
    for (int step = 0; step < fold_.steps(); ++step)
      for_each_pair(step, [&](int v, int partner) {
        schedule.reduce(first_round + step, fold_.rank_of(v), fold_.rank_of(partner),
                        pieces_of(blocks_after(step + 1, partner)));
      });
  }

  // The same steps backwards: each hands its partner all it has.
  template <typename PiecesOf>
  void double_back(ScheduleBuilder& schedule, int first_round, PiecesOf pieces_of) const {
    for (int step = fold_.steps() - 1; step >= 0; --step)
      for_each_pair(step, [&](int v, int partner) {
        schedule.copy(first_round + fold_.steps() - 1 - step, fold_.rank_of(v), fold_.rank_of(partner),
                      pieces_of(blocks_after(step + 1, v)));
      });
  }

 private:
  template <typename Visit>
  void for_each_pair(int step, Visit visit) const {
    for (int v = 0; v < fold_.participants(); ++v) visit(v, v ^ distances_[static_cast<size_t>(step)]);
  }

  PieceRange blocks_after(int steps, int v) const {
    PieceRange range{0, fold_.participants()};
    for (int step = 0; step < steps; ++step) {
      const int middle = (range.begin + range.end) / 2;
      (v & distances_[static_cast<size_t>(step)] ? range.begin : range.end) = middle;
    }
    return range;
  }

  Fold fold_;
  std::vector<int> distances_;
};

// For collectives in shards, block v is the shards of the ranks that participant v acts for.
auto shards_of(const ScheduleBuilder& schedule, const Fold& fold) {
  return [&schedule, fold](PieceRange blocks) {
    return PieceRange{schedule.shard(fold.first_rank(blocks.begin)).begin,
                      schedule.shard(fold.first_rank(blocks.end)).begin};
  };
}

void allreduce_by_halving_and_doubling(ScheduleBuilder& schedule) {
  const Fold fold(schedule.ranks());
  const Halving halving = Halving::near_first(fold);
  const auto pieces_of = [&](PieceRange blocks) {
    return PieceRange{schedule.block(blocks.begin, fold.participants()).begin,
                      schedule.block(blocks.end, fold.participants()).begin};
  };
  for (int pair = 0; pair < fold.pairs(); ++pair) schedule.reduce(0, 2 * pair, 2 * pair + 1, schedule.all());
  const int first = fold.rounds_before();
  halving.halve(schedule, first, pieces_of);
  halving.double_back(schedule, first + fold.steps(), pieces_of);
  for (int pair = 0; pair < fold.pairs(); ++pair)
    schedule.copy(first + 2 * fold.steps(), 2 * pair + 1, 2 * pair, schedule.all());
}

void reduce_scatter_by_halving(ScheduleBuilder& schedule) {
  const Fold fold(schedule.ranks());
  for (int pair = 0; pair < fold.pairs(); ++pair) schedule.reduce(0, 2 * pair, 2 * pair + 1, schedule.all());
  const int first = fold.rounds_before();
  Halving::far_first(fold).halve(schedule, first, shards_of(schedule, fold));
  for (int pair = 0; pair < fold.pairs(); ++pair)
    schedule.copy(first + fold.steps(), 2 * pair + 1, 2 * pair, schedule.shard(2 * pair));
}

Schedule build_recursive_halving_doubling(const BuildRequest& request) {
  const bool allreduce = request.kind == CollectiveKind::AllReduce;
  ScheduleBuilder schedule(
      "recursive_halving_doubling", request,
      allreduce && request.ranks > 0 ? Fold(request.ranks).participants() : request.ranks);
  switch (schedule.kind()) {
    case CollectiveKind::ReduceScatter:
      reduce_scatter_by_halving(schedule);
      break;
    case CollectiveKind::AllGather:
      all_gather_by_doubling(schedule);
      break;
    default:
      allreduce_by_halving_and_doubling(schedule);
  }
  return schedule.finish();
}

}  // namespace

void all_gather_by_doubling(ScheduleBuilder& schedule) {
  const Fold fold(schedule.ranks());
  for (int pair = 0; pair < fold.pairs(); ++pair)
    schedule.copy(0, 2 * pair, 2 * pair + 1, schedule.shard(2 * pair));
  const int first = fold.rounds_before();
  Halving::far_first(fold).double_back(schedule, first, shards_of(schedule, fold));
  for (int pair = 0; pair < fold.pairs(); ++pair) {
    schedule.copy(first + fold.steps(), 2 * pair + 1, 2 * pair,
                  {schedule.all().begin, schedule.shard(2 * pair).begin});
    schedule.copy(first + fold.steps(), 2 * pair + 1, 2 * pair,
                  {schedule.shard(2 * pair).end, schedule.all().end});
  }
}

Algorithm recursive_halving_doubling() {
  return {
      .name = "recursive_halving_doubling",
      .description =
          "partners halve what each has to reduce, then double back what each has; the ring's traffic in "
          "2 log2 n rounds, and two more rounds of whole buffers when n is no power of two",
      .source =
          "Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, "
          "IJHPCA 19 (2005), Reduce-Scatter, and Rabenseifner's algorithm under Allreduce",
      .collectives = {CollectiveKind::AllReduce, CollectiveKind::ReduceScatter, CollectiveKind::AllGather},
      .valid_ranks = "any",
      .accepts = any_ranks,
      .build = build_recursive_halving_doubling,
  };
}

}  // namespace pycoll
