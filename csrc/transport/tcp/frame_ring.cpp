#include "transport/tcp/frame_ring.h"

namespace pycoll::tcp {

FrameRing::FrameRing(size_t bytes)
    : size_(bytes), memory_(static_cast<std::byte*>(::operator new[](bytes, std::align_val_t(kAlignment)))) {}

bool FrameRing::begin(uint64_t number, size_t length) {
  size_t offset = 0;  // an empty ring starts over: that memory is in the cache
  if (!frames_.empty()) {
    const Frame& last = frames_.back();
    const size_t oldest = frames_.front().offset;
    const size_t end = (last.offset + last.length + kAlignment - 1) / kAlignment * kAlignment;
    const bool wrapped = last.offset < oldest;
    if (end + length <= (wrapped ? oldest : size_))
      offset = end;
    else if (wrapped || length > oldest)
      return false;
  } else if (length > size_) {
    return false;
  }
  frames_.push_back({number, offset, length, 0});
  return true;
}

std::span<std::byte> FrameRing::missing() const {
  if (frames_.empty()) return {};
  const Frame& last = frames_.back();
  return {memory_.get() + last.offset + last.came, last.length - last.came};
}

void FrameRing::came(size_t bytes) {
  if (bytes > 0) frames_.back().came += bytes;
}

std::span<const std::byte> FrameRing::first() const {
  const Frame& frame = frames_.front();
  return {memory_.get() + frame.offset + taken_, frame.came - taken_};
}

bool FrameRing::take(size_t bytes) {
  taken_ += bytes;
  if (taken_ < frames_.front().length) return false;
  frames_.pop_front();
  taken_ = 0;
  return true;
}

}  // namespace pycoll::tcp
