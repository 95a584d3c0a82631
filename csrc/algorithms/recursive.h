// What the recursive algorithms share: numbers of ranks that are no power of two, and gathering by doubling.
#pragma once
#include <bit>

#include "algorithms/builder.h"

namespace pycoll {

// Of n ranks, the greatest power of two take part; the first 2 * (n - participants) ranks do so as pairs (2v,
// 2v + 1), where the odd one acts for both.
class Fold {
 public:
  explicit Fold(int ranks)
      : participants_(static_cast<int>(std::bit_floor(static_cast<unsigned>(ranks)))),
        pairs_(ranks - participants_) {}

  int participants() const { return participants_; }
  int pairs() const { return pairs_; }
  int steps() const { return std::countr_zero(static_cast<unsigned>(participants_)); }
  // Rounds that handing over to the odd ranks takes.
  int rounds_before() const { return pairs_ > 0 ? 1 : 0; }

  int rank_of(int participant) const {
    return participant < pairs_ ? 2 * participant + 1 : participant + pairs_;
  }
  // Participant v acts for ranks [first_rank(v), first_rank(v + 1)).
  int first_rank(int participant) const {
    return participant < pairs_ ? 2 * participant : participant + pairs_;
  }

 private:
  int participants_;
  int pairs_;
};

// all_gather: in step k participants at distance 2^k exchange all they have.
void all_gather_by_doubling(ScheduleBuilder& schedule);

}  // namespace pycoll
