#pragma once
#include <cstdint>
#include <vector>

#include "schedule/schedule.h"

namespace pycoll {

// What a schedule asks of the machine; reported, not judged.
struct ScheduleReport {
  int rounds = 0;
  int depth = 0;                         // longest chain of transfers each of which needs the one before
  int max_send_ports = 0;                // most ranks that any rank sends to in one round
  int max_recv_ports = 0;                // most ranks that any rank receives from in one round
  std::vector<int64_t> pieces_sent;      // by rank
  std::vector<int64_t> pieces_received;  // by rank
};

// Walks the rounds with one set of contributions a (rank, piece). Throws ScheduleError naming round, transfer
// and reason for: a reduce of overlapping contributions (double counting), a copy of a value that is not
// complete, a read of nothing, two writes to one (rank, piece) in one round unless all are reduces, a
// transfer to oneself, an index out of range, an unmet postcondition. A part is played with what precedes and
// follows it; the report is of the part alone.
ScheduleReport verify(const Schedule& schedule);

}  // namespace pycoll
