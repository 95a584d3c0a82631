// The parts that a late-rank AllReduce is made of. Ranks are virtual here: 0 .. n-2 came early, n-1 is the
// late one. A piece's owner is the early rank that has the sum over all early ranks before the late one
// comes.
#pragma once
#include <memory>
#include <vector>

#include "schedule/schedule.h"

namespace pycoll::late_rank {

inline size_t at(int index) {
  return static_cast<size_t>(index);
}

// What every schedule of this family needs at least: piece K-1 leaves the late rank in round K-1, and the
// ranks that have it at most double in every round.
int least_rounds(int ranks, int pieces);

// Whether the closed form covers so many ranks; it takes least_rounds.
bool has_closed_form(int ranks);

// Early ranks 0 .. owners(n)-1 own piece 0, 1, ... in turn.
int owners(int ranks);

// Early ranks 0 .. early-1 reduce each piece to its owner, while they wait; ranks 0 .. owners-1 own the
// pieces in turn. What happens to a group of so many pieces does not depend on those after it.
std::vector<Transfer> reduce_to_owners(int early, int owners, int pieces, int group);

// From the owners' sums and the late ranks' own pieces to everybody's result. Late rank number i comes in
// round arrivals[i]; of one, that is round 0. Several late ranks are ranks n-L .. n-1, and all others owners.
// With a cluster for each rank, pieces pass from one to another no more often than they must, for more
// rounds; then all early ranks are owners.
std::shared_ptr<const std::vector<Transfer>> after_arrival(int ranks, int pieces,
                                                           const std::vector<int>& arrivals,
                                                           const std::vector<int>& cluster);

// The generators that it chooses from.
std::vector<Transfer> closed_form(int ranks, int pieces);  // where there is one
std::vector<Transfer> three_ranks(int pieces);             // n = 3
std::vector<Transfer> by_matching(int ranks, int pieces, const std::vector<int>& cluster);  // any
std::vector<Transfer> several_late(int ranks, int pieces, const std::vector<int>& arrivals);

}  // namespace pycoll::late_rank
