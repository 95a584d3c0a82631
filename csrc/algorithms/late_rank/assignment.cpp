#include "algorithms/late_rank/assignment.h"

#include <cstddef>
#include <limits>

namespace pycoll {

namespace {

constexpr int kNone = -1;

// The Hungarian method with shortest augmenting paths (Jonker and Volgenant, Computing 38, 1987). A row that
// pairs with nobody takes a column of its own, worth 0.
class Hungarian {
 public:
  explicit Hungarian(const Weights& weights)
      : weights_(weights),
        columns_(weights.columns() + weights.rows()),
        row_price_(static_cast<size_t>(weights.rows()), 0),
        column_price_(static_cast<size_t>(columns_), 0),
        row_of_(static_cast<size_t>(columns_), kNone),
        column_of_(static_cast<size_t>(weights.rows()), kNone) {}

  std::vector<int> solve() {
    // Prices at which every row has a column that costs nothing beyond them; most rows take it at once.
    for (int row = 0; row < weights_.rows(); ++row) {
      int best = weights_.columns() + row;
      for (int column = 0; column < weights_.columns(); ++column)
        if (cost(row, column) < cost(row, best)) best = column;
      row_price_[at(row)] = cost(row, best);
      if (row_of_[at(best)] == kNone) pair(row, best);
    }
    for (int row = 0; row < weights_.rows(); ++row)
      if (column_of_[at(row)] == kNone) augment(row);
    for (int row = 0; row < weights_.rows(); ++row) {
      int& column = column_of_[at(row)];
      if (column >= weights_.columns() || weights_(row, column) == 0) column = kNone;
    }
    return column_of_;
  }

 private:
  static size_t at(int index) { return static_cast<size_t>(index); }
  int64_t cost(int row, int column) const { return column < weights_.columns() ? -weights_(row, column) : 0; }
  void pair(int row, int column) {
    row_of_[at(column)] = row;
    column_of_[at(row)] = column;
  }

  // Dijkstra from the row to the nearest free column, over costs reduced by the prices; then the path's
  // columns move up one row each.
  void augment(int first_row) {
    constexpr int64_t kFar = std::numeric_limits<int64_t>::max();
    std::vector<int64_t> distance(at(columns_), kFar);
    std::vector<int> previous(at(columns_), kNone);  // the row that the path comes from
    std::vector<char> reached(at(columns_), 0);
    std::vector<int> settled;
    int row = first_row, end = kNone;
    int64_t here = 0;
    while (end == kNone) {
      int nearest = kNone;
      const auto relax = [&](int column) {
        if (reached[at(column)]) return;
        const int64_t length = here + cost(row, column) - row_price_[at(row)] - column_price_[at(column)];
        if (length < distance[at(column)]) {
          distance[at(column)] = length;
          previous[at(column)] = row;
        }
      };
      for (int column = 0; column < weights_.columns(); ++column) relax(column);
      relax(weights_.columns() + row);
      for (int column = 0; column < columns_; ++column)
        if (!reached[at(column)] && distance[at(column)] < kFar &&
            (nearest == kNone || distance[at(column)] < distance[at(nearest)]))
          nearest = column;
      here = distance[at(nearest)];
      if (row_of_[at(nearest)] == kNone) {
        end = nearest;
      } else {
        reached[at(nearest)] = 1;
        settled.push_back(nearest);
        row = row_of_[at(nearest)];
      }
    }
    row_price_[at(first_row)] += here;
    for (int column : settled) {
      row_price_[at(row_of_[at(column)])] += here - distance[at(column)];
      column_price_[at(column)] -= here - distance[at(column)];
    }
    for (int column = end; column != kNone;) {
      const int owner = previous[at(column)], next = column_of_[at(owner)];
      pair(owner, column);
      column = owner == first_row ? kNone : next;
    }
  }

  const Weights& weights_;
  const int columns_;
  std::vector<int64_t> row_price_;
  std::vector<int64_t> column_price_;
  std::vector<int> row_of_;
  std::vector<int> column_of_;
};

}  // namespace

std::vector<int> best_assignment(const Weights& weights) {
  return Hungarian(weights).solve();
}

}  // namespace pycoll
