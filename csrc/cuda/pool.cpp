#include "cuda/pool.h"

#include <algorithm>

#include "core/error.h"

namespace pycoll::cuda {

SegmentPool::~SegmentPool() {
  for (Held& held : held_) give_back(held);
}

void SegmentPool::give_back(Held& held) noexcept {
  if (held.segment.kind == MemoryKind::Ipc) driver_.free(held.segment.device, held.segment.base);
  held.mapping = Mapping();
}

char* SegmentPool::allocate(size_t bytes, int device) {
  const std::scoped_lock lock(mutex_);
  // What was freed, of this size or little more: allocators ask for few different sizes.
  for (Held& held : held_)
    if (!held.in_use && held.segment.device == device && held.segment.bytes >= bytes &&
        held.segment.bytes - bytes < std::max<size_t>(bytes / 8, 1)) {
      held.in_use = true;
      return held.segment.base;
    }
  const bool ranges = (driver_.offers(device) & kOffersDescriptors) != 0;
  Held made{.segment = {.serial = made_ + 1,
                        .base = nullptr,
                        .bytes = bytes,
                        .device = device,
                        .kind = ranges ? MemoryKind::Descriptor : MemoryKind::Ipc,
                        .memory = 0},
            .mapping = {},
            .in_use = true};
  if (ranges) {
    made.mapping = Mapping::create(driver_, device, bytes, MemoryKind::Descriptor);
    made.segment.base = made.mapping.data();
    made.segment.bytes = made.mapping.bytes();
    made.segment.memory = made.mapping.memory();
  } else {
    made.segment.base = driver_.allocate(device, bytes);
  }
  ++made_;
  held_.push_back(std::move(made));
  return held_.back().segment.base;
}

void SegmentPool::free(char* base) {
  std::unique_lock lock(mutex_);
  const auto found =
      std::ranges::find_if(held_, [&](const Held& held) { return held.segment.base == base && held.in_use; });
  if (found == held_.end()) throw InvalidArgument("the pool of segments has none that begins there");
  // Allocators rest on what cudaFree does: it waits for the device. Unmapping does not, and keeping for the
  // next even less. Not under the lock: what runs there may wait for another rank, and that for the lock.
  lock.unlock();
  driver_.synchronize(found->segment.device);
  lock.lock();
  found->in_use = false;
  if (leases_ == 0) drop_unused();
}

void SegmentPool::drop_unused() noexcept {
  std::erase_if(held_, [&](Held& held) {
    if (held.in_use) return false;
    give_back(held);
    return true;
  });
}

std::optional<SegmentPool::Segment> SegmentPool::find(const void* address, size_t bytes) const {
  const std::scoped_lock lock(mutex_);
  const auto at = reinterpret_cast<uintptr_t>(address);
  for (const Held& held : held_) {
    const auto base = reinterpret_cast<uintptr_t>(held.segment.base);
    if (held.in_use && at >= base && at - base <= held.segment.bytes &&
        bytes <= held.segment.bytes - (at - base))
      return held.segment;
  }
  return std::nullopt;
}

std::vector<SegmentPool::Segment> SegmentPool::segments(int device) const {
  const std::scoped_lock lock(mutex_);
  std::vector<Segment> found;
  for (const Held& held : held_)
    if (held.in_use && held.segment.device == device) found.push_back(held.segment);
  return found;
}

SegmentPool::Lease::Lease(SegmentPool& pool) : pool_(&pool) {
  const std::scoped_lock lock(pool.mutex_);
  ++pool.leases_;
}

SegmentPool::Lease::~Lease() {
  if (pool_ == nullptr) return;
  const std::scoped_lock lock(pool_->mutex_);
  if (--pool_->leases_ == 0) pool_->drop_unused();
}

}  // namespace pycoll::cuda
