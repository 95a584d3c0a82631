// How much a stream may have on its way. Congestion control fills the queue before a slow receiver until it
// overflows, which it does when two senders meet there, as in schedules of many pieces they do all the time:
// what is lost is sent again some milliseconds later, and every rank down the line waits for it. No more on
// the way than the path itself holds keeps queues short, and so does not lose anything.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace pycoll::tcp {

// What a path holds, in bytes: its rate times the time there and back, with hosts' own time to take what
// comes and to answer. A socket is given twice this, half of it for the kernel's own overhead (socket(7)).
size_t path_capacity(uint64_t bytes_per_second, std::chrono::microseconds round_trip);

class InFlightLimit {
 public:
  // Of a socket that has just been connected. Where the kernel could not take a limit back (before Linux
  // 5.16) there is none.
  void begin(int socket);
  // Now and then looks at what the path has proved to be.
  void sent(int socket, size_t bytes);
  // For a path that proved to be so.
  void fit(int socket, uint64_t bytes_per_second, std::chrono::microseconds round_trip);

 private:
  void measure(int socket);
  void set(int socket, size_t limit);

  size_t limit_ = 0;
  size_t sent_ = 0;     // since the last look
  uint64_t acked_ = 0;  // until then, bytes
  uint64_t busy_ = 0;   // and microseconds in which some were under way
  bool possible_ = false;
};

}  // namespace pycoll::tcp
