#include "transport/shm/messages.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "transport/shm/bell.h"
#include "transport/shm/futex.h"

namespace pycoll::shm {
namespace {

void ring(Doorbell& bell, const char* socket) {
  if (bell.armed.load(std::memory_order_relaxed) == 0) return;
  // The first who has news takes the arming with it: a sleeper costs one wake-up, not one a message.
  const uint32_t armed = bell.armed.exchange(0);
  if ((armed & kOnWord) != 0) {
    bell.word.fetch_add(1, std::memory_order_release);
    futex_wake(bell.word);
  }
  if ((armed & kInPoll) != 0) ring_bell(socket);
}

}  // namespace

void ring(RankControl& rank) {
  // Orders the news before the looks at `armed`; pairs with the fence between a sleeper's arming and its last
  // look.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  ring(rank.message_waiters, rank.message_bell);
  ring(rank.message_keeper, rank.message_bell);
}

MessageRings::MessageRings(Group& group)
    : group_(group),
      slots_(group.segment().layout().message_slots),
      arenas_(static_cast<size_t>(group.ranks())) {
  for (int peer = 0; peer < group.ranks(); ++peer) {
    out_.push_back(peer == group.rank() ? Ring{} : make_ring(group.rank(), peer));
    in_.push_back(peer == group.rank() ? Ring{} : make_ring(peer, group.rank()));
  }
}

MessageRings::Ring MessageRings::make_ring(int source, int destination) const {
  const Layout& layout = group_.segment().layout();
  std::byte* const at = group_.segment().area(source) + layout.messages_at +
                        layout.message_ring_bytes() * static_cast<size_t>(destination);
  Ring made;
  made.counters = reinterpret_cast<MessageCounters*>(at);
  made.slots = reinterpret_cast<MessageSlot*>(at + sizeof(MessageCounters));
  return made;
}

bool MessageRings::is_free(Ring& out) const {
  if (out.position >= out.limit) out.limit = out.counters->read.load(std::memory_order_acquire) + slots_;
  return out.position < out.limit;
}

bool MessageRings::has_room(int destination) {
  Ring& out = out_[index(destination)];
  return out.answers.empty() && is_free(out);
}

void MessageRings::push(int destination, const Message& message) {
  Ring& out = out_[index(destination)];
  MessageSlot& slot = out.slots[out.position % slots_];
  slot.message = message;
  slot.turn.store(++out.position, std::memory_order_release);
  ring(group_.control(destination));
}

void MessageRings::answer(int destination, const Message& message) {
  if (has_room(destination))
    push(destination, message);
  else
    out_[index(destination)].answers.push_back(message);
}

bool MessageRings::flush_answers() {
  bool any = false;
  for (int destination = 0; destination < group_.ranks(); ++destination) {
    Ring& out = out_[index(destination)];
    while (!out.answers.empty() && is_free(out)) {
      push(destination, out.answers.front());
      out.answers.pop_front();
      any = true;
    }
  }
  return any;
}

const Message* MessageRings::first(int source) {
  Ring& in = in_[index(source)];
  MessageSlot& slot = in.slots[in.position % slots_];
  return slot.turn.load(std::memory_order_acquire) == in.position + 1 ? &slot.message : nullptr;
}

void MessageRings::pop(int source) {
  Ring& in = in_[index(source)];
  ++in.position;
  in.counters->read.store(in.position, std::memory_order_release);
  // A sender that has more to send than the ring holds sleeps until half of it is free.
  if (in.position % (slots_ / 2) == 0) ring(group_.control(source));
}

MessageBuffer* MessageRings::buffer(int rank, uint64_t offset) {
  std::byte*& arena = arenas_[index(rank)];
  if (arena == nullptr)
    arena = group_.segment().map_heap(group_.segment().layout().arena_at(rank), kMessageArena);
  return reinterpret_cast<MessageBuffer*>(arena + offset);
}

MessageArena::MessageArena(Group& group)
    : group_(group),
      // Buffers of different ranks at equal offsets would fall on the same cache sets.
      begin_(static_cast<uint64_t>(group.rank() % 31) * 17 * kCacheLine),
      touched_end_(begin_) {
  free_[begin_] = kReserved - begin_;
}

std::optional<uint64_t> MessageArena::allocate(size_t payload) {
  const size_t length = length_of(payload);
  // The lowest address that fits: it was used last, and is in the cache.
  const auto fit =
      std::find_if(free_.begin(), free_.end(), [&](const auto& hole) { return hole.second >= length; });
  if (fit == free_.end()) return std::nullopt;
  const auto [offset, hole] = *fit;
  free_.erase(fit);
  if (hole > length) free_.emplace(offset + length, hole - length);
  if (offset + length > touched_end_) {
    touched_.fetch_add(offset + length - touched_end_, std::memory_order_relaxed);
    touched_end_ = offset + length;
  }
  return offset;
}

std::optional<uint64_t> MessageArena::allocate_reserved() {
  if (std::exchange(reserved_in_use_, true)) return std::nullopt;
  if (!std::exchange(reserved_touched_, true))
    touched_.fetch_add(length_of(kLongest), std::memory_order_relaxed);
  return kReserved;
}

void MessageArena::free(uint64_t offset, size_t payload) {
  if (offset == kReserved) {
    reserved_in_use_ = false;
    return;
  }
  auto hole = free_.emplace(offset, length_of(payload)).first;
  if (const auto next = std::next(hole); next != free_.end() && hole->first + hole->second == next->first) {
    hole->second += next->second;
    free_.erase(next);
  }
  if (hole == free_.begin()) return;
  if (const auto before = std::prev(hole); before->first + before->second == hole->first) {
    before->second += hole->second;
    free_.erase(hole);
  }
}

void MessageArena::trim() {
  const bool in_use = reserved_in_use_ || free_.size() != 1 || free_.begin()->second != kReserved - begin_;
  if (touched() == 0 || in_use) return;
  group_.segment().release_pages(group_.segment().layout().arena_at(group_.rank()), kMessageArena);
  touched_end_ = begin_;
  reserved_touched_ = false;
  touched_ = 0;
}

}  // namespace pycoll::shm
