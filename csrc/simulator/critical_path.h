#pragma once
#include <cstdint>
#include <vector>

#include "simulator/plan.h"
#include "simulator/simulate.h"
#include "simulator/trace.h"

namespace pycoll {

// From the step that ended the run back to the one that started it. `stored`: what ended the run was that
// the last step had reached its destination, and not that it had left its source.
std::vector<CriticalStep> critical_path(const SimulationPlan& plan, const std::vector<Trace>& trace,
                                        int32_t last, bool stored, double time);

}  // namespace pycoll
