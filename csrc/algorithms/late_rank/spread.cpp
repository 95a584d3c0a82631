#include "algorithms/late_rank/spread.h"

#include <algorithm>

#include "algorithms/late_rank/assignment.h"

namespace pycoll::late_rank {

namespace {

// One round: the best matching of those that may send with those that may receive. value(src, dst, piece) is
// what it is worth that `src` passes `piece` on.
template <class Value>
void match(const std::vector<char>& busy, int round, Holders& holders, Value value,
           std::vector<Transfer>& transfers) {
  const int ranks = static_cast<int>(busy.size());
  Weights weights(ranks, ranks);
  std::vector<int> piece_of(at(ranks) * at(ranks), -1);
  for (int src = 0; src < ranks; ++src) {
    if (busy[at(src)]) continue;
    std::vector<int> offers;
    for (int piece : holders.on_their_way())
      if (holders.has(src, piece)) offers.push_back(piece);
    for (int dst = 0; dst < ranks; ++dst) {
      if (dst == src || busy[at(dst)]) continue;
      for (int piece : offers) {
        if (holders.has(dst, piece)) continue;
        const int64_t weight = value(src, dst, piece);
        if (weight <= weights(src, dst)) continue;
        weights(src, dst) = weight;
        piece_of[at(src) * at(ranks) + at(dst)] = piece;
      }
    }
  }
  const std::vector<int> dst_of = best_assignment(weights);
  for (int src = 0; src < ranks; ++src)
    if (dst_of[at(src)] >= 0)
      transfers.push_back(
          {round, src, dst_of[at(src)], piece_of[at(src) * at(ranks) + at(dst_of[at(src)])], Action::Copy});
  for (int src = 0; src < ranks; ++src)
    if (dst_of[at(src)] >= 0)
      holders.give(dst_of[at(src)], piece_of[at(src) * at(ranks) + at(dst_of[at(src)])]);
}

// All matchings of one attempt; stops after `most` rounds.
std::vector<Transfer> attempt(int ranks, int pieces, const std::vector<int>& cluster, int most,
                              uint64_t seed) {
  const int late = ranks - 1, early = ranks - 1, depth = least_rounds(ranks, 1);
  Holders holders(ranks, pieces);
  Dice dice(seed);
  std::vector<Transfer> transfers;
  for (int round = 0; round < pieces || !holders.on_their_way().empty(); ++round) {
    if (round == most) return {};
    std::vector<char> busy(at(ranks), 0);
    const int owner = round % early;
    if (round < pieces) {
      transfers.push_back({round, owner, late, round, Action::Reduce});
      transfers.push_back({round, late, owner, round, Action::Reduce});
      busy[at(owner)] = busy[at(late)] = 1;
    }
    match(
        busy, round, holders,
        [&](int src, int dst, int piece) {
          const bool near = cluster.empty() || cluster[at(src)] == cluster[at(dst)];
          int64_t weight = (near ? 3000 : 1000) * kUnit + 40 * log2_ratio(ranks, holders.copies(piece)) +
                           dice.below(kUnit);
          const int turn = (dst - (round + 1) % early + early) % early + 1;  // rounds to the next of its own
          if (turn < depth && round + turn < pieces && piece > round + turn - depth) weight -= 300 * kUnit;
          return weight;
        },
        transfers);
    if (round < pieces) {
      holders.give(owner, round);
      holders.give(late, round);
    }
  }
  return transfers;
}

}  // namespace

int64_t log2_ratio(int64_t larger, int64_t smaller) {
  int64_t log = 0;
  for (; larger >= 2 * smaller; smaller *= 2) log += 256;
  int64_t ratio = (larger << 30) / smaller;  // in [1, 2), of 30 binary digits
  for (int64_t digit = 128; digit > 0; digit /= 2) {
    ratio = (ratio * ratio) >> 30;
    if (ratio >= int64_t{2} << 30) {
      log += digit;
      ratio /= 2;
    }
  }
  return log;
}

std::vector<Transfer> by_matching(int ranks, int pieces, const std::vector<int>& cluster) {
  const int least = least_rounds(ranks, pieces);
  // As many as take no longer than about a tenth of a second.
  const int64_t work = int64_t{ranks} * ranks * least;
  const int attempts = static_cast<int>(std::clamp<int64_t>((int64_t{1} << 20) / work, 1, 16));
  std::vector<Transfer> best;
  for (int seed = 0; seed < attempts; ++seed) {
    const int most = best.empty() ? 2 * least + ranks : rounds_of(best);
    std::vector<Transfer> made = attempt(ranks, pieces, cluster, most, static_cast<uint64_t>(seed));
    if (made.empty()) continue;  // no better
    best = std::move(made);
    if (rounds_of(best) == least) break;
  }
  return best;
}

std::vector<Transfer> drain_by_matching(int ranks, int pieces, std::vector<Transfer> transfers) {
  const int least = least_rounds(ranks, pieces);
  Holders after(ranks, pieces);
  for (const Transfer& transfer : transfers) after.give(transfer.dst, transfer.piece);
  const size_t so_far = transfers.size();
  for (uint64_t seed = 0;; ++seed) {
    Holders holders = after;
    Dice dice(seed);
    for (int round = pieces; round < least + static_cast<int>(seed / 64); ++round) {
      std::vector<int64_t> need(at(ranks));
      for (int rank = 0; rank < ranks; ++rank) need[at(rank)] = 40 * kUnit * holders.missing(rank);
      match(
          std::vector<char>(at(ranks), 0), round, holders,
          [&](int, int dst, int piece) {
            return 1000 * kUnit + 60 * log2_ratio(ranks, holders.copies(piece)) + need[at(dst)] +
                   dice.below(8 * kUnit);
          },
          transfers);
    }
    if (holders.on_their_way().empty()) return transfers;
    transfers.resize(so_far);
  }
}

}  // namespace pycoll::late_rank
