// Sleeping on a word that processes share.
#pragma once
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>

namespace pycoll::shm {

// No FUTEX_PRIVATE_FLAG: the word is shared between processes.
inline void futex_wait(std::atomic<uint32_t>& word, uint32_t expected, std::chrono::microseconds at_most) {
  const timespec limit{at_most.count() / 1'000'000, at_most.count() % 1'000'000 * 1000};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, expected, &limit, nullptr, 0);
}

inline void futex_wake(std::atomic<uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

}  // namespace pycoll::shm
