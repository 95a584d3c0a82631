#include <algorithm>

#include "algorithms/late_rank/assignment.h"
#include "algorithms/late_rank/phases.h"
#include "algorithms/late_rank/spread.h"

namespace pycoll::late_rank {

namespace {

// Each late rank delivers its own pieces, in order, to their owners; in echelon, the next late rank one owner
// behind, or as it comes: which is better depends on the numbers. Where only its own contribution is missing,
// the owner may give it what it has, so that it completes the piece itself. Complete pieces spread, the
// rarest first. A round is a matching of senders and receivers.
class SeveralLate {
 public:
  SeveralLate(int ranks, int pieces, const std::vector<int>& arrivals, uint64_t seed)
      : ranks_(ranks),
        late_(static_cast<int>(arrivals.size())),
        owners_(ranks - late_),
        pieces_(pieces),
        arrivals_(arrivals),
        complete_(ranks, pieces),
        lacks_(at(pieces), std::vector<char>(at(late_), 1)),
        missing_(at(pieces), late_),
        first_needed_(at(owners_) * at(late_)),
        dice_(seed),
        in_echelon_(seed % 2 == 1) {
    for (int owner = 0; owner < owners_; ++owner)
      for (int index = 0; index < late_; ++index) first_needed_[at(owner) * at(late_) + at(index)] = owner;
  }

  // Empty where it takes `most` rounds or more.
  std::vector<Transfer> run(int most) {
    while (finished_ < pieces_) {
      if (round_ + 1 >= most) return {};
      play();
      ++round_;
    }
    return std::move(transfers_);
  }

 private:
  struct Option {
    int piece = -1;
    Action action = Action::Copy;
    int64_t worth = 0;
    void offer(int other_piece, Action other_action, int64_t other_worth) {
      if (other_worth > worth) *this = {other_piece, other_action, other_worth};
    }
  };

  bool is_late(int rank) const { return rank >= owners_; }
  bool here(int rank) const { return !is_late(rank) || arrivals_[at(rank - owners_)] <= round_; }
  int owner_of(int piece) const { return piece % owners_; }

  void play() {
    Weights worth(ranks_, ranks_);
    std::vector<Option> options(at(ranks_) * at(ranks_));
    for (int src = 0; src < ranks_; ++src) {
      for (int dst = 0; dst < ranks_; ++dst) {
        if (src == dst || !here(src) || !here(dst)) continue;
        Option& option = options[at(src) * at(ranks_) + at(dst)];
        offer_copies(src, dst, option);
        if (is_late(src) && !is_late(dst)) offer_deliveries(src, dst, option);
        if (!is_late(src) && is_late(dst)) offer_returns(src, dst, option);
        if (option.piece >= 0) worth(src, dst) = option.worth + dice_.below(kUnit);
      }
    }
    const std::vector<int> dst_of = best_assignment(worth);
    const size_t first = transfers_.size();
    for (int src = 0; src < ranks_; ++src) {
      if (dst_of[at(src)] < 0) continue;
      const Option& option = options[at(src) * at(ranks_) + at(dst_of[at(src)])];
      transfers_.push_back({round_, src, dst_of[at(src)], option.piece, option.action});
    }
    for (size_t i = first; i < transfers_.size(); ++i) apply(transfers_[i]);
  }

  void offer_copies(int src, int dst, Option& option) {
    for (int piece : complete_.on_their_way())
      if (complete_.has(src, piece) && !complete_.has(dst, piece))
        option.offer(piece, Action::Copy, 1000 * kUnit + 40 * log2_ratio(ranks_, complete_.copies(piece)));
  }

  // Visits the next few pieces of the owner for which it still needs the late rank's contribution.
  template <class Visit>
  void for_the_next(int owner, int late, Visit visit) {
    const int index = late - owners_;
    const auto needs = [&](int piece) {
      return lacks_[at(piece)][at(index)] && !complete_.has(owner, piece);
    };
    int& first = first_needed_[at(owner) * at(late_) + at(index)];
    while (first < pieces_ && !needs(first)) first += owners_;
    int left = late_ + 2;
    for (int piece = first; piece < pieces_ && left > 0; piece += owners_) {
      if (!needs(piece)) continue;
      --left;
      if (!complete_.has(late, piece)) visit(piece);
    }
  }

  void offer_deliveries(int late, int owner, Option& option) {
    const int behind = in_echelon_ ? late - owners_ : 0;
    for_the_next(owner, late, [&](int piece) {
      const int turn = (piece - behind + pieces_) % pieces_;
      option.offer(piece, Action::Reduce,
                   kUnit * (3000 - 60 * missing_[at(piece)]) - kUnit * 200 * turn / pieces_);
    });
  }

  void offer_returns(int owner, int late, Option& option) {
    for_the_next(owner, late, [&](int piece) {
      if (missing_[at(piece)] == 1) option.offer(piece, Action::Reduce, 2600 * kUnit);
    });
  }

  void apply(const Transfer& transfer) {
    const int piece = transfer.piece;
    if (transfer.action == Action::Reduce && is_late(transfer.src)) {
      lacks_[at(piece)][at(transfer.src - owners_)] = 0;
      if (--missing_[at(piece)] == 0) give(transfer.dst, piece);
    } else {
      give(transfer.dst, piece);
    }
  }

  void give(int rank, int piece) {
    complete_.give(rank, piece);
    if (complete_.copies(piece) == ranks_) ++finished_;
  }

  const int ranks_;
  const int late_;
  const int owners_;
  const int pieces_;
  const std::vector<int>& arrivals_;
  Holders complete_;
  std::vector<std::vector<char>> lacks_;  // by piece, by late rank: whether the owner lacks its contribution
  std::vector<int> missing_;              // by piece: how many it lacks
  std::vector<int> first_needed_;         // by owner, by late rank: no earlier piece of the owner's lacks it
  Dice dice_;
  const bool in_echelon_;
  int round_ = 0;
  int finished_ = 0;
  std::vector<Transfer> transfers_;
};

}  // namespace

std::vector<Transfer> several_late(int ranks, int pieces, const std::vector<int>& arrivals) {
  const int64_t work = int64_t{ranks} * ranks * pieces;
  const int attempts = static_cast<int>(std::clamp<int64_t>((int64_t{1} << 16) / work, 2, 16));
  const int last = arrivals.empty() ? 0 : *std::ranges::max_element(arrivals);
  int most = last + 4 * pieces + 4 * ranks;
  std::vector<Transfer> best;
  for (int seed = 0; seed < attempts; ++seed) {
    std::vector<Transfer> made = SeveralLate(ranks, pieces, arrivals, static_cast<uint64_t>(seed)).run(most);
    if (made.empty()) continue;
    best = std::move(made);
    most = rounds_of(best);
  }
  return best;
}

}  // namespace pycoll::late_rank
