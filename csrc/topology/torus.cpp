#include "topology/torus.h"

#include <algorithm>
#include <set>
#include <utility>

namespace pycoll {

namespace {

size_t at(int index) {
  return static_cast<size_t>(index);
}

using Neighbours = std::vector<std::vector<int>>;  // sorted

// Of ranks, by direct links in both directions.
Neighbours rank_neighbours(const Topology& topology) {
  std::vector<int> rank_on(topology.nodes.size(), -1);
  for (int rank = 0; rank < topology.rank_count(); ++rank) rank_on[at(topology.ranks[at(rank)])] = rank;
  std::set<std::pair<int, int>> edges;
  for (const Link& link : topology.links) edges.emplace(rank_on[at(link.from)], rank_on[at(link.to)]);
  Neighbours neighbours(topology.ranks.size());
  for (const auto& [from, to] : edges)
    if (from >= 0 && to >= 0 && edges.contains({to, from})) neighbours[at(from)].push_back(to);
  return neighbours;
}

Neighbours grid_neighbours(const std::vector<int>& sides) {
  int cells = 1;
  for (int side : sides) cells *= side;
  Neighbours neighbours(at(cells));
  for (int cell = 0; cell < cells; ++cell) {
    int stride = 1;
    for (size_t axis = sides.size(); axis-- > 0; stride *= sides[axis]) {
      const int here = cell / stride % sides[axis];
      for (int step : {1, sides[axis] - 1})
        neighbours[at(cell)].push_back(cell + ((here + step) % sides[axis] - here) * stride);
    }
    auto& list = neighbours[at(cell)];
    std::ranges::sort(list);
    list.erase(std::unique(list.begin(), list.end()), list.end());
  }
  return neighbours;
}

// Lays the ranks on the grid, cell by cell outwards from the first: a rank fits a cell if it is a neighbour
// of all the ranks that lie on neighbouring cells already.
class Layout {
 public:
  Layout(const Neighbours& ranks, const Neighbours& cells) : ranks_(ranks), cells_(cells) {
    std::vector<int> position(cells.size(), -1);
    order_ = {0};
    position[0] = 0;
    for (size_t i = 0; i < order_.size(); ++i)
      for (int next : cells[at(order_[i])])
        if (position[at(next)] < 0) {
          position[at(next)] = static_cast<int>(order_.size());
          order_.push_back(next);
        }
    for (int cell : order_) {
      laid_before_.emplace_back();
      for (int next : cells[at(cell)])
        if (position[at(next)] < position[at(cell)]) laid_before_.back().push_back(next);
    }
    rank_at_.assign(cells.size(), -1);
    used_.assign(ranks.size(), 0);
  }

  // By cell; empty if there is no way to lay them, or none was found in reasonable time.
  std::vector<int> find() {
    lay(0, 0);
    return extend(1) ? rank_at_ : std::vector<int>();
  }

 private:
  void lay(int cell, int rank) {
    rank_at_[at(cell)] = rank;
    used_[at(rank)] = 1;
  }

  bool extend(size_t index) {
    if (index == order_.size()) return true;
    if (++tries_ > kMaxTries) return false;
    const int cell = order_[index];
    const auto& before = laid_before_[index];
    for (int rank : ranks_[at(rank_at_[at(before.front())])]) {
      if (used_[at(rank)]) continue;
      const bool fits = std::ranges::all_of(before, [&](int other) {
        return std::ranges::binary_search(ranks_[at(rank)], rank_at_[at(other)]);
      });
      if (!fits) continue;
      lay(cell, rank);
      if (extend(index + 1)) return true;
      used_[at(rank)] = 0;
    }
    return false;
  }

  static constexpr int kMaxTries = 1 << 20;

  const Neighbours& ranks_;
  const Neighbours& cells_;
  std::vector<int> order_;
  std::vector<std::vector<int>> laid_before_;
  std::vector<int> rank_at_;
  std::vector<char> used_;
  int tries_ = 0;
};

// All lists of sides, the longest first, with this product.
void list_sides(int product, int most, std::vector<int>& sides, std::vector<std::vector<int>>& lists) {
  if (product == 1) lists.push_back(sides);
  for (int side = std::min(most, product); side >= 2; --side) {
    if (product % side != 0) continue;
    sides.push_back(side);
    list_sides(product / side, side, sides, lists);
    sides.pop_back();
  }
}

}  // namespace

int Torus::rank(const std::vector<int>& coordinate) const {
  int cell = 0;
  for (size_t axis = 0; axis < sides.size(); ++axis) cell = cell * sides[axis] + coordinate[axis];
  return rank_at[at(cell)];
}

Torus make_torus(std::vector<int> sides, const std::vector<int>& order) {
  Torus torus{std::move(sides), std::vector<std::vector<int>>(order.size()), order};
  for (int cell = 0; cell < static_cast<int>(order.size()); ++cell) {
    std::vector<int> coordinate(torus.sides.size());
    int rest = cell;
    for (size_t axis = torus.sides.size(); axis-- > 0; rest /= torus.sides[axis])
      coordinate[axis] = rest % torus.sides[axis];
    torus.coordinates[at(order[at(cell)])] = std::move(coordinate);
  }
  return torus;
}

std::optional<Torus> find_torus(const Topology& topology) {
  const int n = topology.rank_count();
  const Neighbours neighbours = rank_neighbours(topology);
  const size_t degree = neighbours.front().size();
  if (degree < 2 || std::ranges::any_of(neighbours, [&](const auto& list) { return list.size() != degree; }))
    return std::nullopt;
  std::vector<std::vector<int>> lists;
  std::vector<int> sides;
  list_sides(n, n, sides, lists);
  for (const auto& candidate : lists) {
    size_t expected = 0;
    for (int side : candidate) expected += side > 2 ? 2 : 1;
    if (expected != degree) continue;
    const auto order = Layout(neighbours, grid_neighbours(candidate)).find();
    if (!order.empty()) return make_torus(candidate, order);
  }
  return std::nullopt;
}

}  // namespace pycoll
