// The driver of this machine, and the process's pool of segments.
#pragma once
#include "cuda/driver.h"
#include "cuda/pool.h"

namespace pycoll::cuda {

Driver& cuda_driver();
SegmentPool& segment_pool();

// Start of the allocation that holds an address.
uint64_t allocation_start(const void* memory);

}  // namespace pycoll::cuda
