// How much a stream may have on its way: what is asked of the kernel for which path.
#include "transport/tcp/in_flight.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"

namespace pycoll::test {
namespace {

using std::chrono::microseconds;
constexpr uint64_t kGigabit = 125'000'000;  // bytes a second
constexpr int kBufferLock = 72;             // SO_BUF_LOCK

int option(int socket, int name) {
  int value = -1;
  socklen_t size = sizeof value;
  return ::getsockopt(socket, SOL_SOCKET, name, &value, &size) == 0 ? value : -1;
}

void a_path_holds_rate_times_round_trip() {
  check(tcp::path_capacity(kGigabit, microseconds(100)) == 64 << 10, "the least");
  check(tcp::path_capacity(10 * kGigabit, microseconds(50)) == 187'500, "10 Gbit/s in a data centre");
  check(tcp::path_capacity(kGigabit, microseconds(19'900)) == 2'500'000, "1 Gbit/s over a country");
}

void the_kernel_is_told() {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int usual = option(socket, SO_SNDBUF);
  tcp::InFlightLimit limit;
  limit.begin(socket);
  if (option(socket, kBufferLock) < 0) {
    check(option(socket, SO_SNDBUF) == usual, "a kernel that could not take it back is not asked");
  } else {
    check(option(socket, SO_SNDBUF) == 2 * (64 << 10), "it begins with the least");
    limit.fit(socket, 10 * kGigabit, microseconds(20));
    check(option(socket, SO_SNDBUF) == 2 * 150'000, "more for a faster path");
    limit.fit(socket, 9 * kGigabit, microseconds(20));
    check(option(socket, SO_SNDBUF) == 2 * 150'000, "a little slower is nothing");
    limit.fit(socket, 8000 * kGigabit, microseconds(1'000'000));
    check(option(socket, kBufferLock) == 0, "beyond what the system lets us ask for the kernel has its way");
    limit.fit(socket, kGigabit, microseconds(100));
    check(option(socket, SO_SNDBUF) == 2 * (64 << 10) && option(socket, kBufferLock) == 1, "slow again");
  }
  ::close(socket);
}

}  // namespace
}  // namespace pycoll::test

int main() {
  using namespace pycoll::test;
  run("a path holds rate times round trip", a_path_holds_rate_times_round_trip);
  run("the kernel is told", the_kernel_is_told);
  return result();
}
