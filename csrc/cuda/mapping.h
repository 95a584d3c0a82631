// An address range and the memory behind it, owned: what this process made, or what a peer handed to it.
#pragma once
#include <algorithm>
#include <utility>

#include "cuda/driver.h"

namespace pycoll::cuda {

constexpr size_t rounded_up(size_t bytes, size_t granularity) {
  return (bytes + granularity - 1) / granularity * granularity;
}

class Mapping {
 public:
  Mapping() = default;
  // New memory of a device, of `bytes` or a little more.
  static Mapping create(Driver& driver, int device, size_t bytes, MemoryKind kind, size_t granularity = 1) {
    granularity = std::max(granularity, driver.granularity(device, kind));
    bytes = rounded_up(std::max<size_t>(bytes, 1), granularity);
    return Mapping(driver, driver.create(device, bytes, kind), bytes, granularity, device);
  }
  // Takes the memory over, and maps it for the device.
  Mapping(Driver& driver, Driver::Memory memory, size_t bytes, size_t alignment, int device)
      : driver_(&driver), memory_(memory), bytes_(bytes) {
    try {
      data_ = driver.map(memory, bytes, alignment, device);
    } catch (...) {
      driver.release(memory);
      throw;
    }
  }
  Mapping(Mapping&& other) noexcept { *this = std::move(other); }
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(driver_, other.driver_);
    std::swap(memory_, other.memory_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Mapping() {
    if (data_ == nullptr) return;
    driver_->unmap(data_, bytes_);
    driver_->release(memory_);
  }

  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  Driver::Memory memory() const { return memory_; }

 private:
  Driver* driver_ = nullptr;
  Driver::Memory memory_ = 0;
  char* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace pycoll::cuda
