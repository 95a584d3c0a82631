#include <algorithm>
#include <bit>
#include <limits>

#include "algorithms/late_rank/phases.h"
#include "algorithms/late_rank/spread.h"

namespace pycoll::late_rank {

namespace {

int depth(int ranks) {
  return std::bit_width(static_cast<unsigned>(ranks - 1));  // ceil(log2 n)
}

// Early ranks that no power of two accounts for: they own nothing, and absorb the slack.
int surplus(int ranks) {
  return (1 << depth(ranks)) - ranks;
}

// In round t the late rank and the owner of piece t swap it: each adds what the other has, and both have it
// complete. Meanwhile every other rank sends the newest complete piece that it has (its young piece) and
// receives one, so that the ranks that have piece t-j double in number in every round, until in round t+q-1
// the last get it. A rank that will own piece t+d must by then have spread its young piece, so it may take
// only one that is old enough.
class Steady {
 public:
  Steady(int ranks, int pieces)
      : early_(ranks - 1),
        depth_(depth(ranks)),
        owners_(owners(ranks)),
        pieces_(pieces),
        spread_at_(at(early_), 0),
        has_oldest_(at(early_), 1),
        quota_(at(std::max(depth_, 1)), 0) {
    // The surplus as a sum of at most 2^(j-1) times q-1-j: so many ranks that are about to lose their young
    // piece take one of age j instead of the oldest.
    int rest = surplus(ranks);
    for (int age = 1; age <= depth_ - 2; ++age) {
      quota_[at(age)] = std::min(1 << (age - 1), rest / (depth_ - 1 - age));
      rest -= quota_[at(age)] * (depth_ - 1 - age);
    }
    // As if earlier pieces, numbered below 0, were on their way: no rank with one is an owner too soon.
    int owner = owners_, other = early_, taken = 0;
    for (int age = 1; age < depth_; ++age) {
      for (int i = 0; i < (1 << (age - 1)) - taken; ++i) {
        spread_at_[at(--owner)] = depth_ - age;
        has_oldest_[at(owner)] = 0;
      }
      for (int i = 0; i < taken; ++i) spread_at_[at(--other)] = depth_ - age;
      if (age <= depth_ - 2) taken += quota_[at(age)];
    }
  }

  std::vector<Transfer> run() {
    for (round_ = 0; round_ < pieces_; ++round_) play();
    if (surplus(early_ + 1) == 0) {
      drain_in_pairs();
      return std::move(transfers_);
    }
    return drain_by_matching(early_ + 1, pieces_, std::move(transfers_));
  }

 private:
  void copy(int src, int dst, int piece) {
    if (piece >= 0) transfers_.push_back({round_, src, dst, piece, Action::Copy});
  }

  // Rounds until an early rank owns a piece again.
  int rounds_to_turn(int rank) const {
    if (rank >= owners_) return std::numeric_limits<int>::max();
    return (rank - (round_ + 1) % owners_ + owners_) % owners_ + 1;
  }

  void play() {
    const int t = round_, owner = t % owners_;
    transfers_.push_back({t, owner, early_, t, Action::Reduce});
    transfers_.push_back({t, early_, owner, t, Action::Reduce});

    std::vector<int> done, settled, settling, lacking;  // by what becomes of their young piece
    std::vector<std::vector<int>> having(at(depth_));   // by the age of their young piece
    for (int rank = 0; rank < early_; ++rank) {
      const int left = spread_at_[at(rank)] - t;
      if (rank != owner && left == 0) done.push_back(rank);
      if (left > 0) having[at(depth_ - left)].push_back(rank);
      if (!has_oldest_[at(rank)]) lacking.push_back(rank);
      if (has_oldest_[at(rank)] && left > 0) (left > 1 ? settled : settling).push_back(rank);
    }

    std::vector<std::vector<int>> receiving(at(depth_));  // by the age of what they get
    if (depth_ > 1) receiving[at(depth_ - 1)] = settled;
    size_t next = 0;
    for (int age = 1; age <= depth_ - 2; ++age)
      for (int i = 0; i < quota_[at(age)]; ++i) receiving[at(age)].push_back(settling[next++]);
    std::ranges::stable_sort(done, {}, [&](int rank) { return rounds_to_turn(rank); });
    next = 0;
    for (int age = depth_ - 1; age > 0; --age)
      while (receiving[at(age)].size() < having[at(age)].size()) receiving[at(age)].push_back(done[next++]);

    std::vector<int> giver(at(early_), -1);  // of a young piece to each rank
    for (int age = 1; age < depth_; ++age)
      for (size_t i = 0; i < having[at(age)].size(); ++i) {
        copy(having[at(age)][i], receiving[at(age)][i], t - age);
        giver[at(receiving[at(age)][i])] = having[at(age)][i];
      }
    // Where they can, two ranks exchange. Of powers of two, all do.
    std::vector<int> taker(at(early_), -1);
    for (int rank : done)
      if (std::erase(lacking, giver[at(rank)]) > 0) taker[at(rank)] = giver[at(rank)];
    next = 0;
    for (int rank : done) copy(rank, taker[at(rank)] >= 0 ? taker[at(rank)] : lacking[next++], t - depth_);

    for (int rank = 0; rank < early_; ++rank) has_oldest_[at(rank)] = spread_at_[at(rank)] == t + 1;
    if (depth_ > 1)
      for (int rank : receiving[at(depth_ - 1)]) has_oldest_[at(rank)] = 1;
    for (int age = 1; age < depth_; ++age)
      for (int rank : receiving[at(age)])
        if (spread_at_[at(rank)] <= t + 1) spread_at_[at(rank)] = t - age + depth_;
    spread_at_[at(owner)] = t + depth_;
  }

  // A power of two: the late rank is one more that has the last piece. Those that have the oldest piece, half
  // of all, exchange it for the others' young ones.
  void drain_in_pairs() {
    std::vector<int> young(at(early_ + 1), pieces_ - 1);
    for (int rank = 0; rank < early_; ++rank) young[at(rank)] = spread_at_[at(rank)] - depth_;
    for (int oldest = pieces_ - depth_; round_ < pieces_ + depth_ - 1; ++round_, ++oldest) {
      std::vector<int> givers, takers;
      for (int rank = 0; rank <= early_; ++rank)
        (young[at(rank)] == oldest ? givers : takers).push_back(rank);
      for (size_t i = 0; i < givers.size(); ++i) {
        if (takers[i] != early_) copy(givers[i], takers[i], oldest);
        if (givers[i] != early_) copy(takers[i], givers[i], young[at(takers[i])]);
        young[at(givers[i])] = young[at(takers[i])];
      }
    }
  }

  const int early_;
  const int depth_;
  const int owners_;
  const int pieces_;
  int round_ = 0;
  std::vector<int> spread_at_;    // by early rank: the round in which its young piece is everywhere
  std::vector<char> has_oldest_;  // whether it has the oldest piece that is not everywhere yet
  std::vector<int> quota_;        // by age
  std::vector<Transfer> transfers_;
};

}  // namespace

int least_rounds(int ranks, int pieces) {
  return pieces - 1 + depth(ranks);
}

bool has_closed_form(int ranks) {
  return ranks >= 2 && ranks >= (1 << (depth(ranks) - 1)) + depth(ranks);
}

int owners(int ranks) {
  return has_closed_form(ranks) ? ranks - 1 - surplus(ranks) : ranks - 1;
}

std::vector<Transfer> closed_form(int ranks, int pieces) {
  return Steady(ranks, pieces).run();
}

}  // namespace pycoll::late_rank
