// Max-min fair sharing of links among the transfers that are on their way: no transfer's rate can be raised
// without lowering one that is no higher. Such rates are the only ones at which each transfer has a
// bottleneck: a full link on which none is faster (Bertsekas and Gallager, Data Networks, section 6.5.2). So
// after a start or an end it is enough to find new rates for those that lose their bottleneck by it, then for
// those that lose it by that, until all have one.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "simulator/plan.h"

namespace pycoll {

class FairShare {
 public:
  explicit FairShare(const SimulationPlan& plan);

  // A pair has at most one transfer on its way.
  void add(int32_t pair);
  void remove(int32_t pair);

  // After any number of add and remove: the pairs whose rate or bottleneck they may have changed.
  const std::vector<int32_t>& settle();

  double rate(int32_t pair) const { return rate_[at(pair)]; }               // bytes/s
  int32_t bottleneck(int32_t pair) const { return bottleneck_[at(pair)]; }  // link

 private:
  struct Member {
    int32_t pair;
    size_t hop;  // of the plan's shared hops
  };

  static size_t at(int32_t index) { return static_cast<size_t>(index); }
  double bandwidth(int32_t link) const { return plan_.topology->links[at(link)].bandwidth; }
  double share(const Member& member) const { return plan_.shared_hops[member.hop].share; }
  bool gathered(int32_t pair) const { return gathered_pair_[at(pair)] == gathering_; }
  bool overloaded(int32_t link) const;
  void gather(int32_t pair);
  void gather_links(size_t first_pair);
  void gather_connected();
  bool gather_disturbed();
  void fill();
  void freeze(int32_t pair, double rate, int32_t link);

  const SimulationPlan& plan_;
  std::vector<uint8_t> active_;  // pair
  std::vector<double> rate_;
  std::vector<int32_t> bottleneck_;
  std::vector<std::vector<Member>> members_;  // link -> active pairs over it
  std::vector<size_t> place_;                 // shared hop -> its place among the link's members
  std::vector<double> demand_;                // link: what its members would send if each were alone
  std::vector<int32_t> dirty_pairs_;
  std::vector<int32_t> dirty_links_;

  // Pairs that get a new rate, and the overloaded links they are on. Marks hold the number of the gathering.
  uint32_t gathering_ = 0;
  uint32_t filling_ = 0;
  std::vector<uint32_t> gathered_pair_;
  std::vector<uint32_t> gathered_link_;
  std::vector<uint32_t> frozen_;
  std::vector<int32_t> pairs_;
  std::vector<int32_t> links_;
  std::vector<int32_t> slowest_first_;
  std::vector<double> load_;                        // link: of members that are not gathered, or frozen
  std::vector<double> weight_;                      // link: sum of shares of the others
  std::vector<int32_t> open_;                       // link: their number
  std::vector<std::pair<double, int32_t>> levels_;  // heap of (rate at which it is full, link)
};

}  // namespace pycoll
