#include "transport/tcp/in_flight.h"

// Not <netinet/tcp.h>, whose tcp_info lacks the rates; the two headers exclude each other.
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstddef>

namespace pycoll::tcp {
namespace {

// A path of up to 3 Gbit/s in a data centre holds less; what is less keeps too little at hand while a rank's
// thread is not running.
constexpr size_t kLeast = 64 << 10;
constexpr std::chrono::microseconds kHosts{100};
constexpr uint64_t kLongest = 60'000'000;  // microseconds; beyond, it is a difference below zero
constexpr size_t kLookEvery = 1 << 20;     // bytes; asking takes a microsecond

#ifdef SO_BUF_LOCK
constexpr int kBufferLock = SO_BUF_LOCK;
#else
constexpr int kBufferLock = 72;  // of Linux 5.16, newer than some C libraries
#endif

}  // namespace

size_t path_capacity(uint64_t bytes_per_second, std::chrono::microseconds round_trip) {
  const auto microseconds = static_cast<uint64_t>((round_trip + kHosts).count());
  return std::max<size_t>(kLeast, bytes_per_second * microseconds / 1'000'000);
}

void InFlightLimit::begin(int socket) {
  int locked = 0;
  socklen_t size = sizeof locked;
  possible_ = ::getsockopt(socket, SOL_SOCKET, kBufferLock, &locked, &size) == 0;
  if (possible_) set(socket, kLeast);
}

void InFlightLimit::sent(int socket, size_t bytes) {
  sent_ += bytes;
  if (!possible_ || sent_ < kLookEvery) return;
  sent_ = 0;
  measure(socket);
}

void InFlightLimit::measure(int socket) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return;
  if (size < offsetof(tcp_info, tcpi_rwnd_limited) + sizeof info.tcpi_rwnd_limited)
    return;  // before Linux 4.10
  // Not tcpi_delivery_rate: a burst that a shaper lets through makes it many times the link's.
  const uint64_t acked = info.tcpi_bytes_acked - acked_;
  const uint64_t busy = info.tcpi_busy_time - info.tcpi_rwnd_limited - busy_;
  acked_ += acked;
  busy_ += busy;
  if (busy == 0 || busy > kLongest) return;
  fit(socket, acked * 1'000'000 / busy, std::chrono::microseconds(info.tcpi_min_rtt));
}

void InFlightLimit::fit(int socket, uint64_t bytes_per_second, std::chrono::microseconds round_trip) {
  const size_t capacity = path_capacity(bytes_per_second, round_trip);
  // Where the limit is what bounds the rate, the kernel's doubling makes the next one greater, until the path
  // is full.
  if (capacity > limit_ || capacity < limit_ / 2) set(socket, capacity);
}

void InFlightLimit::set(int socket, size_t limit) {
  limit_ = limit;
  const auto asked = static_cast<int>(std::min<size_t>(limit, 1 << 30));
  ::setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &asked, sizeof asked);
  int got = 0;
  socklen_t size = sizeof got;
  ::getsockopt(socket, SOL_SOCKET, SO_SNDBUF, &got, &size);
  if (static_cast<size_t>(got) / 2 >= static_cast<size_t>(asked)) return;
  // net.core.wmem_max is less: the kernel, which sizes buffers by itself, may go beyond.
  const int unlocked = 0;
  ::setsockopt(socket, SOL_SOCKET, kBufferLock, &unlocked, sizeof unlocked);
}

}  // namespace pycoll::tcp
