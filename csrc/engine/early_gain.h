// What beginning before the last rank is there has won: the time from its arrival to the end, against that of
// calls for which nobody was late.
#pragma once
#include <algorithm>
#include <atomic>

#include "core/clock.h"
#include "engine/communicator.h"

namespace pycoll {

class EarlyGain {
 public:
  // A call that may begin early, of so many bytes, took so long from the last arrival on; `early`: it had
  // begun.
  void note(size_t bytes, SteadyClock::duration took, bool early) {
    const double seconds = std::chrono::duration<double>(took).count();
    const auto size = static_cast<double>(bytes);
    const double rate = seconds_per_byte_.load(std::memory_order_relaxed);
    calls_.fetch_add(1, std::memory_order_relaxed);
    if (!early) {
      seconds_per_byte_.store(rate == 0 ? seconds / size : 0.8 * rate + 0.2 * seconds / size,
                              std::memory_order_relaxed);
      return;
    }
    early_.fetch_add(1, std::memory_order_relaxed);
    if (rate != 0) won_.store(won_.load(std::memory_order_relaxed) + std::max(0.0, rate * size - seconds));
  }

  // What such a call takes when nobody is late; 0: none was seen yet.
  double usual(size_t bytes) const {
    return seconds_per_byte_.load(std::memory_order_relaxed) * static_cast<double>(bytes);
  }

  EarlyReport report() const { return {calls_.load(), early_.load(), won_.load()}; }

 private:
  std::atomic<double> seconds_per_byte_{0};
  std::atomic<uint64_t> calls_{0};
  std::atomic<uint64_t> early_{0};
  std::atomic<double> won_{0};  // seconds; written by whoever holds the group's turn
};

}  // namespace pycoll
