// Pipelined reduction up, and broadcast down, a rooted tree of ranks.
#pragma once
#include <vector>

#include "algorithms/builder.h"

namespace pycoll {

class Tree {
 public:
  // parent[i] is the parent of position i, -1 at the one root. Position i stands for rank ranks[i].
  Tree(std::vector<int> parent, std::vector<int> ranks);

  // Rounds between the first send of the lowest rank and the arrival at the root.
  int height() const { return height_; }

  // Piece `pieces.begin + i` follows its predecessor one round behind. A rank sends up in the round after the
  // deepest of its children could, and the root is complete after round first_round + height() - 1 + i.
  void reduce_up(ScheduleBuilder& schedule, PieceRange pieces, int first_round = 0) const;
  void broadcast_down(ScheduleBuilder& schedule, PieceRange pieces, int first_round = 0) const;

  // What the collective needs: up, down, or up and then down.
  void run(ScheduleBuilder& schedule, PieceRange pieces) const;

 private:
  template <typename Visit>  // visit(parent's rank, child's rank, depth of the child)
  void for_each_edge(Visit visit) const;

  std::vector<int> parent_;
  std::vector<int> ranks_;
  std::vector<int> depth_;
  int height_ = 0;
};

}  // namespace pycoll
