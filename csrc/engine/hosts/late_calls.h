// AllReduce that does not wait for whoever is late: the others reduce while they wait, so that once the last
// one comes little more than its own contribution is left to move. Who is late, and how far the others have
// come, is found out in each call (roll_call.h); the schedules are algorithms/late_rank's.
#pragma once
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "engine/arrivals.h"
#include "engine/early_gain.h"
#include "engine/executor.h"
#include "engine/hosts/exchange.h"
#include "engine/hosts/roll_call.h"
#include "engine/plans.h"

namespace pycoll {

class LateCalls {
 public:
  LateCalls(shm::Group& group, HostLinks& links, HostExchange& exchange, Executor& executor, Plans& plans,
            EarlyGain& gain);

  // Whether calls of this kind can go this way in this group; the same on all ranks.
  bool fits(const CollectiveCall& call) const;
  // In the header of such a call.
  uint64_t hash(const CollectiveCall& call) const;
  // The rank whose slow link the last call went around; -1: none.
  int around() const { return around_; }

  // The whole call. False: the ranks' calls differ, and none goes this way: the meeting of hosts will say
  // how.
  bool run(const CollectiveCall& call, const shm::CallHeader& header, uint32_t hints,
           shm::Operation& operation, std::span<uint64_t> log, double seconds_per_tick, Arrivals::Met& met);

 private:
  class EarlyGate;
  struct Key {
    std::vector<int> late;
    int groups;
    int cut;  // -1: the early ranks' part, before the arrival
    auto operator<=>(const Key&) const = default;
  };
  int groups_of(const CollectiveCall& call) const;
  std::shared_ptr<const Plan> plan(const Key& key);
  std::shared_ptr<const Plan> make(const Key& key) const;
  void wait_for_word(shm::Operation& operation);
  void finish(const CollectiveCall& call, const RollCall::State& state, int groups);

  shm::Group& group_;
  HostLinks& links_;
  HostExchange& exchange_;
  Executor& executor_;
  Plans& plans_;
  EarlyGain& gain_;
  RollCall roll_;
  RollCall::Experience last_;
  int around_ = -1;
  std::map<Key, std::shared_ptr<const Plan>> made_;
};

}  // namespace pycoll
