// Memory that peers reach: in one process by its address, between processes of a host by CUDA IPC.
#pragma once
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

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

// What a peer needs to reach a piece of memory; sent as its bytes.
struct Handle {
  uint64_t magic;
  uint64_t process;  // drawn at random by each process
  uint64_t address;  // in that process
  uint64_t bytes;
  uint64_t offset;  // from the start of the allocation that the IPC handle names
  int32_t rank;
  int32_t device;  // as that process numbers it
  cudaUUID_t gpu;
  cudaIpcMemHandle_t ipc;
};

Handle handle_of(void* memory, size_t bytes, int rank, int device);

// Peers' memory, as mapped into this process on one device. Each allocation is opened once, however many
// handles lie in it.
class PeerMemory {
 public:
  explicit PeerMemory(int device) : device_(device) {}
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;
  ~PeerMemory();

  char* open(const Handle& handle);
  void close(const Handle& handle);

 private:
  struct Opened {
    void* base;
    int users;
  };
  int device_;
  std::map<std::string, Opened> opened_;  // by the process and the bytes of the IPC handle
};

}  // namespace pycoll::cuda
