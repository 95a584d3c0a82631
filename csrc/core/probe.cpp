#include "core/probe.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <string>
#include <thread>

#include "core/error.h"

namespace pycoll {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kMeasure = std::chrono::milliseconds(5);
constexpr auto kGiveUp = std::chrono::milliseconds(250);  // other programs may hold a processor for a while
// A batch takes about 2 us: longer than reading the clock, and mostly not interrupted even on a busy machine,
// where some batches will be, so that the median needs many.
constexpr int kRoundTrips = 20;
constexpr size_t kLeastBatches = 100;
constexpr uint32_t kStop = ~0u;

// The line that bounces: even values belong to the first thread, odd ones to the second.
struct alignas(64) Ball {
  std::atomic<uint32_t> value{0};
  char rest[64 - sizeof(std::atomic<uint32_t>)];  // nothing else may share the line
};

void pin(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

// Spins without a pause instruction: on some processors it lasts longer than the line's way that is measured.
bool wait_for(const Ball& ball, uint32_t wanted, Clock::time_point deadline) {
  for (;;) {
    for (int spin = 0; spin < 4096; ++spin) {
      const uint32_t seen = ball.value.load(std::memory_order_acquire);
      if (seen == wanted) return true;
      if (seen == kStop) return false;
    }
    if (Clock::now() > deadline) return false;
  }
}

void return_every_ball(Ball& ball, int cpu, Clock::time_point deadline) {
  pin(cpu);
  for (uint32_t mine = 1; wait_for(ball, mine, deadline); mine += 2) {
    ball.value.store(mine + 1, std::memory_order_release);
  }
}

std::vector<double> serve(Ball& ball, int cpu, Clock::time_point deadline) {
  pin(cpu);
  std::vector<double> batches;
  uint32_t value = 0;
  const auto round_trip = [&] {
    ball.value.store(value + 1, std::memory_order_release);
    value += 2;
    return wait_for(ball, value, deadline);
  };
  // The first answer shows that the other thread runs; only then does the measurement's time begin.
  bool alive = round_trip();
  const auto end = Clock::now() + kMeasure;
  while (alive && (Clock::now() < end || batches.size() < kLeastBatches)) {
    const auto begin = Clock::now();
    for (int trip = 0; alive && trip < kRoundTrips; ++trip) alive = round_trip();
    const std::chrono::duration<double, std::nano> took = Clock::now() - begin;
    if (alive) batches.push_back(took.count() / (2 * kRoundTrips));
  }
  ball.value.store(kStop, std::memory_order_release);
  return batches;
}

void require_allowed(const std::vector<int>& allowed, int cpu) {
  if (std::find(allowed.begin(), allowed.end(), cpu) == allowed.end()) {
    throw InvalidArgument("core_to_core_ns: this process may not run on cpu " + std::to_string(cpu) +
                          "; choose among those of sched_getaffinity");
  }
}

}  // namespace

std::vector<int> allowed_cpus() {
  // A fixed cpu_set_t holds 1024 processors; the kernel refuses (EINVAL) a set smaller than its own.
  for (int most = CPU_SETSIZE; most <= 1 << 20; most *= 4) {
    cpu_set_t* set = CPU_ALLOC(most);
    if (set == nullptr) break;
    const size_t bytes = CPU_ALLOC_SIZE(most);
    std::vector<int> cpus;
    if (sched_getaffinity(0, bytes, set) == 0) {
      for (int cpu = 0; cpu < most; ++cpu) {
        if (CPU_ISSET_S(cpu, bytes, set)) cpus.push_back(cpu);
      }
    }
    CPU_FREE(set);
    if (!cpus.empty()) return cpus;
  }
  return {0};
}

double core_to_core_ns(int cpu_a, int cpu_b) {
  const std::vector<int> allowed = allowed_cpus();
  if (cpu_a < 0 && cpu_b < 0) {
    if (allowed.size() < 2) return std::numeric_limits<double>::quiet_NaN();
    cpu_a = allowed[0];
    cpu_b = allowed[1];
  }
  require_allowed(allowed, cpu_a);
  require_allowed(allowed, cpu_b);
  if (cpu_a == cpu_b) throw InvalidArgument("core_to_core_ns: two different cpus are needed");

  Ball ball;
  const auto deadline = Clock::now() + kGiveUp;
  std::vector<double> batches;
  std::jthread partner([&] { return_every_ball(ball, cpu_b, deadline); });
  std::jthread server([&] { batches = serve(ball, cpu_a, deadline); });
  server.join();
  partner.join();
  if (batches.empty()) return std::numeric_limits<double>::quiet_NaN();
  const auto middle = batches.begin() + static_cast<std::ptrdiff_t>(batches.size() / 2);
  std::nth_element(batches.begin(), middle, batches.end());
  return *middle;
}

}  // namespace pycoll
