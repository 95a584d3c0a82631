// The driver itself. Its functions are looked up when they are first needed, so that the library loads where
// there is none.
#include <cuda.h>
#include <cuda_runtime.h>

#include <map>
#include <mutex>
#include <string>

#include "core/error.h"
#include "cuda/cuda_driver.h"
#include "cuda/memory.h"

namespace pycoll::cuda {
namespace {

// By the names and the versions that cuda.h declares; cudaGetDriverEntryPointByVersion finds them.
struct Calls {
  decltype(&::cuGetErrorString) get_error_string = nullptr;
  decltype(&::cuDeviceGet) device_get = nullptr;
  decltype(&::cuDeviceGetAttribute) device_get_attribute = nullptr;
  decltype(&::cuMemGetAddressRange) get_address_range = nullptr;
  decltype(&::cuMemGetAllocationGranularity) get_granularity = nullptr;
  decltype(&::cuMemCreate) create = nullptr;
  decltype(&::cuMemRelease) release = nullptr;
  decltype(&::cuMemExportToShareableHandle) export_handle = nullptr;
  decltype(&::cuMemImportFromShareableHandle) import_handle = nullptr;
  decltype(&::cuMemAddressReserve) reserve = nullptr;
  decltype(&::cuMemAddressFree) free_addresses = nullptr;
  decltype(&::cuMemMap) map = nullptr;
  decltype(&::cuMemUnmap) unmap = nullptr;
  decltype(&::cuMemSetAccess) set_access = nullptr;
  decltype(&::cuMulticastGetGranularity) multicast_granularity = nullptr;
  decltype(&::cuMulticastCreate) multicast_create = nullptr;
  decltype(&::cuMulticastAddDevice) multicast_add = nullptr;
  decltype(&::cuMulticastBindMem) multicast_bind = nullptr;
  decltype(&::cuMulticastUnbind) multicast_unbind = nullptr;

  Calls() {
    find("cuGetErrorString", 6000, get_error_string);
    find("cuDeviceGet", 2000, device_get);
    find("cuDeviceGetAttribute", 2000, device_get_attribute);
    find("cuMemGetAddressRange", 3020, get_address_range);
    find("cuMemGetAllocationGranularity", 10020, get_granularity);
    find("cuMemCreate", 10020, create);
    find("cuMemRelease", 10020, release);
    find("cuMemExportToShareableHandle", 10020, export_handle);
    find("cuMemImportFromShareableHandle", 10020, import_handle);
    find("cuMemAddressReserve", 10020, reserve);
    find("cuMemAddressFree", 10020, free_addresses);
    find("cuMemMap", 10020, map);
    find("cuMemUnmap", 10020, unmap);
    find("cuMemSetAccess", 10020, set_access);
    find("cuMulticastGetGranularity", 12010, multicast_granularity);
    find("cuMulticastCreate", 12010, multicast_create);
    find("cuMulticastAddDevice", 12010, multicast_add);
    find("cuMulticastBindMem", 12010, multicast_bind);
    find("cuMulticastUnbind", 12010, multicast_unbind);
  }
  bool has_ranges() const { return create != nullptr && map != nullptr && set_access != nullptr; }
  bool has_multicast() const { return multicast_create != nullptr && multicast_bind != nullptr; }

 private:
  template <class Function>
  static void find(const char* name, unsigned version, Function& function) {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found{};
    const cudaError_t status =
        cudaGetDriverEntryPointByVersion(name, &entry, version, cudaEnableDefault, &found);
    if (status != cudaSuccess) cudaGetLastError();
    if (status == cudaSuccess && found == cudaDriverEntryPointSuccess)
      function = reinterpret_cast<Function>(entry);
  }
};

const Calls& calls() {
  static const Calls found;
  return found;
}

void require_driver(CUresult status, const std::string& what) {
  if (status == CUDA_SUCCESS) return;
  const char* text = nullptr;
  if (calls().get_error_string != nullptr) calls().get_error_string(status, &text);
  throw Error("CUDA could not " + what + ": " + (text != nullptr ? text : "no text for it") + " (CUresult " +
              std::to_string(static_cast<int>(status)) + ")");
}

template <class Function>
Function needed(Function function, const char* what) {
  if (function == nullptr) throw Unsupported(std::string("this NVIDIA driver cannot ") + what);
  return function;
}

CUmemAllocationHandleType type_of(MemoryKind kind) {
  return kind == MemoryKind::Fabric ? CU_MEM_HANDLE_TYPE_FABRIC : CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
}

CUmemAllocationProp properties_of(int device, MemoryKind kind) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = type_of(kind);
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  return properties;
}

CUmulticastObjectProp multicast_properties(int devices, size_t bytes, MemoryKind kind) {
  CUmulticastObjectProp properties{};
  properties.numDevices = static_cast<unsigned>(devices);
  properties.size = bytes;
  properties.handleTypes = static_cast<unsigned long long>(type_of(kind));
  return properties;
}

class CudaDriver final : public Driver {
 public:
  uint32_t offers(int device) override {
    const std::scoped_lock lock(mutex_);
    const auto [found, is_new] = offers_.try_emplace(device, 0);
    if (is_new) found->second = ask(device);
    return found->second;
  }

  size_t granularity(int device, MemoryKind kind) override {
    const CUmemAllocationProp properties = properties_of(device, kind);
    size_t bytes = 0;
    require_driver(needed(calls().get_granularity, "give memory by address ranges")(
                       &bytes, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
                   "ask for the granularity of memory");
    return bytes;
  }
  Memory create(int device, size_t bytes, MemoryKind kind) override {
    const CUmemAllocationProp properties = properties_of(device, kind);
    CUmemGenericAllocationHandle memory = 0;
    const OnDevice here(device);
    require_driver(calls().create(&memory, bytes, &properties, 0),
                   "allocate " + std::to_string(bytes) + " bytes of device " + std::to_string(device));
    return memory;
  }
  void release(Memory memory) noexcept override { calls().release(memory); }
  FileDescriptor export_descriptor(Memory memory) override {
    int descriptor = -1;
    require_driver(calls().export_handle(&descriptor, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                   "share memory as a file descriptor");
    return FileDescriptor(descriptor);
  }
  FabricHandle export_fabric(Memory memory) override {
    FabricHandle handle{};
    static_assert(sizeof(handle) == sizeof(CUmemFabricHandle));
    require_driver(calls().export_handle(handle.data(), memory, CU_MEM_HANDLE_TYPE_FABRIC, 0),
                   "share memory over the NVLink fabric");
    return handle;
  }
  Memory import_descriptor(int descriptor) override {
    CUmemGenericAllocationHandle memory = 0;
    void* const as_pointer = reinterpret_cast<void*>(static_cast<intptr_t>(descriptor));
    require_driver(calls().import_handle(&memory, as_pointer, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                   "take over memory that a peer shares as a file descriptor");
    return memory;
  }
  Memory import_fabric(const FabricHandle& handle) override {
    CUmemGenericAllocationHandle memory = 0;
    FabricHandle copy = handle;
    require_driver(calls().import_handle(&memory, copy.data(), CU_MEM_HANDLE_TYPE_FABRIC),
                   "take over memory that a peer shares over the NVLink fabric");
    return memory;
  }

  char* map(Memory memory, size_t bytes, size_t alignment, int device) override {
    CUdeviceptr address = 0;
    const OnDevice here(device);
    require_driver(calls().reserve(&address, bytes, alignment, 0, 0),
                   "reserve " + std::to_string(bytes) + " bytes of addresses");
    const CUresult mapped = calls().map(address, bytes, 0, memory, 0);
    if (mapped != CUDA_SUCCESS) {
      calls().free_addresses(address, bytes);
      require_driver(mapped, "map memory");
    }
    char* const data = reinterpret_cast<char*>(address);
    try {
      allow(data, bytes, device);
    } catch (...) {
      unmap(data, bytes);
      throw;
    }
    return data;
  }
  void allow(char* address, size_t bytes, int device) override {
    const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    require_driver(calls().set_access(reinterpret_cast<CUdeviceptr>(address), bytes, &access, 1),
                   "let device " + std::to_string(device) +
                       " read and write memory (the GPUs must be able to reach each other: nvidia-smi topo "
                       "-p2p r)");
  }
  void unmap(char* address, size_t bytes) noexcept override {
    calls().unmap(reinterpret_cast<CUdeviceptr>(address), bytes);
    calls().free_addresses(reinterpret_cast<CUdeviceptr>(address), bytes);
  }

  size_t multicast_granularity(int devices, size_t bytes, MemoryKind kind) override {
    const CUmulticastObjectProp properties = multicast_properties(devices, bytes, kind);
    size_t granularity = 0;
    require_driver(needed(calls().multicast_granularity, "make multicast objects")(
                       &granularity, &properties, CU_MULTICAST_GRANULARITY_RECOMMENDED),
                   "ask for the granularity of a multicast object");
    return granularity;
  }
  Memory create_multicast(int devices, size_t bytes, MemoryKind kind) override {
    const CUmulticastObjectProp properties = multicast_properties(devices, bytes, kind);
    CUmemGenericAllocationHandle object = 0;
    require_driver(calls().multicast_create(&object, &properties),
                   "make a multicast object of " + std::to_string(devices) + " devices");
    return object;
  }
  void add_device(Memory multicast, int device) override {
    CUdevice driver_device = 0;
    require_driver(calls().device_get(&driver_device, device), "find the device");
    require_driver(calls().multicast_add(multicast, driver_device),
                   "add device " + std::to_string(device) + " to a multicast object");
  }
  void bind(Memory multicast, Memory memory, size_t bytes) override {
    require_driver(calls().multicast_bind(multicast, 0, memory, 0, bytes, 0),
                   "bind memory to a multicast object (the fabric manager must run: nvidia-smi -q | grep -A2 "
                   "Fabric)");
  }
  void unbind(Memory multicast, int device, size_t bytes) noexcept override {
    CUdevice driver_device = 0;
    if (calls().device_get(&driver_device, device) == CUDA_SUCCESS)
      calls().multicast_unbind(multicast, driver_device, 0, bytes);
  }

  char* allocate(int device, size_t bytes) override {
    const OnDevice here(device);
    void* memory = nullptr;
    cuda::require(cudaMalloc(&memory, bytes), "allocate " + std::to_string(bytes) + " bytes");
    return static_cast<char*>(memory);
  }
  void free(int device, char* memory) noexcept override {
    try {
      const OnDevice here(device);
      cudaFree(memory);
    } catch (const Error&) {  // the device is gone, and all memory with it
    }
  }
  void synchronize(int device) noexcept override {
    try {
      const OnDevice here(device);
      if (cudaDeviceSynchronize() != cudaSuccess) cudaGetLastError();  // whoever put it there is told
    } catch (const Error&) {
    }
  }

 private:
  // Fabric handles need an IMEX channel too, of which no attribute tells: a little memory is made to find
  // out.
  uint32_t ask(int device) {
    int count = 0;
    cuda::require(cudaGetDeviceCount(&count), "find a GPU");
    if (device < 0 || device >= count)
      throw InvalidArgument("there is no device " + std::to_string(device) + " among " +
                            std::to_string(count));
    if (!calls().has_ranges() || calls().device_get_attribute == nullptr) return 0;
    const OnDevice here(device);
    cuda::require(cudaFree(nullptr), "begin");  // the device's context
    CUdevice driver_device = 0;
    require_driver(calls().device_get(&driver_device, device), "find the device");
    const auto has = [&](CUdevice_attribute attribute) {
      int value = 0;
      return calls().device_get_attribute(&value, attribute, driver_device) == CUDA_SUCCESS && value != 0;
    };
    if (!has(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)) return 0;
    uint32_t found = 0;
    if (has(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)) found |= kOffersDescriptors;
    if (has(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED) && fabric_works(device)) found |= kOffersFabric;
    if (has(CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED) && calls().has_multicast()) found |= kOffersMulticast;
    return found;
  }
  bool fabric_works(int device) {
    try {
      const Memory memory = create(device, granularity(device, MemoryKind::Fabric), MemoryKind::Fabric);
      FabricHandle handle{};
      const CUresult status = calls().export_handle(handle.data(), memory, CU_MEM_HANDLE_TYPE_FABRIC, 0);
      release(memory);
      return status == CUDA_SUCCESS;
    } catch (const Error&) {
      return false;
    }
  }

  std::mutex mutex_;
  std::map<int, uint32_t> offers_;
};

}  // namespace

Driver& cuda_driver() {
  static auto* const driver = new CudaDriver;  // never destroyed: allocators free memory until the very end
  return *driver;
}

SegmentPool& segment_pool() {
  static auto* const pool = new SegmentPool(cuda_driver());
  return *pool;
}

uint64_t allocation_start(const void* memory) {
  CUdeviceptr base = 0;
  size_t bytes = 0;
  const auto get = needed(calls().get_address_range, "say where an allocation begins");
  if (get(&base, &bytes, reinterpret_cast<CUdeviceptr>(memory)) != CUDA_SUCCESS)
    throw InvalidArgument("a buffer to be registered must be memory of the GPU");
  return base;
}

}  // namespace pycoll::cuda
