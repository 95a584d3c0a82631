#include <atomic>
#include <cstring>
#include <random>

#include "core/error.h"
#include "cuda/cuda_driver.h"
#include "cuda/memory.h"

namespace pycoll::cuda {
namespace {

uint64_t this_process() {
  static const uint64_t drawn = [] {
    std::random_device random;
    return uint64_t{random()} << 32 | random();
  }();
  return drawn;
}

std::string key_of(const Handle& handle) {
  const std::string process = std::to_string(handle.process) + "/";
  if (handle.kind == MemoryKind::Ipc)
    return process + std::string(handle.ipc.reserved, sizeof(handle.ipc.reserved));
  return process + std::to_string(handle.allocation);
}

Handle blank_handle(void* memory, size_t bytes, int rank, int device) {
  Handle handle{};
  handle.magic = kMagic;
  handle.process = this_process();
  handle.address = reinterpret_cast<uint64_t>(memory);
  handle.bytes = bytes;
  handle.rank = rank;
  handle.device = device;
  cudaDeviceProp properties{};
  require(cudaGetDeviceProperties(&properties, device), "describe device " + std::to_string(device));
  handle.gpu = properties.uuid;
  return handle;
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
  Handle handle = blank_handle(memory, bytes, rank, device);
  handle.kind = MemoryKind::Ipc;
  handle.offset = handle.address - allocation_start(memory);
  // Ranks of this process need no more than the address: that others cannot have it is their error.
  handle.refused = cudaIpcGetMemHandle(&handle.ipc, memory);
  if (handle.refused != cudaSuccess) cudaGetLastError();
  return handle;
}

Handle handle_of_range(Driver& driver, char* memory, size_t bytes, const char* base, size_t whole,
                       uint64_t allocation, Driver::Memory behind, MemoryKind kind, int rank, int device) {
  Handle handle = blank_handle(memory, bytes, rank, device);
  handle.kind = kind;
  handle.offset = static_cast<uint64_t>(memory - base);
  handle.allocation = allocation;
  handle.whole = whole;
  if (kind == MemoryKind::Fabric) handle.fabric = driver.export_fabric(behind);
  return handle;
}

uint64_t next_allocation() {
  static std::atomic<uint64_t> made{0};
  return ++made << 1 | 1;
}

// On the device that it was mapped on, whichever is current where a group is closed.
PeerMemory::~PeerMemory() {
  if (opened_.empty()) return;
  try {
    const OnDevice here(device_);
    for (auto& [key, opened] : opened_) shut(opened);
  } catch (const Error&) {  // the device is gone, and all memory with it
  }
}

char* PeerMemory::open(const Handle& handle, const FileDescriptor& descriptor) {
  if (handle.magic != kMagic)
    throw InvalidArgument("what came from a peer is no handle of this version of pycoll's CUDA part");
  if (handle.process == this_process()) {
    if (handle.device != device_ && handle.kind != MemoryKind::Ipc) {
      cuda_driver().allow(reinterpret_cast<char*>(handle.address - handle.offset), handle.whole, device_);
    } else if (handle.device != device_) {
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
  const auto [found, is_new] = opened_.try_emplace(key_of(handle));
  Opened& opened = found->second;
  if (is_new) {
    try {
      open_new(handle, descriptor, opened);
    } catch (...) {
      opened_.erase(found);
      throw;
    }
  }
  ++opened.users;
  char* const base = handle.kind == MemoryKind::Ipc ? static_cast<char*>(opened.base) : opened.mapping.data();
  return base + handle.offset;
}

void PeerMemory::open_new(const Handle& handle, const FileDescriptor& descriptor, Opened& opened) {
  const OnDevice here(device_);
  if (handle.kind == MemoryKind::Ipc)
    require(handle.refused,
            "share memory of rank " + std::to_string(handle.rank) +
                " with other processes (memory of an expandable segment cannot be: set "
                "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False, or allocate it from the group's "
                "mem_pool())");
  if (handle.kind == MemoryKind::Ipc)
    return require(cudaIpcOpenMemHandle(&opened.base, handle.ipc, cudaIpcMemLazyEnablePeerAccess),
                   "map the memory of rank " + std::to_string(handle.rank) +
                       " (its process must be on this host, and the two GPUs able to reach each other: "
                       "nvidia-smi topo -p2p r)");
  Driver& driver = cuda_driver();
  const Driver::Memory memory = handle.kind == MemoryKind::Fabric
                                    ? driver.import_fabric(handle.fabric)
                                    : driver.import_descriptor(descriptor.get());
  opened.mapping = Mapping(driver, memory, handle.whole, 0, device_);
}

void PeerMemory::shut(Opened& opened) {
  if (opened.base != nullptr) cudaIpcCloseMemHandle(opened.base);
  opened.mapping = Mapping();
}

void PeerMemory::close(const Handle& handle) {
  const auto found = opened_.find(key_of(handle));
  if (found == opened_.end() || --found->second.users > 0) return;
  shut(found->second);
  opened_.erase(found);
}

}  // namespace pycoll::cuda
