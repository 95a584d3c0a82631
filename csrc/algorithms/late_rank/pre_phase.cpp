#include "algorithms/late_rank/phases.h"

namespace pycoll::late_rank {

// Piece p of owner w walks once around the ring of early ranks, w+1, w+2, ..., w, and collects. In round t
// the hop of lane i leaves rank i+t, so that no two lanes ever meet at a port; a lane that is free may take a
// piece whose walk begins where the lane is. With as many owners as early ranks this is the ring's
// reduce-scatter, one group of pieces after the other. With fewer, a lane may take pieces of a later group
// only when all of the groups before have begun, so that no group depends on how many follow it.
std::vector<Transfer> reduce_to_owners(int early, int owners, int pieces, int group) {
  const int hops = early - 1;
  std::vector<Transfer> transfers;
  if (hops < 1) return transfers;
  std::vector<int> next(at(owners));  // piece that each owner's next walk is for
  for (int owner = 0; owner < owners; ++owner) next[at(owner)] = owner;
  std::vector<int> busy_until(at(early), 0);
  std::vector<int> to_begin(at((pieces + group - 1) / group), group);  // by group
  if (pieces % group != 0) to_begin.back() = pieces % group;
  size_t current = 0;
  for (int round = 0; current < to_begin.size(); ++round) {
    for (int lane = 0; lane < early; ++lane) {
      const int owner = (lane + round + early - 1) % early;
      if (busy_until[at(lane)] > round || owner >= owners) continue;
      const int piece = next[at(owner)];
      if (piece >= pieces || at(piece / group) > current) continue;
      for (int hop = 0; hop < hops; ++hop)
        transfers.push_back(
            {round + hop, (owner + 1 + hop) % early, (owner + 2 + hop) % early, piece, Action::Reduce});
      busy_until[at(lane)] = round + hops;
      next[at(owner)] += owners;
      if (--to_begin[at(piece / group)] == 0) ++current;
      if (current == to_begin.size()) break;
    }
  }
  return transfers;
}

}  // namespace pycoll::late_rank
