// The kernels' Context on threads of the host: a block is a few threads with a barrier, a flag an atomic
// word. Data is read and written plainly, so a race detector sees whether flags and barriers order it.
#pragma once
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <ctime>
#include <thread>

#include "cuda/packets.h"
#include "cuda/slices.h"

namespace pycoll::test {

// Until done() is true: sleeps on `word`, a part of what done() looks at, while it stays as it is. There are
// many more threads than processors. The kernel's futex orders nothing that a race detector takes note of,
// and nothing rests on being woken: sleeps end after so many nanoseconds.
constexpr long kWoken = 5'000'000;
constexpr long kNotWoken = 200'000;
template <class Done>
void sleep_until(const uint32_t* word, long nanoseconds, const Done& done) {
  for (int tries = 0;; ++tries) {
    const uint32_t seen = std::atomic_ref(*const_cast<uint32_t*>(word)).load(std::memory_order_relaxed);
    if (done()) return;
    if (tries < 3) {
      std::this_thread::yield();
    } else {
      const timespec limit{.tv_sec = 0, .tv_nsec = nanoseconds};
      syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, &limit, nullptr, 0);
    }
  }
}

inline void wake_all(const uint32_t* word) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
}

// Ordered by its atomics alone.
class BlockBarrier {
 public:
  explicit BlockBarrier(int threads) : threads_(threads) {}
  // Whether every thread came with true.
  bool wait(bool fine = true) {
    if (threads_ == 1) return fine;
    std::atomic_ref phase_word(phase_);
    const uint32_t phase = phase_word.load(std::memory_order_relaxed);
    if (!fine) failed_[phase % 2].store(true, std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
      arrived_.store(0, std::memory_order_relaxed);
      failed_[(phase + 1) % 2].store(false, std::memory_order_relaxed);
      phase_word.store(phase + 1, std::memory_order_release);
      wake_all(&phase_);
    } else {
      sleep_until(&phase_, kWoken, [&] { return phase_word.load(std::memory_order_acquire) != phase; });
    }
    return !failed_[phase % 2].load(std::memory_order_relaxed);
  }

 private:
  const int threads_;
  std::atomic<int> arrived_{0};
  uint32_t phase_ = 0;
  std::atomic<bool> failed_[2] = {false, false};
};

class HostContext {
 public:
  HostContext(int thread, int threads, int block, int blocks, BlockBarrier& barrier,
              std::atomic<bool>& aborted)
      : thread_(thread),
        threads_(threads),
        block_(block),
        blocks_(blocks),
        barrier_(barrier),
        aborted_(aborted) {}

  int thread() const { return thread_; }
  int threads() const { return threads_; }
  int block() const { return block_; }
  int blocks() const { return blocks_; }

  cuda::Vector load(const cuda::Vector* from) const { return *from; }
  void store(cuda::Vector* to, const cuda::Vector& vector) const { *to = vector; }

  void sync() { barrier_.wait(); }
  bool all(bool fine) { return barrier_.wait(fine); }
  // A futex has 32 bits: a flag's lower half, which every raise changes.
  void raise(uint64_t* flag, uint64_t value) {
    std::atomic_ref(*flag).store(value, std::memory_order_release);
    wake_all(reinterpret_cast<uint32_t*>(flag));
  }
  bool await(const uint64_t* flag, uint64_t value) {
    std::atomic_ref word(*const_cast<uint64_t*>(flag));
    return wait_until(reinterpret_cast<const uint32_t*>(flag), kWoken,
                      [&] { return word.load(std::memory_order_acquire) >= value; });
  }
  bool await_count(const uint32_t* flag, uint32_t value) {
    std::atomic_ref word(*const_cast<uint32_t*>(flag));
    return wait_until(flag, kWoken, [&] {
      return static_cast<int32_t>(word.load(std::memory_order_acquire) - value) >= 0;
    });
  }
  uint64_t add(uint64_t* word, uint64_t value) {
    return std::atomic_ref(*word).fetch_add(value, std::memory_order_relaxed);
  }

  // Two 8-byte words, as the device guarantees them.
  void post(cuda::Packet* to, uint32_t data0, uint32_t data1, uint32_t flag) {
    auto* const halves = reinterpret_cast<uint64_t*>(to);
    std::atomic_ref(halves[0]).store(data0 | uint64_t{flag} << 32, std::memory_order_relaxed);
    std::atomic_ref(halves[1]).store(data1 | uint64_t{flag} << 32, std::memory_order_relaxed);
  }
  bool receive(const cuda::Packet* from, uint32_t flag, uint32_t& data0, uint32_t& data1) {
    auto* const halves = reinterpret_cast<uint64_t*>(const_cast<cuda::Packet*>(from));
    uint32_t* const data[] = {&data0, &data1};
    return wait_until(&from->flag1, kNotWoken, [&] {
      for (int i = 0; i < 2; ++i) {
        const uint64_t half = std::atomic_ref(halves[i]).load(std::memory_order_relaxed);
        if (half >> 32 != flag) return false;
        *data[i] = static_cast<uint32_t>(half);
      }
      return true;
    });
  }

 private:
  template <class Done>
  bool wait_until(const uint32_t* word, long nanoseconds, const Done& done) {
    bool fine = true;
    sleep_until(word, nanoseconds, [&] {
      if (done()) return true;
      fine = !aborted_.load(std::memory_order_relaxed);
      return !fine;
    });
    return fine;
  }

  const int thread_, threads_, block_, blocks_;
  BlockBarrier& barrier_;
  std::atomic<bool>& aborted_;
};

// With a switch between the ranks: an address counted from `multi` is that of every heap at once.
class SwitchContext : public HostContext {
 public:
  SwitchContext(const HostContext& context, const char* multi, char* const* heaps, int ranks)
      : HostContext(context), multi_(multi), heaps_(heaps), ranks_(ranks) {}

  template <class R>
  cuda::Vector load_reduced(const char* from) const {
    const auto at = [&](int rank) { return reinterpret_cast<const cuda::Vector*>(heap_at(rank, from)); };
    cuda::Accumulators<R> sum(*at(0));
    for (int rank = 1; rank < ranks_; ++rank) sum.combine(*at(rank));
    return sum.rounded();
  }
  void store_everywhere(char* to, const cuda::Vector& vector) const {
    for (int rank = 0; rank < ranks_; ++rank) *reinterpret_cast<cuda::Vector*>(heap_at(rank, to)) = vector;
  }
  void raise_everywhere(uint32_t* flag) const {
    for (int rank = 0; rank < ranks_; ++rank) {
      auto* const word = reinterpret_cast<uint32_t*>(heap_at(rank, reinterpret_cast<const char*>(flag)));
      std::atomic_ref(*word).fetch_add(1, std::memory_order_release);
      wake_all(word);
    }
  }
  void fence_aliases() const {}

 private:
  char* heap_at(int rank, const char* address) const { return heaps_[rank] + (address - multi_); }

  const char* multi_;
  char* const* heaps_;
  int ranks_;
};

}  // namespace pycoll::test
