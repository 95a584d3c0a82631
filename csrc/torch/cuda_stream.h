// Streams of torch's pool, a different one for each purpose: calls of two groups, or messages in two
// directions, that shared one would wait for each other, which other ranks know nothing of.
#pragma once
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <functional>

namespace pycoll::torch_adapter {

class CudaStream {
 public:
  // `urgent`: of high priority. `handle_of`: the cudaStream_t.
  CudaStream(const c10::impl::VirtualGuardImpl& guard, c10::Device device, bool urgent,
             const std::function<void*(const c10::Stream&)>& handle_of);
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;
  ~CudaStream();  // it may be given out again

  const c10::Stream& stream() const { return stream_; }
  void* handle() const { return handle_; }

 private:
  const c10::Stream stream_;
  void* handle_;
};

}  // namespace pycoll::torch_adapter
