#include "topology/packing_program.h"

#include <algorithm>
#include <cmath>

namespace pycoll {

namespace {

// Symmetric machines give programs in which many vertices fall together, and simplex would circle among them;
// capacities that differ a little from each other, always in the same way, part them.
constexpr double kPerturbation = 1e-6;

double perturbation(size_t row) {
  const double golden = std::fmod(static_cast<double>(row + 1) * 0.6180339887498949, 1.0);
  return 1 + kPerturbation * golden;
}

}  // namespace

PackingProgram::PackingProgram(std::vector<double> capacity)
    : rows_(capacity.size()),
      inverse_(rows_ * rows_, 0),
      level_(std::move(capacity)),
      basic_(rows_, kSlack),
      prices_(rows_, 0) {
  for (size_t row = 0; row < rows_; ++row) {
    inverse_[row * rows_ + row] = 1;
    level_[row] *= perturbation(row);
  }
}

size_t PackingProgram::add(Column column) {
  const size_t index = columns_++;
  pivot(transformed(column), static_cast<int>(index), 1);
  price();
  drop_negative_prices();
  return index;
}

std::vector<double> PackingProgram::solution() const {
  std::vector<double> x(columns_, 0);
  for (size_t row = 0; row < rows_; ++row)
    if (basic_[row] != kSlack) x[static_cast<size_t>(basic_[row])] = std::max(level_[row], 0.0);
  return x;
}

std::vector<double> PackingProgram::transformed(const Column& column) const {
  std::vector<double> direction(rows_, 0);
  for (size_t row = 0; row < rows_; ++row) {
    const double* inverse = inverse_.data() + row * rows_;
    double sum = 0;
    for (const auto& [index, amount] : column) sum += inverse[index] * amount;
    direction[row] = sum;
  }
  return direction;
}

// Brings a variable into the basis, for the one that first falls to 0; of equal ones, that with the greatest
// pivot.
bool PackingProgram::pivot(const std::vector<double>& direction, int entering, double) {
  constexpr double least_pivot = 1e-9;
  double step = HUGE_VAL;
  for (size_t row = 0; row < rows_; ++row)
    if (direction[row] > least_pivot) step = std::min(step, (level_[row] + 1e-12) / direction[row]);
  size_t leaving = rows_;
  for (size_t row = 0; row < rows_; ++row)
    if (direction[row] > least_pivot && level_[row] / direction[row] <= step &&
        (leaving == rows_ || direction[row] > direction[leaving]))
      leaving = row;
  if (leaving == rows_) return false;
  step = std::max(level_[leaving], 0.0) / direction[leaving];
  double* pivot_row = inverse_.data() + leaving * rows_;
  const double scale = 1 / direction[leaving];
  for (size_t i = 0; i < rows_; ++i) pivot_row[i] *= scale;
  for (size_t row = 0; row < rows_; ++row) {
    if (row == leaving || direction[row] == 0) continue;
    level_[row] -= step * direction[row];
    const double factor = direction[row];
    double* inverse = inverse_.data() + row * rows_;
    for (size_t i = 0; i < rows_; ++i) inverse[i] -= factor * pivot_row[i];
  }
  level_[leaving] = step;
  basic_[leaving] = entering;
  return true;
}

// A capacity whose price is negative is better left unused in part: its slack enters.
void PackingProgram::drop_negative_prices() {
  for (size_t round = 0; round < 4 * rows_; ++round) {
    const size_t row =
        static_cast<size_t>(std::min_element(prices_.begin(), prices_.end()) - prices_.begin());
    if (prices_[row] >= -1e-9) return;
    if (!pivot(transformed({{static_cast<int>(row), 1.0}}), kSlack, 0)) return;
    price();
  }
}

void PackingProgram::price() {
  std::fill(prices_.begin(), prices_.end(), 0);
  value_ = 0;
  for (size_t row = 0; row < rows_; ++row) {
    if (basic_[row] == kSlack) continue;
    value_ += level_[row];
    const double* inverse = inverse_.data() + row * rows_;
    for (size_t i = 0; i < rows_; ++i) prices_[i] += inverse[i];
  }
}

}  // namespace pycoll
