#include <algorithm>

#include "algorithms/late_rank/phases.h"

namespace pycoll::late_rank {

// With two early ranks, swaps leave the third rank idle every third time. Instead a piece of A's goes round:
// A's sum to the late rank, which completes it, passes it to B, and B to A: each rank sends and receives in
// every round. Then the same for B's pieces the other way round. Where the late rank or its peers would idle
// at the start and at the turn, a piece of B's is completed by the late rank's own contribution instead.
// K+2 rounds, K+1 for K < 4.
std::vector<Transfer> three_ranks(int pieces) {
  constexpr int kA = 0, kB = 1, kLate = 2;
  std::vector<Transfer> transfers;
  const auto reduce = [&](int round, int src, int dst, int piece) {
    transfers.push_back({round, src, dst, piece, Action::Reduce});
  };
  const auto copy = [&](int round, int src, int dst, int piece) {
    transfers.push_back({round, src, dst, piece, Action::Copy});
  };
  if (pieces == 1) {
    reduce(0, kA, kLate, 0);
    reduce(0, kLate, kA, 0);
    copy(1, kLate, kB, 0);
    return transfers;
  }
  const int of_a = (pieces + 1) / 2, of_b = pieces / 2;
  const auto a = [](int index) { return 2 * index; };
  const auto b = [](int index) { return 2 * index + 1; };
  for (int i = 0; i < of_a; ++i) {
    reduce(i, kA, kLate, a(i));
    copy(i + 1, kLate, kB, a(i));
    copy(i + 2, kB, kA, a(i));
  }
  reduce(0, kLate, kB, b(0));
  copy(1, kB, kA, b(0));
  copy(std::max(of_a, 2), kA, kLate, b(0));
  if (of_b == 1) return transfers;
  for (int i = 1; i < of_b - 1; ++i) {
    const int start = of_a + 1 + i;
    reduce(start, kB, kLate, b(i));
    copy(start + 1, kLate, kA, b(i));
    copy(start + 2, kA, kB, b(i));
  }
  reduce(of_a + 1, kLate, kB, b(of_b - 1));
  copy(of_a + of_b, kB, kLate, b(of_b - 1));
  copy(of_a + of_b + 1, kLate, kA, b(of_b - 1));
  return transfers;
}

}  // namespace pycoll::late_rank
