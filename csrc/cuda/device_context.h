// The kernels' Context on the device.
#pragma once
#include <cuda_runtime.h>

#include "cuda/nvls.h"
#include "cuda/packets.h"
#include "cuda/slices.h"

namespace pycoll::cuda {

// PTX is written out where its memory order matters: flags are released to and acquired from the whole
// system, since the other side is another GPU. Threads of a block are ordered with the one that does it by
// the block's barrier.
class DeviceContext {
 public:
  // `aborted` is in the host's memory; a wait looks there now and then.
  __device__ explicit DeviceContext(const uint32_t* aborted) : aborted_(aborted) {}

  __device__ int thread() const { return static_cast<int>(threadIdx.x); }
  __device__ int threads() const { return static_cast<int>(blockDim.x); }
  __device__ int block() const { return static_cast<int>(blockIdx.x); }
  __device__ int blocks() const { return static_cast<int>(gridDim.x); }

  __device__ Vector load(const Vector* from) const {
    Vector v;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.words[0]), "=r"(v.words[1]), "=r"(v.words[2]), "=r"(v.words[3])
                 : "l"(from)
                 : "memory");
    return v;
  }
  __device__ void store(Vector* to, const Vector& v) const {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.words[0]), "r"(v.words[1]),
                 "r"(v.words[2]), "r"(v.words[3])
                 : "memory");
  }

  __device__ void sync() const { __syncthreads(); }
  __device__ bool all(bool fine) const { return __syncthreads_and(fine) != 0; }
  __device__ void raise(uint64_t* flag, uint64_t value) const {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(flag), "l"(value) : "memory");
  }
  __device__ bool await(const uint64_t* flag, uint64_t value) const {
    return wait_until([&] {
      uint64_t seen;
      asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(seen) : "l"(flag) : "memory");
      return seen >= value;
    });
  }
  // Of a counter that may pass its end.
  __device__ bool await_count(const uint32_t* flag, uint32_t value) const {
    return wait_until([&] {
      uint32_t seen;
      asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
      return static_cast<int32_t>(seen - value) >= 0;
    });
  }
  __device__ uint64_t add(uint64_t* word, uint64_t value) const {
    return atomicAdd_system(reinterpret_cast<unsigned long long*>(word), value);
  }

  // One 16-byte access each way; both halves carry the flag, so 8 bytes at once are all that must hold.
  __device__ void post(Packet* to, uint32_t data0, uint32_t data1, uint32_t flag) const {
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(data0), "r"(flag),
                 "r"(data1), "r"(flag)
                 : "memory");
  }
  __device__ bool receive(const Packet* from, uint32_t flag, uint32_t& data0, uint32_t& data1) const {
    return wait_until([&] {
      uint32_t flag0, flag1;
      asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(data0), "=r"(flag0), "=r"(data1), "=r"(flag1)
                   : "l"(from)
                   : "memory");
      return flag0 == flag && flag1 == flag;
    });
  }

  // Multicast addresses are had on compute capability 9.0 and later; before, no such kernel is launched.
  template <class R>
  __device__ Vector load_reduced([[maybe_unused]] const char* from) const {
    static_assert(kNvlsReduces<R>);
    Vector v{};
#if __CUDA_ARCH__ >= 900
    [[maybe_unused]] constexpr DType kFormat = R::Wire::kDType;
    [[maybe_unused]] constexpr Op kOp = R::kWireOp;
    if constexpr (kFormat == DType::Float32) {
      float sums[4];
      asm volatile("multimem.ld_reduce.relaxed.sys.global.add.v4.f32 {%0, %1, %2, %3}, [%4];"
                   : "=f"(sums[0]), "=f"(sums[1]), "=f"(sums[2]), "=f"(sums[3])
                   : "l"(from)
                   : "memory");
      memcpy(&v, sums, 16);
    } else if constexpr (kFormat == DType::Float16 && kOp == Op::Sum) {
      asm volatile("multimem.ld_reduce.relaxed.sys.global.add.acc::f32.v4.f16x2 {%0, %1, %2, %3}, [%4];"
                   : "=r"(v.words[0]), "=r"(v.words[1]), "=r"(v.words[2]), "=r"(v.words[3])
                   : "l"(from)
                   : "memory");
    } else if constexpr (kFormat == DType::Float16 && kOp == Op::Min) {
      asm volatile("multimem.ld_reduce.relaxed.sys.global.min.v4.f16x2 {%0, %1, %2, %3}, [%4];"
                   : "=r"(v.words[0]), "=r"(v.words[1]), "=r"(v.words[2]), "=r"(v.words[3])
                   : "l"(from)
                   : "memory");
    } else if constexpr (kFormat == DType::Float16 && kOp == Op::Max) {
      asm volatile("multimem.ld_reduce.relaxed.sys.global.max.v4.f16x2 {%0, %1, %2, %3}, [%4];"
                   : "=r"(v.words[0]), "=r"(v.words[1]), "=r"(v.words[2]), "=r"(v.words[3])
                   : "l"(from)
                   : "memory");
    } else if constexpr (kFormat == DType::BFloat16 && kOp == Op::Sum) {
      asm volatile("multimem.ld_reduce.relaxed.sys.global.add.acc::f32.v4.bf16x2 {%0, %1, %2, %3}, [%4];"
                   : "=r"(v.words[0]), "=r"(v.words[1]), "=r"(v.words[2]), "=r"(v.words[3])
                   : "l"(from)
                   : "memory");
    } else if constexpr (kFormat == DType::BFloat16 && kOp == Op::Min) {
      asm volatile("multimem.ld_reduce.relaxed.sys.global.min.v4.bf16x2 {%0, %1, %2, %3}, [%4];"
                   : "=r"(v.words[0]), "=r"(v.words[1]), "=r"(v.words[2]), "=r"(v.words[3])
                   : "l"(from)
                   : "memory");
    } else if constexpr (kFormat == DType::BFloat16 && kOp == Op::Max) {
      asm volatile("multimem.ld_reduce.relaxed.sys.global.max.v4.bf16x2 {%0, %1, %2, %3}, [%4];"
                   : "=r"(v.words[0]), "=r"(v.words[1]), "=r"(v.words[2]), "=r"(v.words[3])
                   : "l"(from)
                   : "memory");
    }
#endif
    return v;
  }
  __device__ void store_everywhere([[maybe_unused]] char* to, [[maybe_unused]] const Vector& v) const {
#if __CUDA_ARCH__ >= 900
    float words[4];
    memcpy(words, &v, 16);
    asm volatile("multimem.st.relaxed.sys.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(words[0]),
                 "f"(words[1]), "f"(words[2]), "f"(words[3])
                 : "memory");
#endif
  }
  __device__ void raise_everywhere([[maybe_unused]] uint32_t* flag) const {
#if __CUDA_ARCH__ >= 900
    asm volatile("multimem.red.release.sys.global.add.u32 [%0], 1;" ::"l"(flag) : "memory");
#endif
  }
  __device__ void fence_aliases() const {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.alias;" ::: "memory");
#endif
  }

 private:
  template <class Done>
  __device__ bool wait_until(const Done& done) const {
    constexpr uint32_t kLooks = 4096;  // at the host's memory, which is far away, every so many
    for (uint32_t tries = 1; !done(); ++tries)
      if (tries % kLooks == 0 && *static_cast<const volatile uint32_t*>(aborted_) != 0) return false;
    return true;
  }

  const uint32_t* aborted_;
};

}  // namespace pycoll::cuda
