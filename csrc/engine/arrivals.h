// How a collective begins: every rank says what it calls and when it arrived, and looks at what the others
// call.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "engine/communicator.h"
#include "transport/shm/group.h"

namespace pycoll {

class Arrivals {
 public:
  explicit Arrivals(shm::Group& group) : group_(group) {}

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

  static constexpr uint64_t kDiffer = 0;  // no call has this signature, but for one in 2^64

  struct Met {
    uint64_t last;       // ticks at which the last rank came
    uint64_t seen;       // ticks at which this rank, waiting for it, saw that; 0: it was not waiting
    uint32_t hints;      // all ranks'; the same on all ranks
    uint64_t signature;  // of all ranks' calls; kDiffer: they do not fit each other
  };

  void announce(uint64_t sequence, uint32_t hints = 0);
  // Waits for everyone's announcement and writes into `log` when each came.
  Met meet(shm::Operation& operation, std::span<uint64_t> log, bool look_at_clock = false);
  std::vector<shm::CallHeader> headers(uint64_t sequence) const;  // all ranks', once they have met

 private:
  shm::Group& group_;
};

}  // namespace pycoll
