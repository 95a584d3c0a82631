// Whom a rank exchanges messages with, and how they are numbered where messages are matched: first the ranks
// of its host, by their places on it; behind them those of other hosts, by their numbers in the group.
#pragma once
#include <optional>
#include <string>
#include <utility>

#include "engine/placement.h"
#include "transport/shm/group.h"

namespace pycoll {

class MessagePeers {
 public:
  // No placement: all are on one host.
  MessagePeers(const shm::Group& group, std::optional<Placement> placement)
      : group_(group), placement_(std::move(placement)) {}

  int near_count() const { return group_.ranks(); }
  int count() const { return near_count() + (placement_ ? placement_->ranks() : 0); }
  int self() const { return group_.rank(); }
  bool is_near(int peer) const { return peer < near_count(); }
  bool is_other(int peer) const {  // than this rank, and counted once
    return is_near(peer) ? peer != self() : !placement_->together(number(peer), number(self()));
  }

  int number(int peer) const { return is_near(peer) ? group_.number(peer) : peer - near_count(); }
  int of_number(int number) const {
    if (!placement_) return number;
    return placement_->together(number, group_.number(self())) ? placement_->local(number)
                                                               : near_count() + number;
  }

  std::string in_words(int peer) const {
    const std::string rank = "rank " + std::to_string(number(peer));
    if (is_near(peer)) return rank + " (pid " + std::to_string(group_.control(peer).pid) + ")";
    return rank + " on host '" + placement_->host(number(peer)).name + "'";
  }
  std::string self_in_words() const {
    return "group '" + group_.name() + "', rank " + std::to_string(number(self()));
  }

 private:
  const shm::Group& group_;
  std::optional<Placement> placement_;
};

}  // namespace pycoll
