// The two parts of a late-rank AllReduce, before and after the arrival, as parts of a schedule.
#pragma once
#include <vector>

#include "algorithms/builder.h"
#include "algorithms/late_rank/phases.h"

namespace pycoll::late_rank {

class Parts {
 public:
  // Virtual rank v stands for rank order[v].
  Parts(ScheduleBuilder& schedule, std::vector<int> order) : schedule_(schedule), order_(std::move(order)) {}

  // Transfers of an algorithm that cuts the buffer in `slots` equal parts, each one or several of the
  // schedule's pieces.
  void add_before(const std::vector<Transfer>& transfers, int slots) { place(transfers, slots, before_); }
  void add_after(const std::vector<Transfer>& transfers, int slots) { place(transfers, slots, after_); }

  // The ring's AllReduce of the pieces from `first` on, among all ranks in that order, after everything else.
  void add_ring(int first, const std::vector<int>& order);

  // The schedule of the request's parameter "phase": "both", "before" or "after".
  Schedule finish(const BuildRequest& request);

 private:
  void place(const std::vector<Transfer>& transfers, int slots, std::vector<Transfer>& out) const;

  ScheduleBuilder& schedule_;
  std::vector<int> order_;
  std::vector<Transfer> before_;
  std::vector<Transfer> after_;
};

}  // namespace pycoll::late_rank
