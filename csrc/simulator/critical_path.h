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

// From the step that ended the run back to the one that started it. `stored`: what ended the run was that
// the last step had reached its destination, and not that it had left its source.
std::vector<CriticalStep> critical_path(const SimulationPlan& plan, const std::vector<Trace>& trace,
                                        int32_t last, bool stored, double time);

}  // namespace pycoll
