// A clock that all processes of one host share and that costs a few nanoseconds to read.
#pragma once
#include <chrono>
#include <cstdint>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace pycoll {

using SteadyClock = std::chrono::steady_clock;

inline uint64_t ticks() {
#if defined(__x86_64__)
  return __rdtsc();
#elif defined(__aarch64__)
  uint64_t value;
  asm volatile("mrs %0, cntvct_el0" : "=r"(value));
  return value;
#else
  return static_cast<uint64_t>(SteadyClock::now().time_since_epoch().count());
#endif
}

// Learns the length of a tick from the time that has passed since it was made: no calibration pause.
class TickScale {
 public:
  TickScale() : ticks_(ticks()), time_(SteadyClock::now()) {}
  double seconds_per_tick() const {
    const double seconds = std::chrono::duration<double>(SteadyClock::now() - time_).count();
    const double passed = static_cast<double>(ticks() - ticks_);
    return passed > 0 ? seconds / passed : 0.0;
  }

 private:
  uint64_t ticks_;
  SteadyClock::time_point time_;
};

}  // namespace pycoll
