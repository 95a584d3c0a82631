// Send and receive between two ranks, matched by (source, destination, tag) in order of posting.
//
// Messages of up to 1 MiB are copied into shared memory by the send, which is complete at once while the
// rank's arena (16 MiB) has room; longer ones, and those beyond the room, are complete when the receiver
// takes them. Whoever calls, waits or asks done() moves messages along, of all operations of the rank; while
// nobody does, a thread of the rank does, which lives only while operations are under way.
#pragma once
#include <memory>
#include <optional>

#include "engine/communicator.h"
#include "engine/heap.h"
#include "engine/placement.h"
#include "transport/network.h"
#include "transport/shm/group.h"

namespace pycoll {

class Courier;

class PointToPoint {
 public:
  // `placement` and `network`: of a group that spans hosts. Ranks are numbered as in the group.
  PointToPoint(shm::Group& group, Heap& heap, std::optional<Placement> placement,
               std::unique_ptr<Network> network);
  ~PointToPoint();

  std::shared_ptr<Work> send(const void* data, size_t bytes, int destination, uint64_t tag,
                             Nanoseconds timeout);
  std::shared_ptr<Work> recv(void* data, size_t bytes, int source, uint64_t tag, Nanoseconds timeout,
                             int* source_out);
  // Ends everything outstanding with `error`. What was sent completely can still be received.
  void stop(std::exception_ptr error);
  // Bytes of shared memory that hold, or lately held, messages on their way.
  size_t shared_bytes() const;
  size_t private_bytes() const;  // of memory of this process, likewise

 private:
  Heap& heap_;
  std::shared_ptr<Courier> courier_;
};

}  // namespace pycoll
