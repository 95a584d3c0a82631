#pragma once
#include <optional>
#include <vector>

#include "topology/topology.h"

namespace pycoll {

// Ranks on a grid whose lines all close to rings.
struct Torus {
  std::vector<int> sides;                     // of each dimension, at least 2
  std::vector<std::vector<int>> coordinates;  // by rank
  std::vector<int> rank_at;                   // by cell, the last dimension running fastest

  int rank(const std::vector<int>& coordinate) const;
};

// The torus that direct links between the ranks' devices form, whatever the order of the ranks and the names;
// in no dimension shorter than 3, other than where a side is 2 and its two cells are neighbours once. Nothing
// where they form none.
std::optional<Torus> find_torus(const Topology& topology);

// The ranks in order on a torus of these sides, or on a single ring.
Torus make_torus(std::vector<int> sides, const std::vector<int>& order);

}  // namespace pycoll
