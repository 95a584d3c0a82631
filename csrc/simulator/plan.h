// What the simulator needs of a schedule on a topology, worked out once for any number of runs: who waits for
// whom, and which way each transfer takes. Flat arrays of indices, since a schedule may have millions of
// transfers.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "schedule/schedule.h"
#include "topology/routes.h"
#include "topology/topology.h"

namespace pycoll {

// A link that would carry no more than this times its bandwidth is not overloaded: sums are not exact.
constexpr double kOverload = 1 + 1e-9;

struct SimulationPlan {
  static constexpr int32_t kNone = -1;

  // A transfer. Steps stand in schedule order: by round, then by index in the schedule.
  struct Step {
    int32_t pair;
    int32_t next_in_pair = kNone;
    int32_t reads;   // version of (src, piece) that it sends
    int32_t writes;  // version of (dst, piece) that it makes, or helps to make
    int32_t next_reader = kNone;
    int32_t next_send = kNone;     // of the same source
    int32_t next_receive = kNone;  // of the same destination
    Action action;
    bool opens_message = false;  // the first of its round from its source to its destination
  };

  // A state of one (rank, piece): what it holds from the writes of one round to those of the next. It is
  // there once its writes have arrived, the version before it is there and nobody reads that any more.
  struct Version {
    int32_t next = kNone;
    int32_t first_reader = kNone;
    int32_t writes_to_come = 0;
    int32_t holds =
        0;  // reads of the version before, and one for that itself unless it is there from the start
    bool there() const { return writes_to_come == 0 && holds == 0; }
  };

  struct Pair {
    int32_t src;
    int32_t dst;
    int32_t first;      // step
    int32_t transfers;  // how many
    int32_t narrowest;  // link of its route that limits a transfer that shares none
  };

  std::shared_ptr<const Schedule> schedule;
  std::shared_ptr<const Topology> topology;

  std::vector<int32_t> index;  // step -> transfer of the schedule; empty where they are the same
  std::vector<Step> steps;
  std::vector<Version> versions;
  std::vector<Pair> pairs;          // by source
  std::vector<int32_t> first_send;  // rank -> step
  std::vector<int32_t> first_receive;

  RouteTable routes;
  // Of each pair the hops over links that all pairs at once could overload, one link for all that are full at
  // the same time. Others limit nobody beyond what a pair's own route does.
  std::vector<size_t> shared_begin;
  std::vector<Hop> shared_hops;

  int32_t transfer_of(int32_t step) const { return index.empty() ? step : index[static_cast<size_t>(step)]; }
  std::span<const Hop> shared(int32_t pair) const {
    const auto at = static_cast<size_t>(pair);
    return {shared_hops.data() + shared_begin[at], shared_begin[at + 1] - shared_begin[at]};
  }
};

// InvalidArgument where the topology has another number of ranks, ScheduleError for an index out of range;
// otherwise the schedule need not be valid. The topology must be.
SimulationPlan make_simulation_plan(std::shared_ptr<const Schedule> schedule,
                                    std::shared_ptr<const Topology> topology, Routing routing, uint64_t seed);

}  // namespace pycoll
