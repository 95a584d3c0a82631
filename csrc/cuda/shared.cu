// What a group has of its ranks' memory beyond heaps: one multicast object over all heaps, and the segments
// of their pools.
#include <algorithm>
#include <cstring>
#include <string>

#include "core/error.h"
#include "cuda/cuda_driver.h"
#include "cuda/group.h"

namespace pycoll::cuda {

Handle Group::offer_multicast() {
  require_connected();
  if (kind_ == MemoryKind::Ipc)
    throw Unsupported("NVLS needs memory by address ranges, and the group's is shared by CUDA IPC");
  if ((cuda_driver().offers(device_) & kOffersMulticast) == 0)
    throw Unsupported("device " + std::to_string(device_) + " has no multicast objects (NVLS)");
  for (size_t a = 0; a < peer_handles_.size(); ++a)
    for (size_t b = 0; b < a; ++b)
      if (std::memcmp(&peer_handles_[a].gpu, &peer_handles_[b].gpu, sizeof(cudaUUID_t)) == 0)
        throw Unsupported("NVLS needs a GPU for each rank, and ranks " + std::to_string(b) + " and " +
                          std::to_string(a) + " share one");
  if (layout_.ranks < 2) throw Unsupported("NVLS needs two ranks or more");
  if (rank_ != 0) return {};
  const OnDevice here(device_);
  multicast_ = cuda_driver().create_multicast(layout_.ranks, heap_mapping_.bytes(), kind_);
  return stamped(handle_of_range(cuda_driver(), heap(), layout_.bytes(), heap(), heap_mapping_.bytes(),
                                 next_allocation(), multicast_, kind_, rank_, device_));
}

void Group::join_multicast(std::span<const Handle> handles) {
  const OnDevice here(device_);
  const Handle& made = handles[0];
  if (made.magic != kMagic || made.kind != kind_)
    throw InvalidArgument("rank 0 made no multicast object that rank " + std::to_string(rank_) + " can join");
  if (made.whole != heap_mapping_.bytes())
    throw Unsupported("rank " + std::to_string(rank_) + " has a heap of another size than rank 0");
  Driver& driver = cuda_driver();
  if (kind_ == MemoryKind::Descriptor) {
    std::vector<FileDescriptor> own;
    std::vector<size_t> counts(handles.size(), 0);
    counts[0] = 1;
    if (rank_ == 0) own.push_back(driver.export_descriptor(multicast_));
    const Descriptors descriptors = hand_over(tag_of(handles), own, counts);
    if (rank_ != 0) multicast_ = driver.import_descriptor(descriptors[0][0].get());
  } else if (rank_ != 0) {
    multicast_ = driver.import_fabric(made.fabric);
  }
  driver.add_device(multicast_, device_);
}

void Group::bind_multicast() {
  if (multicast_ == 0) throw InvalidArgument("the rank has joined no multicast object");
  const OnDevice here(device_);
  Driver& driver = cuda_driver();
  const size_t alignment = driver.multicast_granularity(layout_.ranks, heap_mapping_.bytes(), kind_);
  driver.bind(multicast_, heap_mapping_.memory(), heap_mapping_.bytes());
  // From here on the object is the range's, and the binding ends with it at the latest.
  multi_ = Mapping(driver, std::exchange(multicast_, 0), heap_mapping_.bytes(), alignment, device_);
}

void Group::drop_multicast() noexcept {
  if (has_multicast()) cuda_driver().unbind(multi_.memory(), device_, heap_mapping_.bytes());
  multi_ = Mapping();
  if (multicast_ != 0) cuda_driver().release(std::exchange(multicast_, 0));
}

Batch Group::offer_pool() {
  require_connected();
  const OnDevice here(device_);
  lease_ = SegmentPool::Lease(segment_pool());
  pending_.clear();  // of a share that failed: to be offered again
  Batch batch{};
  batch.first = offered_;
  for (const auto& segment : segment_pool().segments(device_)) {
    if (static_cast<size_t>(batch.count) == Batch::kMost || offered_ == kMostSegments) break;
    if (places_.contains(segment.serial)) continue;
    batch.handles[batch.count++] = stamped(handle_in_pool(segment.base, segment.bytes));
    pending_[segment.serial] = static_cast<uint64_t>(offered_++);
  }
  return batch;
}

bool Group::connect_pool(std::span<const Batch> batches) {
  require_connected();
  const OnDevice here(device_);
  std::vector<FileDescriptor> own;
  std::vector<size_t> counts;
  bool any = false, full = false;
  for (size_t rank = 0; rank < batches.size(); ++rank) {
    const Batch& batch = batches[rank];
    if (batch.count < 0 || static_cast<size_t>(batch.count) > Batch::kMost || batch.first < 0 ||
        batch.first + batch.count > kMostSegments)
      throw InvalidArgument("rank " + std::to_string(rank) + " offers segments in another form");
    any |= batch.count > 0;
    full |= static_cast<size_t>(batch.count) == Batch::kMost;
    counts.push_back(0);
    for (int i = 0; i < batch.count; ++i) {
      const Handle& handle = batch.handles[i];
      if (handle.kind != MemoryKind::Descriptor) continue;
      ++counts.back();
      if (static_cast<int>(rank) != rank_) continue;
      const auto segment = segment_pool().find(reinterpret_cast<const void*>(handle.address), handle.bytes);
      if (!segment) throw InvalidArgument("a segment was freed while the pool was shared");
      own.push_back(cuda_driver().export_descriptor(segment->memory));
    }
  }
  if (!any) return false;
  const Descriptors descriptors = hand_over(tag_of(batches), own, counts);
  if (segments_.data() == nullptr) {
    segments_ = DeviceMemory(static_cast<size_t>(layout_.ranks) * kMostSegments * sizeof(char*));
    require(
        cudaMemset(segments_.data(), 0, static_cast<size_t>(layout_.ranks) * kMostSegments * sizeof(char*)),
        "clear the table of segments");
  }
  for (size_t rank = 0; rank < batches.size(); ++rank) {
    std::vector<char*> mapped;
    size_t next = 0;
    for (int i = 0; i < batches[rank].count; ++i) {
      const Handle& handle = batches[rank].handles[i];
      if (static_cast<int>(rank) == rank_) {
        mapped.push_back(reinterpret_cast<char*>(handle.address));
        continue;
      }
      const std::span<const FileDescriptor> handed(descriptors[rank]);
      mapped.push_back(open_peer(
          handle, handle.kind == MemoryKind::Descriptor ? handed.subspan(next++, 1) : handed.first(0)));
    }
    if (mapped.empty()) continue;
    const size_t place = rank * kMostSegments + static_cast<size_t>(batches[rank].first);
    char* const at = segments_.data() + place * sizeof(char*);
    require(cudaMemcpy(at, mapped.data(), mapped.size() * sizeof(char*), cudaMemcpyHostToDevice),
            "copy addresses to the device");
  }
  return full;
}

void Group::use_pool() {
  places_.merge(pending_);
  pending_.clear();
  uses_pool_ = segments_.data() != nullptr;
}

// This rank's offer of a buffer for a call; 0 where no segment that peers know holds it.
uint64_t Group::offer_in_pool(const void* address, size_t bytes) const {
  if (reinterpret_cast<uintptr_t>(address) % 16 != 0) return 0;
  const auto segment = segment_pool().find(address, bytes);
  if (!segment || segment->device != device_) return 0;
  const auto place = places_.find(segment->serial);
  if (place == places_.end()) return 0;
  return offer_of(place->second, static_cast<uint64_t>(static_cast<const char*>(address) - segment->base));
}

bool Group::finds_in_pool(const void* address, size_t bytes) const {
  return offer_in_pool(address, bytes) != 0;
}

}  // namespace pycoll::cuda
