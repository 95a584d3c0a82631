#include "simulator/trace.h"

namespace pycoll {

void record(const SimulationPlan& plan, const std::vector<Trace>& trace, SimulationResult& result) {
  constexpr int32_t kNone = SimulationPlan::kNone;
  const size_t count = trace.size();
  result.start.resize(count);
  result.sent.resize(count);
  result.done.resize(count);
  result.link.resize(count);
  result.reason.resize(count);
  result.waited_for.resize(count);
  for (size_t step = 0; step < count; ++step) {
    const Trace& seen = trace[step];
    const auto transfer = static_cast<size_t>(plan.transfer_of(static_cast<int32_t>(step)));
    result.start[transfer] = seen.start;
    result.sent[transfer] = seen.sent;
    result.done[transfer] = seen.done;
    result.link[transfer] = seen.link;
    result.reason[transfer] = seen.reason;
    result.waited_for[transfer] = seen.cause == kNone ? kNone : plan.transfer_of(seen.cause);
  }
}

}  // namespace pycoll
