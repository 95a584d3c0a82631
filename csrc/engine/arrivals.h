// How a collective begins: every rank says what it calls and when it arrived, and looks at what the others
// call.
#pragma once
#include <cstdint>
#include <vector>

#include "engine/communicator.h"
#include "transport/shm/group.h"

namespace pycoll {

// The root in the header of an install(), which is otherwise a barrier.
inline constexpr int32_t kInstall = -2;

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

  // What ranks tell each other with an announcement beyond the call itself.
  enum Hint : uint32_t {
    kAsksForTrial = 1,  // of other algorithms for such calls
    kThinksNear = 2,    // the ranks' processors share a cache
    kThinksFar = 4,
  };
  static constexpr uint64_t kHints = 7;  // bits of the time stamp that no clock resolves

  struct Met {
    uint64_t last;   // ticks at which the last rank came
    uint64_t seen;   // ticks at which this rank, waiting for it, saw that; 0: it was not waiting
    uint32_t hints;  // all ranks'; the same on all ranks
  };

  void announce(uint64_t sequence, uint32_t hints = 0);
  // Waits for everyone's announcement. Throws Mismatch, on all ranks alike, unless all announced the same
  // call.
  Met match(shm::Operation& operation, bool look_at_clock = false);

  std::vector<ArrivalRecord> records() const;
  double seconds_per_tick() const { return scale_.seconds_per_tick(); }

 private:
  static constexpr size_t kRecords = 1024;
  [[noreturn]] void throw_mismatch(uint64_t sequence) const;

  shm::Group& group_;
  TickScale scale_;
  std::vector<uint64_t> ticks_;  // kRecords rows of ranks
  std::vector<uint64_t> sequences_;
};

}  // namespace pycoll
