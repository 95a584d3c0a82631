#pragma once
#include <cstdint>
#include <vector>

#include "simulator/plan.h"
#include "simulator/simulate.h"

namespace pycoll {

// What became of a step.
struct Trace {
  double start = 0;
  double sent = 0;
  double done = 0;
  int32_t link = SimulationPlan::kNone;
  int32_t cause = SimulationPlan::kNone;  // step that it waited for
  Reason reason = Reason::Nothing;
};

// Into the result's arrays, which are in the schedule's order.
void record(const SimulationPlan& plan, const std::vector<Trace>& trace, SimulationResult& result);

}  // namespace pycoll
