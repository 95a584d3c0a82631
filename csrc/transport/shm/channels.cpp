#include "transport/shm/channels.h"

#include <algorithm>

namespace pycoll::shm {
namespace {
constexpr uint64_t kAlignment = 64;
uint64_t align(uint64_t position) {
  return (position + kAlignment - 1) / kAlignment * kAlignment;
}
}  // namespace

Channels::Channels(Group& group) : group_(group), capacity_(group.segment().layout().channel_bytes) {
  for (int peer = 0; peer < group.ranks(); ++peer) {
    out_.push_back(peer == group.rank() ? End{} : make_end(group.rank(), peer));
    in_.push_back(peer == group.rank() ? End{} : make_end(peer, group.rank()));
  }
}

Channels::End Channels::make_end(int source, int destination) const {
  const Layout& layout = group_.segment().layout();
  std::byte* area = group_.segment().area(source);
  const auto index = static_cast<size_t>(destination - (destination > source ? 1 : 0));
  return {reinterpret_cast<ChannelCounters*>(area + layout.channels_at) + destination,
          area + layout.channel_data_at + index * capacity_, 0};
}

size_t Channels::send(int destination, std::span<const std::byte> bytes) {
  End& end = out_[static_cast<size_t>(destination)];
  const uint64_t read = end.counters->read.value.load(std::memory_order_acquire);
  const uint64_t used = end.position - read;
  if (used >= capacity_) return 0;
  const size_t at = end.position % capacity_;
  const size_t taken = std::min<size_t>({bytes.size(), capacity_ - used, capacity_ - at});
  if (taken == 0) return 0;
  copy_bytes(end.ring + at, bytes.data(), taken);
  end.position += taken;
  group_.publish(end.counters->written.value, end.position);
  return taken;
}

std::span<const std::byte> Channels::arrived(int source) {
  End& end = in_[static_cast<size_t>(source)];
  const uint64_t written = end.counters->written.value.load(std::memory_order_acquire);
  if (written <= end.position) return {};
  const size_t at = end.position % capacity_;
  return {end.ring + at, std::min<size_t>(written - end.position, capacity_ - at)};
}

void Channels::received(int source, size_t bytes) {
  End& end = in_[static_cast<size_t>(source)];
  end.position += bytes;
  group_.publish(end.counters->read.value, end.position);
}

// The padding is never written nor waited for: both sides skip it alike, and the next publication covers it.
void Channels::align_send(int destination) {
  End& end = out_[static_cast<size_t>(destination)];
  end.position = align(end.position);
}

void Channels::align_receive(int source) {
  End& end = in_[static_cast<size_t>(source)];
  end.position = align(end.position);
}

void Channels::wait(FunctionRef<bool()> progress, FunctionRef<int()> peer) {
  group_.wait(*operation_, peer(), [&] { return progress(); }, kAnyone);
}

}  // namespace pycoll::shm
