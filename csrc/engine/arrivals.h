// How a collective begins: every rank says what it calls and when it arrived, and looks at what the others
// call.
#pragma once
#include <cstdint>
#include <vector>

#include "engine/communicator.h"
#include "transport/shm/group.h"

namespace pycoll {

class Arrivals {
 public:
  explicit Arrivals(shm::Group& group);

  // The caller fills header(sequence) and may put a payload where payload() or the small slot says, before
  // announcing.
  shm::CallHeader& header(uint64_t sequence) { return group_.mine().header[sequence & 1]; }
  const shm::CallHeader& header(int rank, uint64_t sequence) const {
    return group_.control(rank).header[sequence & 1];
  }
  std::byte* payload(int rank, uint64_t sequence) const {
    return group_.control(rank).arrival[sequence & 1].payload;
  }

  void announce(uint64_t sequence);
  // Waits for everyone's announcement. Throws Mismatch, on all ranks alike, unless all announced the same
  // call.
  void match(shm::Operation& operation);

  std::vector<ArrivalRecord> records() const;

 private:
  static constexpr size_t kRecords = 1024;
  [[noreturn]] void throw_mismatch(uint64_t sequence) const;

  shm::Group& group_;
  TickScale scale_;
  std::vector<uint64_t> ticks_;  // kRecords rows of ranks
  std::vector<uint64_t> sequences_;
};

}  // namespace pycoll
