#include "engine/heap.h"

#include <string>

#include "core/error.h"

namespace pycoll {

using shm::kCacheLine;
using shm::kHeapShift;
using shm::kPage;

Heap::Heap(shm::Group& group) : group_(group), end_(static_cast<uint64_t>(group.rank() + 1) << kHeapShift) {}

uint64_t Heap::take_range(size_t length) {
  // A freed range is used again whole, and only when it is not much too long: addresses are plentiful (a
  // terabyte a rank), and what lies in a hole costs no memory.
  const auto fit = free_.lower_bound(length);
  if (fit != free_.end() && fit->first <= 2 * length) {
    const uint64_t offset = fit->second;
    free_.erase(fit);
    return offset;
  }
  const uint64_t limit = group_.segment().layout().arena_at(group_.rank());
  if (length > limit - end_)
    throw Error("no room for a shared buffer of " + std::to_string(length) +
                " bytes: this rank's share of the segment is used up");
  const uint64_t offset = end_;
  end_ += length;
  return offset;
}

void* Heap::allocate(size_t bytes) {
  const std::lock_guard lock(mutex_);
  // Equal offsets of different ranks' buffers must not fall on the same cache sets: stagger them by rank.
  const size_t stagger = static_cast<size_t>(group_.rank() % 31) * 17 * kCacheLine;
  const size_t length = (bytes + stagger + kPage) / kPage * kPage;
  const uint64_t offset = take_range(length);
  std::byte* const buffer = group_.segment().map_heap(offset, length) + stagger;
  allocations_[buffer] = {offset, length, stagger};
  allocated_ += length;
  return buffer;
}

void Heap::deallocate(void* buffer) {
  const std::lock_guard lock(mutex_);
  const auto found = allocations_.find(static_cast<std::byte*>(buffer));
  if (found == allocations_.end())
    throw InvalidArgument("deallocate: not a buffer that this communicator allocated");
  const Allocation allocation = found->second;
  allocations_.erase(found);
  allocated_ -= allocation.length;
  group_.segment().unmap_heap(allocation.offset);
  group_.segment().release_pages(allocation.offset, allocation.length);
  free_.emplace(allocation.length, allocation.offset);
}

shm::HeapRange Heap::locate(const void* buffer, size_t bytes) const {
  if (buffer == nullptr || allocated_bytes() == 0) return {};
  const std::lock_guard lock(mutex_);
  const auto* const begin = static_cast<const std::byte*>(buffer);
  auto after = allocations_.upper_bound(begin);
  if (after == allocations_.begin()) return {};
  const auto& [start, allocation] = *--after;
  const auto offset = static_cast<uint64_t>(begin - start) + allocation.stagger;
  if (offset + bytes > allocation.length) return {};
  return {allocation.offset, allocation.length, offset};
}

}  // namespace pycoll
