// Memory that an allocator (torch's, say) takes in segments and cuts into tensors, and that groups can offer
// to their peers, segment by segment: a tensor is found in it by its address. One for all of the process,
// since an allocator's functions know nothing of groups.
#pragma once
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "cuda/mapping.h"

namespace pycoll::cuda {

class SegmentPool {
 public:
  struct Segment {
    uint64_t serial;  // never used again
    char* base;
    size_t bytes;
    int device;
    MemoryKind kind;
    Driver::Memory memory;  // of an address range
  };

  explicit SegmentPool(Driver& driver) : driver_(driver) {}
  SegmentPool(const SegmentPool&) = delete;
  SegmentPool& operator=(const SegmentPool&) = delete;
  ~SegmentPool();

  // Throws Error where the device has no memory left.
  char* allocate(size_t bytes, int device);
  // Waits for the device. What peers may have mapped is not given back while a group lasts, but kept for the
  // next of its size.
  void free(char* base);

  // The segment that holds all of [address, address + bytes).
  std::optional<Segment> find(const void* address, size_t bytes) const;
  // A device's segments in use, in the order of their numbers.
  std::vector<Segment> segments(int device) const;

  // While a lease lasts, segments stay where they are.
  class Lease {
   public:
    Lease() = default;
    explicit Lease(SegmentPool& pool);
    Lease(Lease&& other) noexcept : pool_(std::exchange(other.pool_, nullptr)) {}
    Lease& operator=(Lease&& other) noexcept {
      std::swap(pool_, other.pool_);
      return *this;
    }
    ~Lease();

   private:
    SegmentPool* pool_ = nullptr;
  };

 private:
  struct Held {
    Segment segment;
    Mapping mapping;  // empty where cudaMalloc made it
    bool in_use;
  };
  void give_back(Held& held) noexcept;
  void drop_unused() noexcept;

  Driver& driver_;
  mutable std::mutex mutex_;
  std::list<Held> held_;  // by serial number
  uint64_t made_ = 0;
  int leases_ = 0;
};

}  // namespace pycoll::cuda
