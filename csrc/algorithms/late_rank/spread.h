// Spreading complete pieces by matching, where no closed form says who sends what to whom.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "algorithms/late_rank/phases.h"

namespace pycoll::late_rank {

// Numbers that look random and are the same on every machine (Steele, Lea and Flood's SplitMix64, 2014).
class Dice {
 public:
  explicit Dice(uint64_t seed) : state_(seed) {}
  int64_t below(int64_t limit) {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return static_cast<int64_t>((z ^ (z >> 31)) % static_cast<uint64_t>(limit));
  }

 private:
  uint64_t state_;
};

constexpr int64_t kUnit = 256;  // in which the worth of a transfer is counted

// log2(larger / smaller) in units, rounded down: of integers, so that every machine finds the same.
int64_t log2_ratio(int64_t larger, int64_t smaller);

// Who has which complete piece. Pieces that all have are dropped, so that few are looked at.
class Holders {
 public:
  Holders(int ranks, int pieces)
      : ranks_(ranks), has_(at(pieces), std::vector<char>(at(ranks), 0)), copies_(at(pieces), 0) {}

  bool has(int rank, int piece) const { return has_[at(piece)][at(rank)]; }
  int copies(int piece) const { return copies_[at(piece)]; }
  const std::vector<int>& on_their_way() const { return live_; }
  int missing(int rank) const {
    return static_cast<int>(std::ranges::count_if(live_, [&](int piece) { return !has(rank, piece); }));
  }

  void give(int rank, int piece) {
    if (has(rank, piece)) return;
    has_[at(piece)][at(rank)] = 1;
    if (copies_[at(piece)]++ == 0) live_.push_back(piece);
    if (copies_[at(piece)] == ranks_) std::erase(live_, piece);
  }

 private:
  int ranks_;
  std::vector<std::vector<char>> has_;
  std::vector<int> copies_;
  std::vector<int> live_;
};

// Finishes what the closed form's rounds 0 .. pieces-1 began: one matching a round, the rarest pieces first.
std::vector<Transfer> drain_by_matching(int ranks, int pieces, std::vector<Transfer> transfers);

}  // namespace pycoll::late_rank
