#include "algorithms/tree.h"

#include <algorithm>
#include <utility>

namespace pycoll {

Tree::Tree(std::vector<int> parent, std::vector<int> ranks)
    : parent_(std::move(parent)), ranks_(std::move(ranks)) {
  for (int position : parent_) {
    int depth = 0;
    for (; position >= 0; position = parent_[static_cast<size_t>(position)]) ++depth;
    depth_.push_back(depth);
    height_ = std::max(height_, depth);
  }
}

template <typename Visit>
void Tree::for_each_edge(Visit visit) const {
  for (size_t child = 0; child < parent_.size(); ++child)
    if (parent_[child] >= 0) visit(ranks_[static_cast<size_t>(parent_[child])], ranks_[child], depth_[child]);
}

void Tree::reduce_up(ScheduleBuilder& schedule, PieceRange pieces, int first_round) const {
  for_each_edge([&](int parent, int child, int depth) {
    for (int i = 0; i < pieces.size(); ++i)
      schedule.reduce(first_round + height_ - depth + i, child, parent,
                      {pieces.begin + i, pieces.begin + i + 1});
  });
}

void Tree::broadcast_down(ScheduleBuilder& schedule, PieceRange pieces, int first_round) const {
  for_each_edge([&](int parent, int child, int depth) {
    for (int i = 0; i < pieces.size(); ++i)
      schedule.copy(first_round + depth - 1 + i, parent, child, {pieces.begin + i, pieces.begin + i + 1});
  });
}

void Tree::run(ScheduleBuilder& schedule, PieceRange pieces) const {
  switch (schedule.kind()) {
    case CollectiveKind::Reduce:
      return reduce_up(schedule, pieces);
    case CollectiveKind::Broadcast:
      return broadcast_down(schedule, pieces);
    default:
      reduce_up(schedule, pieces);
      broadcast_down(schedule, pieces, height_);
  }
}

}  // namespace pycoll
