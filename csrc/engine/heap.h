// One rank's buffers in the group's shared segment.
#pragma once
#include <cstddef>
#include <map>
#include <mutex>
#include <optional>

#include "transport/shm/group.h"

namespace pycoll {

class Heap {
 public:
  explicit Heap(shm::Group& group);

  void* allocate(size_t bytes);
  void deallocate(void* buffer);
  size_t allocated_bytes() const { return allocated_.load(std::memory_order_relaxed); }

  // Where [buffer, buffer + bytes) lies, with length 0 when it is not wholly inside one allocation.
  shm::HeapRange locate(const void* buffer, size_t bytes) const;

 private:
  struct Allocation {
    uint64_t offset;  // in the file
    size_t length;
    size_t stagger;  // of the buffer in it
  };
  uint64_t take_range(size_t length);

  shm::Group& group_;
  mutable std::mutex mutex_;
  std::atomic<size_t> allocated_{0};
  std::map<const std::byte*, Allocation> allocations_;
  std::multimap<size_t, uint64_t> free_;  // length -> offset
  uint64_t end_;                          // of what was ever handed out
};

}  // namespace pycoll
