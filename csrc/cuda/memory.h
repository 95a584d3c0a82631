// Memory that peers reach: in one process by its address, between processes by CUDA IPC or, where it was made
// so, by address ranges.
#pragma once
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "cuda/driver.h"
#include "cuda/mailbox.h"
#include "cuda/mapping.h"

namespace pycoll::cuda {

// Throws Error that says what was tried and what CUDA answers.
void require(cudaError_t status, const std::string& what);

// Makes a device current for a scope.
class OnDevice {
 public:
  explicit OnDevice(int device);
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice();

 private:
  int before_ = -1;
};

// What a peer needs to reach a piece of memory; sent as its bytes. A descriptor goes beside it, through the
// mailbox.
struct Handle {
  uint64_t magic;    // 0: none
  uint64_t process;  // drawn at random by each process
  uint64_t address;  // in that process
  uint64_t bytes;
  uint64_t offset;      // from the start of the allocation
  uint64_t allocation;  // its number in that process, and
  uint64_t whole;       // its bytes, where it is an address range
  int32_t rank;
  int32_t device;  // as that process numbers it
  MemoryKind kind;
  cudaError_t refused;  // why CUDA IPC does not share it; success where it does
  cudaUUID_t gpu;
  cudaIpcMemHandle_t ipc;
  FabricHandle fabric;
  char mailbox[Mailbox::kNameBytes];
};

constexpr uint64_t kMagic = 0x7079636f6c6c4333;  // "pycollC3"

// Of memory that CUDA IPC shares.
Handle handle_of(void* memory, size_t bytes, int rank, int device);
// Of a part of an address range.
Handle handle_of_range(Driver& driver, char* memory, size_t bytes, const char* base, size_t whole,
                       uint64_t allocation, Driver::Memory behind, MemoryKind kind, int rank, int device);
// The next number for an address range of a group; those of the pool have a number space of their own.
uint64_t next_allocation();

// Peers' memory, as mapped into this process on one device. Each allocation is opened once, however many
// handles lie in it.
class PeerMemory {
 public:
  explicit PeerMemory(int device) : device_(device) {}
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;
  ~PeerMemory();

  // `descriptor`: what came through the mailbox with a handle of that kind.
  char* open(const Handle& handle, const FileDescriptor& descriptor = {});
  void close(const Handle& handle);

 private:
  struct Opened {
    void* base = nullptr;  // by IPC
    Mapping mapping;       // else
    int users = 0;
  };
  void open_new(const Handle& handle, const FileDescriptor& descriptor, Opened& opened);
  static void shut(Opened& opened);

  int device_;
  std::map<std::string, Opened> opened_;  // by the process and what names the allocation there
};

}  // namespace pycoll::cuda
