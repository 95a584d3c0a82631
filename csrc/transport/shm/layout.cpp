#include "transport/shm/layout.h"

#include <algorithm>
#include <bit>

namespace pycoll::shm {
namespace {
constexpr size_t round_up(size_t value, size_t unit) {
  return (value + unit - 1) / unit * unit;
}
}  // namespace

Layout::Layout(int ranks) : ranks(ranks) {
  const size_t peers = static_cast<size_t>(std::max(1, ranks - 1));
  channel_bytes = std::max<size_t>(kChannelArea / peers / 1024 * 1024, 1024);
  channels_at = round_up(sizeof(RankControl), kCacheLine);
  message_slots = std::clamp<size_t>(std::bit_floor(kMessageRings / peers / sizeof(MessageSlot)), 8, 64);
  messages_at = channels_at + sizeof(ChannelCounters) * static_cast<size_t>(ranks);
  small_at = round_up(messages_at + message_ring_bytes() * static_cast<size_t>(ranks), kPage);
  staging_at = small_at + 2 * kSmallSlot;
  gathered_at = staging_at + kStagingRing;
  channel_data_at = gathered_at + kGathered;
  // An odd number of pages, plus a few lines: equal offsets in different ranks' areas must not fall on the
  // same cache sets (measured at six times slower when they do).
  stride = round_up(channel_data_at + channel_bytes * peers, kPage);
  if (stride / kPage % 2 == 0) stride += kPage;
  stride += 17 * kCacheLine;
}

}  // namespace pycoll::shm
