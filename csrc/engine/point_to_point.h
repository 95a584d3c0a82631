// Send and receive between two ranks of one host, matched by (source, destination, tag) in order of posting.
#pragma once
#include <memory>
#include <optional>

#include "engine/communicator.h"
#include "engine/heap.h"
#include "transport/shm/group.h"

namespace pycoll {

class PointToPoint {
 public:
  PointToPoint(shm::Group& group, Heap& heap);
  ~PointToPoint();

  std::shared_ptr<Work> send(const void* data, size_t bytes, int destination, uint64_t tag,
                             Nanoseconds timeout);
  std::shared_ptr<Work> recv(void* data, size_t bytes, int source, uint64_t tag, Nanoseconds timeout,
                             int* source_out);
  // Ends everything outstanding with `error`.
  void stop(std::exception_ptr error);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace pycoll
