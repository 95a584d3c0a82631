#include <algorithm>
#include <cstring>
#include <string>

#include "core/error.h"
#include "cuda/cuda_driver.h"
#include "cuda/group.h"

namespace pycoll::cuda {
namespace {

constexpr int kDefaultBlocks = 16;
constexpr int kDefaultSlots = 4096;
constexpr int kDefaultPackets = 2049;
constexpr uint64_t kDefaultStaging = 64 << 20;

Layout layout_of(const pycoll_cuda_options& options) {
  if (options.ranks < 1 || options.ranks > kMostRanks)
    throw InvalidArgument("a group of GPUs has 1 to " + std::to_string(kMostRanks) + " ranks, not " +
                          std::to_string(options.ranks));
  if (options.rank < 0 || options.rank >= options.ranks)
    throw InvalidArgument("rank must be between 0 and " + std::to_string(options.ranks - 1) + ", not " +
                          std::to_string(options.rank));
  if (options.blocks < 0 || options.slots < 0 || options.packets < 0)
    throw InvalidArgument("blocks, slots and packets must not be negative");
  return Layout::of(options.ranks, options.blocks != 0 ? options.blocks : kDefaultBlocks,
                    options.slots != 0 ? options.slots : kDefaultSlots,
                    options.packets != 0 ? std::max(options.packets, 3) : kDefaultPackets,
                    options.staging != 0 ? options.staging : kDefaultStaging);
}

// CUDA loads a kernel when it is first launched, which may wait for all that runs: with ranks that are
// threads of a process, for a peer's kernel that waits for this one.
void load_kernels() {
  const auto load = [](const void* kernel) {
    cudaFuncAttributes attributes{};
    if (kernel != nullptr) require(cudaFuncGetAttributes(&attributes, kernel), "load a kernel");
  };
  for (int dtype = 0; dtype <= static_cast<int>(DType::Complex128); ++dtype)
    for (int op = 0; op <= static_cast<int>(Op::PremulSum); ++op) {
      const Kernels& kernels = kernels_of(static_cast<DType>(dtype), static_cast<Op>(op));
      for (const void* const kernel : {kernels.schedule, kernels.one_shot, kernels.two_shot}) load(kernel);
      load(nvls_kernel_of(static_cast<DType>(dtype), static_cast<Op>(op)).kernel);
    }
  for (const void* const kernel : {moving_kernels().schedule, all_gather_kernel(), nvls_all_gather_kernel()})
    load(kernel);
}

}  // namespace

DeviceMemory::DeviceMemory(size_t bytes) {
  require(cudaMalloc(&data_, std::max<size_t>(bytes, 1)), "allocate " + std::to_string(bytes) + " bytes");
}

DeviceMemory::~DeviceMemory() {
  if (data_ != nullptr) cudaFree(data_);
}

Group::Group(const pycoll_cuda_options& options, MemoryKind kind)
    : rank_(options.rank),
      device_(options.device),
      kind_(kind),
      layout_(layout_of(options)),
      peers_(options.device) {
  const OnDevice here(device_);
  if (kind_ == MemoryKind::Ipc) {
    allocated_heap_ = DeviceMemory(layout_.bytes());
  } else {
    Driver& driver = cuda_driver();
    const uint32_t offers = driver.offers(device_);
    if ((offers & (kind_ == MemoryKind::Fabric ? kOffersFabric : kOffersDescriptors)) == 0)
      throw Unsupported("device " + std::to_string(device_) + " offers no memory by address ranges as " +
                        (kind_ == MemoryKind::Fabric ? "fabric handles" : "file descriptors"));
    // Memory that may be bound to a multicast object is cut as that is.
    constexpr size_t kEnough = 2 << 20;
    const size_t granularity =
        (offers & kOffersMulticast) != 0 && layout_.ranks > 1
            ? driver.multicast_granularity(layout_.ranks, rounded_up(layout_.bytes(), kEnough), kind_)
            : 1;
    heap_mapping_ = Mapping::create(driver, device_, layout_.bytes(), kind_, granularity);
  }
  require(cudaMemset(heap(), 0, layout_.bytes()), "clear the heap");
  require(cudaDeviceSynchronize(), "clear the heap");
  require(cudaHostAlloc(reinterpret_cast<void**>(&aborted_), sizeof(uint32_t), cudaHostAllocMapped),
          "allocate pinned memory");
  *aborted_ = 0;
  require(cudaEventCreateWithFlags(&last_call_, cudaEventDisableTiming), "create an event");
}

Group::~Group() {
  try {
    const OnDevice here(device_);
    abort();  // a kernel that waits for a peer would wait for ever
    cudaDeviceSynchronize();
    drop_multicast();
    cudaEventDestroy(last_call_);
    cudaFreeHost(aborted_);
  } catch (const Error&) {  // the device is gone, and all memory with it
  }
}

Handle Group::stamped(Handle handle) const {
  std::strncpy(handle.mailbox, mailbox_.name().c_str(), sizeof(handle.mailbox) - 1);
  return handle;
}

Handle Group::handle() const {
  const OnDevice here(device_);
  if (kind_ == MemoryKind::Ipc) return stamped(handle_of(heap(), layout_.bytes(), rank_, device_));
  return stamped(handle_of_range(cuda_driver(), heap(), layout_.bytes(), heap(), heap_mapping_.bytes(),
                                 next_allocation(), heap_mapping_.memory(), kind_, rank_, device_));
}

// This rank's descriptors to all, and by rank theirs: of rank r there are counts[r].
Group::Descriptors Group::hand_over(uint64_t tag, std::span<const FileDescriptor> own,
                                    std::span<const size_t> counts) {
  std::vector<std::string> names;
  for (const Handle& handle : peer_handles_)
    names.emplace_back(handle.mailbox, strnlen(handle.mailbox, sizeof(handle.mailbox)));
  return mailbox_.exchange(tag, rank_, names, own, counts);
}

void Group::connect(std::span<const Handle> handles) {
  const OnDevice here(device_);
  int sharing = 0, ranks_here = 0;
  const Handle& own = handles[static_cast<size_t>(rank_)];
  for (const Handle& handle : handles) {
    if (handle.bytes != layout_.bytes())
      throw InvalidArgument("rank " + std::to_string(handle.rank) +
                            " opened the group with other blocks, slots, packets or staging than rank " +
                            std::to_string(rank_));
    if (handle.kind != kind_)
      throw InvalidArgument("rank " + std::to_string(handle.rank) +
                            " opened the group with memory of another kind than rank " +
                            std::to_string(rank_));
    sharing += std::memcmp(&handle.gpu, &own.gpu, sizeof(own.gpu)) == 0 ? 1 : 0;
    ranks_here += handle.process == own.process ? 1 : 0;
  }
  int multiprocessors = 0;
  require(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device_),
          "ask the device");
  // A kernel waits for its peers' kernels: all must run at once.
  if (layout_.blocks * sharing > multiprocessors)
    throw InvalidArgument(std::to_string(sharing) + " ranks share a GPU of " +
                          std::to_string(multiprocessors) + " multiprocessors: at most " +
                          std::to_string(multiprocessors / sharing) + " blocks each, not " +
                          std::to_string(layout_.blocks));
  if (ranks_here > 1) load_kernels();
  peer_handles_.assign(handles.begin(), handles.end());
  Descriptors descriptors(handles.size());
  if (kind_ == MemoryKind::Descriptor) {
    const FileDescriptor mine[] = {cuda_driver().export_descriptor(heap_mapping_.memory())};
    descriptors = hand_over(tag_of(handles), mine, std::vector<size_t>(handles.size(), 1));
  }
  std::vector<char*> heaps, staging;
  for (const Handle& handle : handles) {
    const auto& handed = descriptors[static_cast<size_t>(handle.rank)];
    heaps.push_back(handle.rank == rank_ ? heap() : open_peer(handle, handed));
    staging.push_back(heaps.back() + layout_.staging_begin());
  }
  heaps_ = addresses(heaps);
  staging_ = addresses(staging);
}

DeviceMemory Group::addresses(const std::vector<char*>& by_rank) const {
  DeviceMemory memory(by_rank.size() * sizeof(char*));
  require(cudaMemcpy(memory.data(), by_rank.data(), by_rank.size() * sizeof(char*), cudaMemcpyHostToDevice),
          "copy addresses to the device");
  return memory;
}

void Group::abort() {
  *const_cast<volatile uint32_t*>(aborted_) = 1;
}

void Group::require_connected() const {
  if (staging_.data() == nullptr) throw InvalidArgument("the group is not connected yet");
  if (*const_cast<const volatile uint32_t*>(aborted_) != 0) throw Aborted("the group was aborted");
}

Handle Group::offer(void* buffer, size_t bytes) const {
  const OnDevice here(device_);
  if (reinterpret_cast<uintptr_t>(buffer) % 16 != 0)
    throw InvalidArgument("a registered buffer must be aligned to 16 bytes");
  return stamped(handle_in_pool(buffer, bytes));
}

// Of a buffer, whether it lies in the pool or not.
Handle Group::handle_in_pool(void* buffer, size_t bytes) const {
  const auto segment = segment_pool().find(buffer, bytes);
  if (!segment || segment->kind == MemoryKind::Ipc) return handle_of(buffer, bytes, rank_, device_);
  return handle_of_range(cuda_driver(), static_cast<char*>(buffer), bytes, segment->base, segment->bytes,
                         segment->serial << 1, segment->memory, segment->kind, rank_, device_);
}

char* Group::open_peer(const Handle& handle, std::span<const FileDescriptor> handed) {
  static const FileDescriptor none;
  return peers_.open(handle, handed.empty() ? none : handed[0]);
}

int Group::connect_buffers(std::span<const Handle> handles) {
  require_connected();
  const OnDevice here(device_);
  std::vector<FileDescriptor> own;
  std::vector<size_t> counts;
  for (const Handle& handle : handles) {
    counts.push_back(handle.kind == MemoryKind::Descriptor ? 1 : 0);
    if (handle.rank != rank_ || handle.kind != MemoryKind::Descriptor) continue;
    const auto segment = segment_pool().find(reinterpret_cast<const void*>(handle.address), handle.bytes);
    if (!segment) throw InvalidArgument("the buffer to be registered is no longer in the pool");
    own.push_back(cuda_driver().export_descriptor(segment->memory));
  }
  const Descriptors descriptors = hand_over(tag_of(handles), own, counts);
  auto buffers = std::make_unique<Buffers>();
  std::vector<char*> work;
  buffers->bytes = handles[0].bytes;
  for (const Handle& handle : handles) {
    work.push_back(handle.rank == rank_ ? reinterpret_cast<char*>(handle.address)
                                        : open_peer(handle, descriptors[static_cast<size_t>(handle.rank)]));
    buffers->bytes = std::min(buffers->bytes, handle.bytes);
  }
  buffers->handles.assign(handles.begin(), handles.end());
  buffers->mine = work[static_cast<size_t>(rank_)];
  buffers->work = addresses(work);
  buffers_.push_back(std::move(buffers));
  return static_cast<int>(buffers_.size()) - 1;
}

void Group::forget_buffers(int registration) {
  if (registration < 0 || static_cast<size_t>(registration) >= buffers_.size() ||
      !buffers_[static_cast<size_t>(registration)])
    throw InvalidArgument("there is no registration " + std::to_string(registration));
  const OnDevice here(device_);
  require(cudaEventSynchronize(last_call_), "wait for the last collective");
  for (const Handle& handle : buffers_[static_cast<size_t>(registration)]->handles)
    if (handle.rank != rank_) peers_.close(handle);
  buffers_[static_cast<size_t>(registration)].reset();
}

}  // namespace pycoll::cuda
