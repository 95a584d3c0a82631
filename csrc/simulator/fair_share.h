// Max-min fair sharing of links among the transfers that are on their way: no transfer's rate can be raised
// without lowering one that is no higher. Found by progressive filling (Bertsekas and Gallager, Data
// Networks, section 6.5.2), and only for those that a start or an end can touch.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "simulator/plan.h"

namespace pycoll {

class FairShare {
 public:
  struct Rate {
    int32_t pair;
    double rate;   // bytes/s
    int32_t link;  // that limits it
  };

  explicit FairShare(const SimulationPlan& plan);

  // A pair has at most one transfer on its way.
  void add(int32_t pair);
  void remove(int32_t pair);

  // After any number of add and remove: the rates that they may have changed.
  const std::vector<Rate>& settle();

 private:
  struct Member {
    int32_t pair;
    size_t hop;  // of the plan's shared hops
  };

  static size_t at(int32_t index) { return static_cast<size_t>(index); }
  double bandwidth(int32_t link) const { return plan_.topology->links[at(link)].bandwidth; }
  bool overloaded(int32_t link) const;
  void gather(int32_t pair);
  void gather_component();
  void fill_component();
  void freeze(int32_t pair, double rate, int32_t link);

  const SimulationPlan& plan_;
  std::vector<uint8_t> active_;               // pair
  std::vector<std::vector<Member>> members_;  // link -> active pairs over it
  std::vector<size_t> place_;                 // shared hop -> its place among the link's members
  std::vector<double> demand_;                // link: what its members would send if each were alone
  std::vector<int32_t> dirty_pairs_;
  std::vector<int32_t> dirty_links_;

  // The component being filled: pairs that overloaded links connect. Marks hold the number of the filling.
  uint32_t filling_ = 0;
  std::vector<uint32_t> gathered_pair_;
  std::vector<uint32_t> gathered_link_;
  std::vector<uint32_t> frozen_;
  std::vector<int32_t> pairs_;
  std::vector<int32_t> links_;
  std::vector<double> load_;                        // link: of frozen members
  std::vector<double> weight_;                      // link: sum of shares of the others
  std::vector<int32_t> open_;                       // link: their number
  std::vector<std::pair<double, int32_t>> levels_;  // heap of (rate at which it is full, link)
  std::vector<Rate> rates_;
};

}  // namespace pycoll
