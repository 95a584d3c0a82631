// One rank's part in a group of GPUs of one host: its heap, its peers', and the collectives on a stream.
#pragma once
#include <cuda_runtime.h>

#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "cuda/api.h"
#include "cuda/kernels.h"
#include "cuda/memory.h"
#include "cuda/nvls.h"
#include "cuda/pool.h"
#include "cuda/table.h"

namespace pycoll::cuda {

// Memory of the device, owned.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  explicit DeviceMemory(size_t bytes);
  DeviceMemory(DeviceMemory&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    std::swap(data_, other.data_);
    return *this;
  }
  ~DeviceMemory();
  char* data() const { return static_cast<char*>(data_); }

 private:
  void* data_ = nullptr;
};

// Segments of a rank's pool that it offers in one exchange; sent as its bytes.
struct Batch {
  static constexpr size_t kMost = 16;
  int32_t count;
  int32_t first;  // the rank's segments are counted from 0
  Handle handles[kMost];
};

// Names an exchange by what goes with it.
template <class T>
uint64_t tag_of(std::span<const T> sent) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const std::byte byte : std::as_bytes(sent))
    hash = (hash ^ static_cast<uint64_t>(byte)) * 0x100000001b3;
  return hash;
}

class Group {
 public:
  Group(const pycoll_cuda_options& options, MemoryKind kind);
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  ~Group();

  int ranks() const { return layout_.ranks; }
  int rank() const { return rank_; }
  int device() const { return device_; }
  const uint32_t* aborted() const { return aborted_; }  // of the host's memory, mapped
  void require_usable() const { require_connected(); }
  Handle handle() const;
  void connect(std::span<const Handle> handles);
  void abort();
  MemoryKind kind() const { return kind_; }

  // Each of the three by all ranks, before any goes on to the next.
  Handle offer_multicast();  // of rank 0; the others' are none
  void join_multicast(std::span<const Handle> handles);
  void bind_multicast();
  void drop_multicast() noexcept;
  bool has_multicast() const { return multi_.data() != nullptr; }

  // The pool's segments that peers do not know yet. Each of the three by all ranks, before any goes on to the
  // next: calls use what every rank has mapped. connect_pool says whether any rank offered as many as fit.
  Batch offer_pool();
  bool connect_pool(std::span<const Batch> batches);
  void use_pool();
  bool finds_in_pool(const void* address, size_t bytes) const;

  Handle offer(void* buffer, size_t bytes) const;
  int connect_buffers(std::span<const Handle> handles);
  void forget_buffers(int registration);

  int add_plan(const Schedule& schedule, bool finds_late);
  // The buffers' part in one collective.
  struct Call {
    DType dtype;
    Op op;
    double factor;
    const void* input;
    void* output;
    uint64_t count;
    cudaStream_t stream;
  };
  void run(int plan, const Call& call, int registration);
  void run_packets(int which, const Call& call);
  uint64_t packets_limit(int which, DType dtype) const;
  void run_nvls(NvlsKind which, const Call& call);

 private:
  struct Plan {
    Collective collective;
    bool finds_late;
    bool snapshots;
    DeviceMemory tables;  // the parts of all tables, then their views
    const TableView* views;
  };
  struct Buffers {
    std::vector<Handle> handles;
    DeviceMemory work;  // by rank
    char* mine;
    uint64_t bytes;  // of the shortest
  };

  void require_connected() const;
  void require_atomics() const;
  char* heap() const { return kind_ == MemoryKind::Ipc ? allocated_heap_.data() : heap_mapping_.data(); }
  Handle stamped(Handle handle) const;
  using Descriptors = std::vector<std::vector<FileDescriptor>>;
  Descriptors hand_over(uint64_t tag, std::span<const FileDescriptor> own, std::span<const size_t> counts);
  char* open_peer(const Handle& handle, std::span<const FileDescriptor> handed);
  Handle handle_in_pool(void* buffer, size_t bytes) const;
  uint64_t offer_in_pool(const void* address, size_t bytes) const;
  DeviceMemory addresses(const std::vector<char*>& by_rank) const;
  template <class KernelCall>
  void launch(const void* kernel, int blocks, const KernelCall& call, cudaStream_t stream);
  template <class Launches>
  void in_order(cudaStream_t stream, const Launches& launches);
  uint64_t packets_of_block(int which) const;

  int rank_;
  int device_;
  MemoryKind kind_;
  Layout layout_;
  SegmentPool::Lease lease_;  // outlives what peers_ has mapped
  DeviceMemory allocated_heap_;
  Mapping heap_mapping_;
  Mailbox mailbox_;
  PeerMemory peers_;
  std::vector<Handle> peer_handles_;
  DeviceMemory heaps_;            // the addresses of all ranks' heaps
  DeviceMemory staging_;          // and of their working memory
  Driver::Memory multicast_ = 0;  // until it is mapped
  Mapping multi_;                 // all ranks' heaps at once
  bool uses_pool_ = false;
  std::map<uint64_t, uint64_t> places_;   // of this rank's segments that peers have mapped, by serial number
  std::map<uint64_t, uint64_t> pending_;  // the same of those that are being offered
  int32_t offered_ = 0;
  DeviceMemory segments_;  // addresses by rank and segment; none until a pool is shared
  uint32_t* aborted_ = nullptr;
  cudaEvent_t last_call_ = nullptr;
  unsigned long long last_stream_ = 0;  // its number: handles of streams that were destroyed come again
  bool has_called_ = false;
  std::vector<std::unique_ptr<Plan>> plans_;
  std::vector<std::unique_ptr<Buffers>> buffers_;
};

}  // namespace pycoll::cuda
