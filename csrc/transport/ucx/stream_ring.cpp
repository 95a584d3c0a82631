#include "transport/ucx/stream_ring.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <string>

#include "core/error.h"

namespace pycoll::ucx {

RingMemory::RingMemory(size_t size)
    : memory_(static_cast<std::byte*>(std::aligned_alloc(4096, size))), size_(size) {
  if (!memory_) throw std::bad_alloc();
}

SendRing::Piece* SendRing::put(std::span<const std::byte> bytes, size_t longest) {
  const uint64_t occupied_from =
      pieces_.empty() ? given_back_ : std::min(given_back_, pieces_.front().position);
  const size_t place = position_ % memory_.size();
  const size_t free = memory_.size() - static_cast<size_t>(position_ - occupied_from);
  size_t length = std::min({bytes.size(), longest, free, memory_.size() - place});
  if (length < bytes.size()) length &= ~(kAlignment - 1);
  if (length == 0) return nullptr;
  std::memcpy(memory_.data() + place, bytes.data(), length);
  Piece& piece =
      pieces_.emplace_back(Piece{position_, {memory_.data() + place, length}, align_up(position_ + length)});
  position_ = piece.end;
  return &piece;
}

void SendRing::gone(Piece& piece) {
  piece.gone = true;
  while (!pieces_.empty() && pieces_.front().gone) pieces_.pop_front();
}

void SendRing::given_back(uint64_t position) {
  given_back_ = std::clamp(position, given_back_, position_);
}

std::byte* ReceiveRing::expect(uint64_t position, size_t length) {
  const size_t place = position % memory_.size();
  const bool fits = length > 0 && position % kAlignment == 0 && position >= taken() &&
                    length <= memory_.size() - place && position + length - taken() <= memory_.size();
  if (!fits) return nullptr;
  const auto [at, is_new] = pieces_.emplace(position, Piece{length, false});
  return is_new ? memory_.data() + place : nullptr;
}

void ReceiveRing::landed(uint64_t position) {
  pieces_.at(position).landed = true;
}

std::span<const std::byte> ReceiveRing::arrived() const {
  uint64_t end = begin_;
  for (auto piece = pieces_.begin(); piece != pieces_.end() && piece->first == end && piece->second.landed;
       ++piece) {
    end += piece->second.length;
    // What follows is next to it unless there is padding in between, or the ring's end.
    if (end % kAlignment != 0 || end % memory_.size() == 0) break;
  }
  if (end == begin_) return {};
  return {memory_.data() + begin_ % memory_.size() + offset_, static_cast<size_t>(end - begin_) - offset_};
}

void ReceiveRing::take(size_t bytes) {
  if (bytes > arrived().size())
    throw InvalidArgument(std::to_string(bytes) + " bytes given back, more than have arrived");
  offset_ += bytes;
  while (!pieces_.empty() && pieces_.begin()->first == begin_ && offset_ >= pieces_.begin()->second.length) {
    const size_t length = pieces_.begin()->second.length;
    if (!pieces_.begin()->second.landed) break;
    offset_ -= length;
    begin_ = align_up(begin_ + length);
    pieces_.erase(pieces_.begin());
  }
}

bool ReceiveRing::has_all(uint64_t position) const {
  uint64_t end = begin_;
  for (auto piece = pieces_.begin(); piece != pieces_.end() && piece->first == end && piece->second.landed;
       ++piece)
    end = align_up(end + piece->second.length);
  return end >= position;
}

}  // namespace pycoll::ucx
