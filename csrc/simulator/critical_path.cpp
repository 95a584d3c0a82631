#include "simulator/critical_path.h"

#include <algorithm>
#include <utility>

namespace pycoll {

std::vector<CriticalStep> critical_path(const SimulationPlan& plan, const std::vector<Trace>& trace,
                                        int32_t last, bool stored, double time) {
  constexpr double kRounding = 1e-12;
  constexpr int32_t kNone = SimulationPlan::kNone;
  const auto at = [](int32_t index) { return static_cast<size_t>(index); };
  std::vector<CriticalStep> path;
  for (int32_t step = last; step != kNone;) {
    const Trace& seen = trace[at(step)];
    const int32_t pair = plan.steps[at(step)].pair;
    CriticalStep row{};
    row.transfer = plan.transfer_of(step);
    row.reason = seen.reason;
    row.waited_for = seen.cause == kNone ? kNone : plan.transfer_of(seen.cause);
    row.link = seen.link;
    row.start = seen.start;
    row.end = time;
    if (plan.steps[at(step)].opens_message)
      row.overhead =
          std::min(plan.topology->device_of(plan.pairs[at(pair)].src).overhead, seen.sent - seen.start);
    row.transmission = seen.sent - seen.start - row.overhead;
    if (stored) {
      row.latency = std::min(plan.routes.latency[at(pair)], time - seen.sent);
      row.addition = time - seen.sent - row.latency;
      if (row.addition < kRounding * time) row.latency += std::exchange(row.addition, 0);
    }
    path.push_back(row);

    time = seen.start;
    stored = seen.reason == Reason::Data;
    Reason reason = seen.reason;
    step = seen.cause;
    // One that waited for another to start, started with it: what that one waited for is what counts.
    while (step != kNone && (reason == Reason::SendOrder || reason == Reason::ReceiveOrder)) {
      reason = trace[at(step)].reason;
      stored = reason == Reason::Data;
      step = trace[at(step)].cause;
    }
  }
  std::reverse(path.begin(), path.end());
  return path;
}

}  // namespace pycoll
