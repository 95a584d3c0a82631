#include <cstring>
#include <random>

#include "core/error.h"
#include "cuda/memory.h"

namespace pycoll::cuda {
namespace {

constexpr uint64_t kMagic = 0x7079636f6c6c4331;  // "pycollC1"

uint64_t this_process() {
  static const uint64_t drawn = [] {
    std::random_device random;
    return uint64_t{random()} << 32 | random();
  }();
  return drawn;
}

std::string key_of(const Handle& handle) {
  return std::to_string(handle.process) + std::string(handle.ipc.reserved, sizeof(handle.ipc.reserved));
}

// Start of the allocation that holds an address. The driver knows; the runtime has no call for it.
uint64_t allocation_start(const void* memory) {
  using AddressRange = int (*)(unsigned long long* base, size_t* bytes, unsigned long long address);
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found{};
  require(cudaGetDriverEntryPointByVersion("cuMemGetAddressRange", &entry, 3020, cudaEnableDefault, &found),
          "look up the driver's cuMemGetAddressRange");
  unsigned long long base = 0;
  size_t bytes = 0;
  if (entry == nullptr ||
      reinterpret_cast<AddressRange>(entry)(&base, &bytes, reinterpret_cast<unsigned long long>(memory)) != 0)
    throw InvalidArgument("a buffer to be registered must be memory of the GPU");
  return base;
}

}  // namespace

void require(cudaError_t status, const std::string& what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // so that it is not reported again by whatever comes next
  throw Error("CUDA could not " + what + ": " + cudaGetErrorString(status) + " (" + cudaGetErrorName(status) +
              ")");
}

OnDevice::OnDevice(int device) {
  require(cudaGetDevice(&before_), "say which device is current");
  if (before_ != device) require(cudaSetDevice(device), "use device " + std::to_string(device));
}

OnDevice::~OnDevice() {
  if (before_ >= 0) cudaSetDevice(before_);
}

Handle handle_of(void* memory, size_t bytes, int rank, int device) {
  Handle handle{};
  handle.magic = kMagic;
  handle.process = this_process();
  handle.address = reinterpret_cast<uint64_t>(memory);
  handle.bytes = bytes;
  handle.rank = rank;
  handle.device = device;
  handle.offset = handle.address - allocation_start(memory);
  cudaDeviceProp properties{};
  require(cudaGetDeviceProperties(&properties, device), "describe device " + std::to_string(device));
  handle.gpu = properties.uuid;
  require(cudaIpcGetMemHandle(&handle.ipc, memory),
          "share memory with other processes (memory of an expandable segment or of a virtual address range "
          "cannot be: set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False)");
  return handle;
}

PeerMemory::~PeerMemory() {
  for (const auto& [key, opened] : opened_) cudaIpcCloseMemHandle(opened.base);
}

char* PeerMemory::open(const Handle& handle) {
  if (handle.magic != kMagic)
    throw InvalidArgument("what came from a peer is no handle of this version of pycoll's CUDA part");
  if (handle.process == this_process()) {
    if (handle.device != device_) {
      const OnDevice here(device_);
      int can = 0;
      require(cudaDeviceCanAccessPeer(&can, device_, handle.device), "ask for peer access");
      if (can == 0)
        throw Unsupported("device " + std::to_string(device_) + " cannot reach the memory of device " +
                          std::to_string(handle.device) + " (rank " + std::to_string(handle.rank) + ")");
      const cudaError_t status = cudaDeviceEnablePeerAccess(handle.device, 0);
      if (status == cudaErrorPeerAccessAlreadyEnabled) {
        cudaGetLastError();
      } else {
        require(status, "enable peer access to device " + std::to_string(handle.device));
      }
    }
    return reinterpret_cast<char*>(handle.address);
  }
  const auto [found, is_new] = opened_.try_emplace(key_of(handle), Opened{nullptr, 0});
  if (is_new) {
    const OnDevice here(device_);
    const cudaError_t status =
        cudaIpcOpenMemHandle(&found->second.base, handle.ipc, cudaIpcMemLazyEnablePeerAccess);
    if (status != cudaSuccess) {
      opened_.erase(found);
      require(status, "map the memory of rank " + std::to_string(handle.rank) +
                          " (its process must be on this host, and the two GPUs able to reach each other: "
                          "nvidia-smi topo -p2p r)");
    }
  }
  ++found->second.users;
  return static_cast<char*>(found->second.base) + handle.offset;
}

void PeerMemory::close(const Handle& handle) {
  const auto found = opened_.find(key_of(handle));
  if (found == opened_.end() || --found->second.users > 0) return;
  cudaIpcCloseMemHandle(found->second.base);
  opened_.erase(found);
}

}  // namespace pycoll::cuda
