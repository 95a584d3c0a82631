// The ground all programs of the comparison stand on, so that they differ in nothing but the library:
// a page of memory shared by the ranks, one barrier, one clock, one way of filling and checking buffers,
// and a probe that says whether the processors are near each other (one shared cache) or far apart.
#pragma once
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <stdexcept>
#include <string>
#include <vector>

namespace bench {

inline constexpr int kMaxRanks = 64;
inline constexpr size_t kMaxBootstrapBytes = 64 << 10;
inline constexpr double kBarrierDeadline = 120;  // seconds: a rank that never comes must not hang the others

inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

struct alignas(128) Line {
  std::atomic<uint64_t> value;
};

// What the ranks share. Starts as zeros.
struct SharedPage {
  Line arrived, generation;
  Line decision;  // a number that rank 0 told the others
  Line ball;      // bounced by the probe
  Line probes;    // finished so far
  struct alignas(128) PerRank {
    double seconds;
    uint64_t wrong;
    uint64_t bootstrap_bytes;
    char bootstrap[kMaxBootstrapBytes];
  } rank[kMaxRanks];
};

class Harness {
 public:
  // Ranks that outnumber the processors must not spin while their partner waits for a processor.
  Harness(const std::string& path, int rank, int ranks, int processors)
      : rank_(rank), ranks_(ranks), spins_before_yield_(ranks <= processors ? 20000 : 50) {
    if (ranks < 1 || ranks > kMaxRanks || rank < 0 || rank >= ranks)
      throw std::runtime_error("rank " + std::to_string(rank) + " of " + std::to_string(ranks) +
                               " is not possible");
    int descriptor = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (descriptor < 0) throw std::runtime_error("cannot open the shared page " + path);
    void* memory = mmap(nullptr, sizeof(SharedPage), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    ::close(descriptor);
    if (memory == MAP_FAILED) throw std::runtime_error("cannot map the shared page " + path);
    page_ = static_cast<SharedPage*>(memory);
    barrier();
  }
  Harness(const Harness&) = delete;
  Harness& operator=(const Harness&) = delete;
  ~Harness() { munmap(page_, sizeof(SharedPage)); }

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }

  void barrier() {
    uint64_t generation = page_->generation.value.load(std::memory_order_acquire);
    if (page_->arrived.value.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<uint64_t>(ranks_)) {
      page_->arrived.value.store(0, std::memory_order_relaxed);
      page_->generation.value.store(generation + 1, std::memory_order_release);
      return;
    }
    wait_until([&] { return page_->generation.value.load(std::memory_order_acquire) != generation; });
  }

  // Rank 0's number, at every rank.
  uint64_t agree(uint64_t mine) {
    if (rank_ == 0) page_->decision.value.store(mine, std::memory_order_relaxed);
    barrier();
    uint64_t agreed = page_->decision.value.load(std::memory_order_relaxed);
    barrier();
    return agreed;
  }

  double slowest(double mine) {
    page_->rank[rank_].seconds = mine;
    barrier();
    double most = 0;
    for (int r = 0; r < ranks_; ++r) most = page_->rank[r].seconds > most ? page_->rank[r].seconds : most;
    barrier();
    return most;
  }

  uint64_t total(uint64_t mine) {
    page_->rank[rank_].wrong = mine;
    barrier();
    uint64_t sum = 0;
    for (int r = 0; r < ranks_; ++r) sum += page_->rank[r].wrong;
    barrier();
    return sum;
  }

  // The bootstrap of a library that brings none of its own.
  std::vector<std::string> all_gather(const std::string& mine) {
    if (mine.size() > kMaxBootstrapBytes)
      throw std::runtime_error("bootstrap message is too long for the harness");
    page_->rank[rank_].bootstrap_bytes = mine.size();
    std::memcpy(page_->rank[rank_].bootstrap, mine.data(), mine.size());
    barrier();
    std::vector<std::string> all;
    for (int r = 0; r < ranks_; ++r)
      all.emplace_back(page_->rank[r].bootstrap, page_->rank[r].bootstrap_bytes);
    barrier();
    return all;
  }

  // Nanoseconds one cache line takes from one processor to another: the least over many short rallies, so
  // that a rally disturbed by another thread does not count. Ranks 0 and 1 play, pinned to two processors;
  // the others sleep.
  double probe() {
    if (ranks_ < 2) return 0;
    barrier();
    double least = 0;
    if (rank_ < 2) {
      cpu_set_t before;
      sched_getaffinity(0, sizeof before, &before);
      pin_to(rank_);
      for (int rally = 0; rally < kRallies; ++rally) {
        double elapsed = play_rally(probes_ * kRallies + static_cast<uint64_t>(rally));
        if (rally == 0 || elapsed < least) least = elapsed;
      }
      sched_setaffinity(0, sizeof before, &before);
      if (rank_ == 0) page_->probes.value.store(probes_ + 1, std::memory_order_release);
    } else {
      timespec nap{0, 200000};
      while (page_->probes.value.load(std::memory_order_acquire) != probes_ + 1) nanosleep(&nap, nullptr);
    }
    ++probes_;
    return slowest(rank_ == 0 ? least * 1e9 / (2 * kBounces) : 0);
  }

 private:
  static constexpr int kRallies = 30, kBounces = 100;

  void pin_to(int which) {
    cpu_set_t all, one;
    CPU_ZERO(&all);
    for (long cpu = 0; cpu < sysconf(_SC_NPROCESSORS_CONF); ++cpu) CPU_SET(static_cast<int>(cpu), &all);
    sched_setaffinity(0, sizeof all, &all);  // the kernel keeps what our cpuset allows
    sched_getaffinity(0, sizeof all, &all);
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (!CPU_ISSET(cpu, &all) || which-- > 0) continue;
      CPU_ZERO(&one);
      CPU_SET(cpu, &one);
      sched_setaffinity(0, sizeof one, &one);
      return;
    }
  }

  double play_rally(uint64_t rally) {
    std::atomic<uint64_t>& ball = page_->ball.value;
    uint64_t at = rally * 2 * kBounces;
    double start = seconds_now();
    for (int bounce = 0; bounce < kBounces; ++bounce, at += 2) {
      if (rank_ == 0) {
        ball.store(at + 1, std::memory_order_release);
        wait_until([&] { return ball.load(std::memory_order_acquire) == at + 2; });
      } else {
        wait_until([&] { return ball.load(std::memory_order_acquire) == at + 1; });
        ball.store(at + 2, std::memory_order_release);
      }
    }
    return seconds_now() - start;
  }

  template <class Condition>
  void wait_until(Condition condition) {
    double deadline = 0;
    for (uint64_t spins = 0; !condition(); ++spins) {
      if (spins < spins_before_yield_) {
        relax();
        continue;
      }
      sched_yield();
      if (spins % 256 != 0) continue;
      if (deadline == 0) deadline = seconds_now() + kBarrierDeadline;
      if (seconds_now() > deadline)
        throw std::runtime_error("rank " + std::to_string(rank_) +
                                 ": another rank never reached the barrier");
    }
  }

  SharedPage* page_;
  const int rank_, ranks_;
  const uint64_t spins_before_yield_;
  uint64_t probes_ = 0;
};

}  // namespace bench
