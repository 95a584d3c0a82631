// What pycoll asks of CUDA's driver where memory is had by virtual address ranges: pieces of physical memory
// that processes hand to each other and map where they like, and multicast objects, at whose addresses an
// access reaches the memory of several devices at once. In plain types, so that the logic above it builds
// and is tested without CUDA; driver.cu has the real one. Calls throw Error that says what the driver
// answered.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

#include "core/file_descriptor.h"

namespace pycoll::cuda {

// How memory gets from the process that has it to those that map it.
enum class MemoryKind : int32_t {
  Ipc = 0,         // CUDA IPC: whole allocations of cudaMalloc
  Descriptor = 1,  // address ranges, as file descriptors: processes of one host
  Fabric = 2,      // address ranges, as handles of an NVLink fabric: processes of all its hosts
};

// What a device offers, as bits.
enum : uint32_t { kOffersDescriptors = 1, kOffersFabric = 2, kOffersMulticast = 4 };

using FabricHandle = std::array<uint8_t, 64>;

class Driver {
 public:
  using Memory = uint64_t;  // a piece of physical memory or a multicast object, as this process names it

  Driver() = default;
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;
  virtual ~Driver() = default;

  virtual uint32_t offers(int device) = 0;

  // Sizes and addresses are multiples of the granularity.
  virtual size_t granularity(int device, MemoryKind kind) = 0;
  virtual Memory create(int device, size_t bytes, MemoryKind kind) = 0;
  virtual void release(Memory memory) noexcept = 0;
  virtual FileDescriptor export_descriptor(Memory memory) = 0;
  virtual FabricHandle export_fabric(Memory memory) = 0;
  virtual Memory import_descriptor(int descriptor) = 0;
  virtual Memory import_fabric(const FabricHandle& handle) = 0;

  // An address range backed by the memory, which the device may read and write; it keeps the memory alive.
  virtual char* map(Memory memory, size_t bytes, size_t alignment, int device) = 0;
  virtual void allow(char* address, size_t bytes, int device) = 0;
  virtual void unmap(char* address, size_t bytes) noexcept = 0;

  // All devices are added before any memory is bound or the object is mapped: those wait for the last one.
  virtual size_t multicast_granularity(int devices, size_t bytes, MemoryKind kind) = 0;
  virtual Memory create_multicast(int devices, size_t bytes, MemoryKind kind) = 0;
  virtual void add_device(Memory multicast, int device) = 0;
  virtual void bind(Memory multicast, Memory memory, size_t bytes) = 0;
  virtual void unbind(Memory multicast, int device, size_t bytes) noexcept = 0;

  // cudaMalloc and cudaFree.
  virtual char* allocate(int device, size_t bytes) = 0;
  virtual void free(int device, char* memory) noexcept = 0;
  // Until the device has ended all that was put on it so far.
  virtual void synchronize(int device) noexcept = 0;
};

}  // namespace pycoll::cuda
