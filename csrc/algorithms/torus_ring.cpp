#include <algorithm>
#include <numeric>
#include <sstream>
#include <utility>

#include "algorithms/builder.h"
#include "algorithms/list.h"
#include "algorithms/params.h"
#include "core/error.h"
#include "topology/rank_order.h"
#include "topology/torus.h"

namespace pycoll {

namespace {

// "4x4x4"
std::vector<int> read_sides(const std::string& text, int n) {
  std::vector<int> sides;
  std::istringstream stream(text);
  int product = 1;
  for (std::string part; std::getline(stream, part, 'x');) {
    const bool digits = !part.empty() && part.size() < 6 && part.find_first_not_of("0123456789") == part.npos;
    sides.push_back(digits ? std::stoi(part) : 0);
    product = sides.back() >= 1 && product <= n ? product * sides.back() : 0;
  }
  if (product != n || text.ends_with('x'))
    throw InvalidArgument("parameter 'sides' must be sides whose product is the number of ranks, " +
                          std::to_string(n) + ", as in '4x4x4'; not '" + text + "'");
  std::erase(sides, 1);
  return sides;
}

// The topology's torus; a single ring where it is none.
Torus choose_torus(const BuildRequest& request) {
  const auto sides = request.params.find("sides");
  if (sides == request.params.end() && request.topology)
    if (auto found = find_torus(*request.topology)) return *std::move(found);
  std::vector<int> order(static_cast<size_t>(request.ranks));
  std::iota(order.begin(), order.end(), 0);
  if (sides != request.params.end()) return make_torus(read_sides(sides->second, request.ranks), order);
  return make_torus({request.ranks}, request.topology ? ring_order(*request.topology) : order);
}

// One of the collectives that share the torus: it takes the dimensions in its own order, and goes around all
// rings in one direction.
class Bucket {
 public:
  Bucket(ScheduleBuilder& schedule, const Torus& torus, int index) : schedule_(schedule), torus_(torus) {
    const int dimensions = static_cast<int>(torus.sides.size());
    for (int i = 0; i < dimensions; ++i) axes_.push_back((index + i) % dimensions);
    forwards_ = index < dimensions;
  }

  int rounds() const {
    int sum = 0;
    for (int side : torus_.sides) sum += side - 1;
    return sum;
  }

  // Along one dimension after another, everything that belongs to the owner is reduced to the cells that have
  // the owner's coordinate.
  void reduce_scatter(int piece, int owner) {
    int round = 0;
    for (size_t phase = 0; phase < axes_.size(); ++phase) {
      const int side = torus_.sides[axis(phase)];
      for (int step = 0; step < side - 1; ++step, ++round)
        for_each_line(owner, phase, [&](std::vector<int> cell) {
          const int from = at_distance(cell, owner, phase, step + 1);
          schedule_.reduce(round, from, at_distance(cell, owner, phase, step + 2), {piece, piece + 1});
        });
    }
  }

  // The same way back, in the same direction.
  void all_gather(int piece, int owner, int first_round) {
    int round = first_round;
    for (size_t phase = axes_.size(); phase-- > 0;) {
      const int side = torus_.sides[axis(phase)];
      for (int step = 0; step < side - 1; ++step, ++round)
        for_each_line(owner, phase, [&](std::vector<int> cell) {
          const int from = at_distance(cell, owner, phase, step);
          schedule_.copy(round, from, at_distance(cell, owner, phase, step + 1), {piece, piece + 1});
        });
    }
  }

 private:
  size_t axis(size_t phase) const { return static_cast<size_t>(axes_[phase]); }

  // The rank so many steps onwards from the owner's coordinate.
  int at_distance(std::vector<int>& cell, int owner, size_t phase, int steps) const {
    const int side = torus_.sides[axis(phase)];
    const int start = torus_.coordinates[static_cast<size_t>(owner)][axis(phase)];
    cell[axis(phase)] = (start + (forwards_ ? steps : 2 * side - steps)) % side;
    return torus_.rank(cell);
  }

  // Cells, one a line along the phase's dimension, that have the owner's coordinates in the dimensions before
  // and any in those after.
  template <class Visit>
  void for_each_line(int owner, size_t phase, Visit visit) const {
    std::vector<int> cell = torus_.coordinates[static_cast<size_t>(owner)];
    for (size_t later = phase + 1; later < axes_.size(); ++later) cell[axis(later)] = 0;
    while (true) {
      visit(cell);
      size_t later = phase + 1;
      while (later < axes_.size() && ++cell[axis(later)] == torus_.sides[axis(later)])
        cell[axis(later++)] = 0;
      if (later >= axes_.size()) return;
    }
  }

  ScheduleBuilder& schedule_;
  const Torus& torus_;
  std::vector<int> axes_;
  bool forwards_;
};

Schedule build_torus_ring(const BuildRequest& request) {
  const Torus torus = request.ranks > 1 ? choose_torus(request) : Torus{};
  const int buckets = std::max(2 * static_cast<int>(torus.sides.size()), 1);
  ScheduleBuilder schedule("torus_ring", request, buckets * request.ranks, {"sides"});
  const int n = schedule.ranks();
  if (n == 1) return schedule.finish();
  std::vector<Bucket> all;
  for (int index = 0; index < buckets; ++index) all.emplace_back(schedule, torus, index);
  const bool sharded = schedule.kind() != CollectiveKind::AllReduce;
  const int in_shard = schedule.pieces() / n;
  for (int piece = 0; piece < schedule.pieces(); ++piece) {
    const int owner = sharded ? piece / in_shard : piece / buckets % n;
    Bucket& bucket = all[static_cast<size_t>((sharded ? piece % in_shard : piece) % buckets)];
    if (schedule.kind() != CollectiveKind::AllGather) bucket.reduce_scatter(piece, owner);
    if (schedule.kind() != CollectiveKind::ReduceScatter)
      bucket.all_gather(piece, owner, schedule.kind() == CollectiveKind::AllReduce ? bucket.rounds() : 0);
  }
  return schedule.finish();
}

}  // namespace

Algorithm torus_ring() {
  return {
      .name = "torus_ring",
      .description =
          "rings along every dimension of a torus, in both directions at once, each pass with the dimensions "
          "in another order, so that all links work all the time; on other machines one ring, both ways",
      .source =
          "Jain and Sabharwal, Optimal bucket algorithms for large MPI collectives on torus interconnects, "
          "ICS "
          "2010",
      .collectives = {CollectiveKind::AllReduce, CollectiveKind::ReduceScatter, CollectiveKind::AllGather},
      .valid_ranks = "any",
      .accepts = any_ranks,
      .build = build_torus_ring,
  };
}

}  // namespace pycoll
