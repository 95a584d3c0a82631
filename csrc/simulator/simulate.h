// How long a schedule takes on a topology: a flow-level, event-driven simulation. A transfer waits for its
// data and for its turn, holds its place for the sender's overhead and its bytes' time at the rate that
// max-min fair sharing of links leaves it, and arrives a latency later. The transfers of one round from one
// rank to another are one message: its first has the overhead.
#pragma once
#include <cstdint>
#include <vector>

#include "core/function_ref.h"
#include "simulator/plan.h"

namespace pycoll {

// What a transfer waited for last before it started.
enum class Reason : uint8_t {
  Nothing,       // started at 0
  Arrival,       // its source or destination came late
  Data,          // the transfer that completed what it sends
  Reading,       // a transfer that read, and so kept from being overwritten, what it sends
  Turn,          // the transfer before it from the same source to the same destination
  SendPort,      // a transfer that held the port of its source
  ReceivePort,   // of its destination
  SendOrder,     // an earlier transfer of its source that had not started yet
  ReceiveOrder,  // of its destination
};

// A piece of the chain that the total time is made of; each begins where the one before ends. It is
// overhead, transmission, latency and addition long, in that order; a part that nothing waited for is 0.
struct CriticalStep {
  int32_t transfer;    // index in the schedule
  Reason reason;       // why it did not start before `start`
  int32_t waited_for;  // transfer, or -1
  int32_t link;        // that limited its transmission the longest
  double start;
  double overhead;
  double transmission;
  double latency;
  double addition;  // and waiting for the device's other additions, or for its buffer to be free
  double end;
};

struct SimulationResult {
  double time = 0;  // of the last rank
  std::vector<double>
      rank_times;  // all of a rank's sends are out and all it is sent has been added or stored
  // By index in the schedule.
  std::vector<double> start;
  std::vector<double> sent;   // its last byte is on its way; its place is free
  std::vector<double> done;   // at its destination, added where it is to be
  std::vector<int32_t> link;  // that limited it the longest
  std::vector<Reason> reason;
  std::vector<int32_t> waited_for;  // a transfer, or -1
  // By link.
  std::vector<double> link_bytes;
  std::vector<CriticalStep> critical_path;
};

// `size`: bytes of the logical buffer; its pieces are equal. `arrivals`: seconds at which each rank comes, or
// empty: all at 0. `poll` is called now and then and may throw. InvalidArgument for a size or an arrival that
// is no number of bytes or seconds.
SimulationResult simulate(const SimulationPlan& plan, double size, const std::vector<double>& arrivals,
                          FunctionRef<void()> poll);

}  // namespace pycoll
