// Weighted bipartite matching, for rounds in which each rank sends to one other.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace pycoll {

// What it is worth to pair row i with column j; 0: they cannot be paired.
class Weights {
 public:
  Weights(int rows, int columns)
      : rows_(rows), columns_(columns), of_(static_cast<size_t>(rows) * static_cast<size_t>(columns), 0) {}
  int rows() const { return rows_; }
  int columns() const { return columns_; }
  int64_t& operator()(int row, int column) { return of_[index(row, column)]; }
  int64_t operator()(int row, int column) const { return of_[index(row, column)]; }

 private:
  size_t index(int row, int column) const {
    return static_cast<size_t>(row) * static_cast<size_t>(columns_) + static_cast<size_t>(column);
  }
  int rows_;
  int columns_;
  std::vector<int64_t> of_;
};

// For each row its column or -1: of all ways to pair rows with columns, one of the greatest sum of weights.
// Weights must not be negative. Integers only, so every machine finds the same. Time: rows^2 * columns.
std::vector<int> best_assignment(const Weights& weights);

}  // namespace pycoll
