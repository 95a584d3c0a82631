// The linear program  max sum of x  such that  sum over columns j of x_j * a_j <= capacity,  x >= 0,  by the
// revised simplex method with columns that come one at a time (Dantzig; column generation: Ford and
// Fulkerson, A suggested computation for maximal multi-commodity network flows, Management Science 5, 1958).
#pragma once
#include <cstddef>
#include <utility>
#include <vector>

namespace pycoll {

class PackingProgram {
 public:
  // Of one column: (row, amount), each row once.
  using Column = std::vector<std::pair<int, double>>;

  // Capacities are positive; best when their greatest is about 1.
  explicit PackingProgram(std::vector<double> capacity);

  // The dual of the present basis. A column gains if its cost at these prices is below 1.
  const std::vector<double>& prices() const { return prices_; }
  double value() const { return value_; }

  // Takes a column that gains into the basis and brings the prices back to 0 or more. Returns the column's
  // index.
  size_t add(Column column);

  // Of every column that was added.
  std::vector<double> solution() const;

 private:
  static constexpr int kSlack = -1;

  std::vector<double> transformed(const Column& column) const;
  bool pivot(const std::vector<double>& direction, int entering, double cost);
  void drop_negative_prices();
  void price();

  size_t rows_;
  std::vector<double> inverse_;  // of the basis, by row
  std::vector<double> level_;    // of the basic variables
  std::vector<int> basic_;       // column in the basis, or kSlack
  std::vector<double> prices_;
  double value_ = 0;
  size_t columns_ = 0;
};

}  // namespace pycoll
