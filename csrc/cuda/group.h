// One rank's part in a group of GPUs of one host: its heap, its peers', and the collectives on a stream.
#pragma once
#include <cuda_runtime.h>

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "cuda/api.h"
#include "cuda/kernels.h"
#include "cuda/memory.h"
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

class Group {
 public:
  explicit Group(const pycoll_cuda_options& options);
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  ~Group();

  int ranks() const { return layout_.ranks; }
  Handle handle() const;
  void connect(std::span<const Handle> handles);
  void abort();

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
  DeviceMemory addresses(const std::vector<char*>& by_rank) const;
  template <class KernelCall>
  void launch(const void* kernel, int blocks, const KernelCall& call, cudaStream_t stream);
  template <class Launches>
  void in_order(cudaStream_t stream, const Launches& launches);
  uint64_t packets_of_block(int which) const;

  int rank_;
  int device_;
  Layout layout_;
  DeviceMemory heap_;
  PeerMemory peers_;
  std::vector<Handle> peer_handles_;
  DeviceMemory heaps_;    // the addresses of all ranks' heaps
  DeviceMemory staging_;  // and of their working memory
  uint32_t* aborted_ = nullptr;
  cudaEvent_t last_call_ = nullptr;
  cudaStream_t last_stream_ = nullptr;
  bool has_called_ = false;
  std::vector<std::unique_ptr<Plan>> plans_;
  std::vector<std::unique_ptr<Buffers>> buffers_;
};

}  // namespace pycoll::cuda
