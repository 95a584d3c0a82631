// best_assignment against all ways there are.
#include "algorithms/late_rank/assignment.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <string>

#include "check.h"

using namespace pycoll;
using pycoll::test::check;

namespace {

// Of all permutations of the columns, rows beyond them left alone.
int64_t best_by_trial(const Weights& weights) {
  const int size = std::max(weights.rows(), weights.columns());
  std::vector<int> order(static_cast<size_t>(size));
  std::iota(order.begin(), order.end(), 0);
  int64_t best = 0;
  do {
    int64_t sum = 0;
    for (int row = 0; row < weights.rows(); ++row)
      if (const int column = order[static_cast<size_t>(row)]; column < weights.columns())
        sum += weights(row, column);
    best = std::max(best, sum);
  } while (std::ranges::next_permutation(order).found);
  return best;
}

void try_one(int rows, int columns, int64_t most, std::mt19937& random) {
  Weights weights(rows, columns);
  for (int row = 0; row < rows; ++row)
    for (int column = 0; column < columns; ++column)
      if (random() % 3 != 0) weights(row, column) = static_cast<int64_t>(random()) % (most + 1);
  const std::vector<int> found = best_assignment(weights);
  int64_t sum = 0;
  std::set<int> taken;
  for (int row = 0; row < rows; ++row) {
    const int column = found[static_cast<size_t>(row)];
    if (column < 0) continue;
    check(column < columns && weights(row, column) > 0, "a pair that is none");
    check(taken.insert(column).second, "a column with two rows");
    sum += weights(row, column);
  }
  check(sum == best_by_trial(weights), std::to_string(rows) + " rows, " + std::to_string(columns) +
                                           " columns: " + std::to_string(sum) + " is not the greatest sum");
}

void small_ones_all() {
  std::mt19937 random(1);
  for (int rows = 0; rows <= 6; ++rows)
    for (int columns = 0; columns <= 6; ++columns)
      for (const int64_t most : {1, 2, 5, 1000000})
        for (int repeat = 0; repeat < 4; ++repeat) try_one(rows, columns, most, random);
}

}  // namespace

int main() {
  test::run("of all assignments the best", small_ones_all);
  return test::result();
}
