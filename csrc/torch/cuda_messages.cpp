// A group's messages: their streams, and their order on these.
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <vector>

#include "core/error.h"
#include "torch/cuda_group.h"

namespace pycoll::torch_adapter {
namespace {

constexpr int kBatch = -1;

int channel_of(int peer, bool sends) {
  return 2 * peer + (sends ? 1 : 0);
}

}  // namespace

const CudaStream& CudaGroup::special_stream(int number) {
  const std::lock_guard lock(streams_mutex_);
  auto& stream = special_streams_[number];
  if (!stream) stream = std::make_unique<CudaStream>(guard_, device_, true, native_handle_);
  return *stream;
}

c10::Stream CudaGroup::message_stream(int peer, bool sends) {
  return special_stream(channel_of(peer, sends)).stream();
}

c10::Stream CudaGroup::batch_stream() {
  return special_stream(kBatch).stream();
}

void* CudaGroup::handle_of(const c10::Stream& stream) {
  if (stream == stream_->stream()) return stream_->handle();
  const std::lock_guard lock(streams_mutex_);
  for (const auto& [number, special] : special_streams_)
    if (special->stream() == stream) return special->handle();
  throw InvalidArgument("the stream is none of the group's");
}

uint64_t CudaGroup::capture_of(const c10::Stream& stream) {
  uint64_t capture = 0;
  library_->check(library_->capture(handle_of(stream), &capture));
  return capture;
}

void CudaGroup::join(const c10::Stream& stream, const c10::Stream& after) {
  c10::Event reached(device_.type());
  reached.record(after);
  reached.block(stream);
}

void CudaGroup::put(std::span<const pycoll_cuda_message> messages, const c10::Stream& stream) {
  if (messages.empty()) return;
  if (!why_no_messages_.empty())
    throw Unsupported("group '" + communicator_->options().group +
                      "' has no messages of CUDA tensors: " + why_no_messages_);
  const std::lock_guard lock(mutex_);
  require_open();
  const c10::DeviceGuard there(device_);
  const uint64_t capture = capture_of(stream);
  std::map<int, std::vector<pycoll_cuda_message>> channels;
  for (const auto& message : messages)
    channels[channel_of(message.peer, message.sends != 0)].push_back(message);
  for (const auto& [channel, unused] : channels) {
    const auto last = last_uses_.find(channel);
    // One of an earlier capture is no event to wait for: what replays it is ordered by the user's streams.
    if (last != last_uses_.end() && last->second.stream != stream && last->second.capture == capture)
      last->second.end.block(stream);
  }
  const auto launch = [&](std::span<const pycoll_cuda_message> some, void* handle) {
    library_->check(library_->messages(group_, some.data(), int32_t(some.size()), handle));
  };
  if (messages.size() <= PYCOLL_CUDA_MOST_MESSAGES) {
    launch(messages, handle_of(stream));
  } else {  // too many for one kernel: each channel's on its own stream, so that none waits for another
    for (const auto& [channel, all] : channels) {
      const CudaStream& own = special_stream(channel);
      join(own.stream(), stream);
      for (std::span<const pycoll_cuda_message> left(all); !left.empty();) {
        const auto some = left.first(std::min<size_t>(left.size(), PYCOLL_CUDA_MOST_MESSAGES));
        launch(some, own.handle());
        left = left.subspan(some.size());
      }
    }
    for (const auto& [channel, unused] : channels) join(stream, special_stream(channel).stream());
  }
  for (const auto& [channel, unused] : channels) {
    auto& last =
        last_uses_.try_emplace(channel, LastUse{c10::Event(device_.type()), stream, capture}).first->second;
    last.end.record(stream);
    last.stream = stream;
    last.capture = capture;
  }
}

std::string CudaGroup::complaint() {
  const std::lock_guard lock(abort_mutex_);
  char text[512] = {};
  if (group_ != nullptr) library_->check(library_->messages_complaint(group_, text, sizeof(text)));
  return text;
}

}  // namespace pycoll::torch_adapter
