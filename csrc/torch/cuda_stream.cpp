#include "torch/cuda_stream.h"

#include <mutex>
#include <unordered_map>

namespace pycoll::torch_adapter {
namespace {

constexpr int kTries = 64;  // the pool gives its streams out in turn: 32 of each priority

std::mutex taken_mutex;
// How often each stream is taken in this process. Never destroyed: groups may outlive static destructors.
std::unordered_map<c10::Stream, int>& taken() {
  static auto* streams = new std::unordered_map<c10::Stream, int>;
  return *streams;
}

// One that nobody else here has, or, where all are taken, any.
c10::Stream take(const c10::impl::VirtualGuardImpl& guard, c10::Device device, bool urgent) {
  const std::lock_guard lock(taken_mutex);
  c10::Stream stream = guard.getStreamFromGlobalPool(device, urgent);
  for (int i = 0; i < kTries && taken().contains(stream); ++i)
    stream = guard.getStreamFromGlobalPool(device, urgent);
  ++taken()[stream];
  return stream;
}

}  // namespace

CudaStream::CudaStream(const c10::impl::VirtualGuardImpl& guard, c10::Device device, bool urgent,
                       const std::function<void*(const c10::Stream&)>& handle_of)
    : stream_(take(guard, device, urgent)) {
  handle_ = handle_of(stream_);
}

CudaStream::~CudaStream() {
  const std::lock_guard lock(taken_mutex);
  const auto found = taken().find(stream_);
  if (found != taken().end() && --found->second == 0) taken().erase(found);
}

}  // namespace pycoll::torch_adapter
