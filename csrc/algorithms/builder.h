// What every algorithm's file is written with.
#pragma once
#include <initializer_list>
#include <string_view>
#include <vector>

#include "algorithms/registry.h"

namespace pycoll {

// Pieces [begin, end).
struct PieceRange {
  int begin;
  int end;
  int size() const { return end - begin; }
};

// As default number of pieces: the least that the collective allows.
constexpr int kLeastPieces = 0;

class ScheduleBuilder {
 public:
  // `default_pieces` holds when the request names none. Throws InvalidArgument for pieces or a root that do
  // not fit the collective and for a parameter that is not among `params`.
  ScheduleBuilder(std::string_view algorithm, const BuildRequest& request, int default_pieces,
                  std::initializer_list<std::string_view> params = {});

  const Collective& collective() const { return schedule_.collective; }
  CollectiveKind kind() const { return collective().kind; }
  int ranks() const { return collective().ranks; }
  int pieces() const { return collective().pieces; }
  int root() const { return collective().root; }

  PieceRange all() const { return {0, pieces()}; }
  // Block `index` of `blocks` equal ones; of unequal ones where the number does not divide the pieces.
  PieceRange block(int index, int blocks) const {
    return {block_begin(index, blocks), block_begin(index + 1, blocks)};
  }
  PieceRange shard(int rank) const { return block(rank, ranks()); }

  // Rooted algorithms count from the root: position 0 is the root, the others follow it in the order of the
  // ranks, or in that of follow().
  int rank_at(int position) const {
    if (order_.empty()) return (position + root()) % ranks();
    return order_[static_cast<size_t>((position + root_position_) % ranks())];
  }
  void follow(std::vector<int> order);

  void copy(int round, int src, int dst, PieceRange pieces) { add(round, src, dst, pieces, Action::Copy); }
  void reduce(int round, int src, int dst, PieceRange pieces) {
    add(round, src, dst, pieces, Action::Reduce);
  }
  void add(int round, int src, int dst, PieceRange pieces, Action action);
  void add(const std::vector<Transfer>& transfers, int first_round);

  // The schedule, its transfers by (round, piece, src, dst).
  Schedule finish();

 private:
  int block_begin(int index, int blocks) const;

  Schedule schedule_;
  std::vector<int> order_;
  int root_position_ = 0;
};

}  // namespace pycoll
