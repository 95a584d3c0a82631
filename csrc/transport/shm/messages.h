// Point to point in shared memory: rings of descriptors between every two ranks, doorbells, and the arena
// that payloads pass through. No matching here. All of it is called under one lock, doorbells apart.
#pragma once
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "transport/shm/group.h"

namespace pycoll::shm {

// Payloads are written and read a chunk at a time: the receiver reads one while the sender writes the next.
inline constexpr uint64_t kMessageChunk = 32 << 10;
inline constexpr int kMessageChunksAtOnce = 32;  // of one message, before others of the rank have their turn

inline MessagePlace place_of(const Message& message) {
  MessagePlace place;
  std::memcpy(&place, message.body, sizeof place);
  return place;
}

inline void set_place(Message& message, const MessagePlace& place) {
  std::memcpy(message.body, &place, sizeof place);
}

// Wakes the threads of that rank which have news to expect; costs a fence and a look when none sleeps.
void ring(RankControl& rank);

class MessageRings {
 public:
  explicit MessageRings(Group& group);

  bool has_room(int destination);  // for a push; answers go first
  void push(int destination, const Message& message);
  void answer(int destination, const Message& message);  // goes when there is room
  bool flush_answers();                                  // true: some went

  const Message* first(int source);  // null: nothing there
  void pop(int source);

  uint64_t consumed(int destination) const {
    return out_[index(destination)].counters->consumed.load(std::memory_order_acquire);
  }
  void add_consumed(int source) {
    in_[index(source)].counters->consumed.fetch_add(1, std::memory_order_release);
  }

  MessageBuffer* buffer(int rank, uint64_t offset);  // in that rank's arena

 private:
  struct Ring {
    MessageCounters* counters = nullptr;
    MessageSlot* slots = nullptr;
    uint64_t position = 0;
    uint64_t limit = 0;  // a sender may fill up to here without looking at the counter again
    std::deque<Message> answers;
  };
  static size_t index(int rank) { return static_cast<size_t>(rank); }
  Ring make_ring(int source, int destination) const;
  bool is_free(Ring& out) const;

  Group& group_;
  uint64_t slots_;
  std::vector<std::byte*> arenas_;  // by rank; null: not mapped yet
  std::vector<Ring> out_;
  std::vector<Ring> in_;
};

// Which parts of this rank's arena are in use.
class MessageArena {
 public:
  // Longer messages stream through a buffer of this many bytes.
  static constexpr size_t kLongest = 1 << 20;

  explicit MessageArena(Group& group);

  // A MessageBuffer and room for `payload` bytes, as an offset in the arena.
  std::optional<uint64_t> allocate(size_t payload);
  // One buffer of kLongest is kept for messages that a receiver asked for: they move on however many others
  // wait.
  std::optional<uint64_t> allocate_reserved();
  void free(uint64_t offset, size_t payload);

  size_t touched() const { return touched_.load(std::memory_order_relaxed); }  // bytes that have memory
  void trim();  // gives the memory back, if nothing is in use

 private:
  static size_t length_of(size_t payload) {
    return sizeof(MessageBuffer) + (payload + kCacheLine - 1) / kCacheLine * kCacheLine;
  }
  static constexpr uint64_t kReserved = kMessageArena - sizeof(MessageBuffer) - kLongest;

  Group& group_;
  std::map<uint64_t, size_t> free_;  // offset -> length
  uint64_t begin_;
  uint64_t touched_end_;
  bool reserved_in_use_ = false;
  bool reserved_touched_ = false;
  std::atomic<size_t> touched_{0};
};

}  // namespace pycoll::shm
