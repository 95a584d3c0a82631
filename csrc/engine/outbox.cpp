#include "engine/outbox.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace pycoll {

using shm::MessageArena;
using shm::MessageBuffer;
using shm::MessageKind;
using shm::MessagePlace;

namespace {
std::byte* payload_of(MessageBuffer* buffer) {
  return reinterpret_cast<std::byte*>(buffer + 1);
}
}  // namespace

Outbox::Outbox(shm::Group& group, shm::MessageRings& rings, MessageWorks& works)
    : group_(group),
      rings_(rings),
      works_(works),
      arena_(group),
      destinations_(static_cast<size_t>(group.ranks())) {}

void Outbox::post(MessageWorkPtr work, const shm::HeapRange& shared) {
  Sending sending{.work = std::move(work), .shared = shared};
  Destination& destination = to(sending);
  if (!destination.queued.empty() || !start(sending)) destination.queued.push_back(std::move(sending));
}

// Puts the message's descriptor into the ring, and as much of its payload where the receiver finds it as
// there is room for. False: the ring is full, and nothing happened.
bool Outbox::start(Sending& sending) {
  const MessageRequest& request = sending.work->request;
  if (!rings_.has_room(request.peer)) return false;
  shm::Message message{.tag = request.tag, .bytes = request.bytes};
  if (request.bytes <= shm::kInlineMessage) {
    if (request.bytes != 0) std::memcpy(message.body, request.data, request.bytes);
    rings_.push(request.peer, message);
    works_.end(*sending.work, nullptr);
    return true;
  }
  // Messages that fit a buffer are copied even from shared buffers: so all of one length complete alike.
  const bool lends = sending.shared.length != 0 && request.bytes > MessageArena::kLongest;
  const auto offset = lends ? std::nullopt : allocate(request.bytes);
  if (!offset) {
    message.kind = lends ? MessageKind::Lent : MessageKind::Announced;
    set_place(message, {.id = next_id_, .range = sending.shared});
    rings_.push(request.peer, message);
    unanswered_.emplace(next_id_++, std::move(sending));
    return true;
  }
  attach(sending, *offset);
  message.kind = MessageKind::Buffered;
  set_place(message, {.id = 0, .range = {.base = *offset, .length = sending.capacity, .offset = 0}});
  write_some(sending);
  rings_.push(request.peer, message);
  for (int chunk = 0; chunk < shm::kMessageChunksAtOnce && !over(sending) && write_some(sending);) ++chunk;
  if (over(sending))
    finish(sending);
  else
    streaming_.push_back(std::move(sending));
  return true;
}

void Outbox::attach(Sending& sending, uint64_t offset) {
  sending.buffer = rings_.buffer(group_.rank(), offset);
  sending.offset = offset;
  sending.capacity = std::min<uint64_t>(sending.work->request.bytes, MessageArena::kLongest);
  sending.buffer->written.value.store(0, std::memory_order_relaxed);
  sending.buffer->read.value.store(0, std::memory_order_relaxed);
}

// The next chunk of the payload, as far as there is room; false: there is none.
bool Outbox::write_some(Sending& sending) {
  const MessageRequest& request = sending.work->request;
  const uint64_t read = sending.buffer->read.value.load(std::memory_order_acquire);
  if (read >= request.bytes) return false;  // the receiver wants no more of it
  const uint64_t at = sending.written % sending.capacity;
  const uint64_t room = std::min(sending.capacity - (sending.written - read), sending.capacity - at);
  const uint64_t bytes = std::min({room, shm::kMessageChunk, request.bytes - sending.written});
  if (bytes == 0) return false;
  std::memcpy(payload_of(sending.buffer) + at, request.data + sending.written, bytes);
  const bool first = sending.written == 0;
  sending.written += bytes;
  sending.buffer->written.value.store(sending.written, std::memory_order_release);
  if (!first) shm::ring(group_.control(request.peer));  // the first comes with the descriptor
  return true;
}

bool Outbox::over(const Sending& sending) const {
  const uint64_t bytes = sending.work->request.bytes;
  return sending.written == bytes || sending.buffer->read.value.load(std::memory_order_acquire) >= bytes;
}

void Outbox::finish(Sending& sending) {
  to(sending).unconsumed.push_back(
      {sending.buffer, sending.offset, sending.capacity, sending.work->request.bytes});
  works_.end(*sending.work, nullptr);
}

bool Outbox::progress() {
  bool moved = false;
  for (Destination& destination : destinations_) {
    reclaim(destination, false);
    while (!destination.queued.empty() && start(destination.queued.front())) {
      destination.queued.pop_front();
      moved = true;
    }
  }
  for (auto sending = streaming_.begin(); sending != streaming_.end();) {
    for (int chunk = 0; chunk < shm::kMessageChunksAtOnce && write_some(*sending); ++chunk) moved = true;
    if (over(*sending)) {
      finish(*sending);
      sending = streaming_.erase(sending);
      moved = true;
    } else {
      ++sending;
    }
  }
  while (!ungranted_.empty() && grant()) moved = true;
  return moved;
}

void Outbox::wanted(uint64_t id) {
  const auto found = unanswered_.find(id);
  if (found == unanswered_.end()) return;
  ungranted_.emplace_back(id, std::move(found->second));
  unanswered_.erase(found);
}

bool Outbox::grant() {
  auto& [id, sending] = ungranted_.front();
  auto offset = allocate(sending.work->request.bytes);
  if (!offset) offset = arena_.allocate_reserved();
  if (!offset) return false;
  attach(sending, *offset);
  shm::Message message{.kind = MessageKind::Granted, .bytes = sending.work->request.bytes};
  set_place(message, {.id = id, .range = {.base = *offset, .length = sending.capacity, .offset = 0}});
  rings_.answer(sending.work->request.peer, message);
  streaming_.push_back(std::move(sending));
  ungranted_.pop_front();
  return true;
}

void Outbox::taken(uint64_t id) {
  const auto found = unanswered_.find(id);
  if (found == unanswered_.end()) return;
  works_.end(*found->second.work, nullptr);
  unanswered_.erase(found);
}

std::optional<uint64_t> Outbox::allocate(size_t bytes) {
  const size_t payload = std::min(bytes, MessageArena::kLongest);
  if (const auto offset = arena_.allocate(payload)) return offset;
  for (Destination& destination : destinations_) reclaim(destination, true);
  return arena_.allocate(payload);
}

// Mostly messages are consumed in order. Looking at all of them waits until room is short.
void Outbox::reclaim(Destination& destination, bool out_of_order) {
  if (destination.unconsumed.empty()) return;
  const auto consumed = [](const Unconsumed& one) {
    return one.buffer->read.value.load(std::memory_order_acquire) >= one.bytes;
  };
  while (!destination.unconsumed.empty() && consumed(destination.unconsumed.front())) {
    free(destination.unconsumed.front());
    destination.unconsumed.pop_front();
  }
  if (!out_of_order || destination.unconsumed.empty()) return;
  const uint64_t count = rings_.consumed(static_cast<int>(&destination - destinations_.data()));
  if (std::exchange(destination.consumed, count) == count) return;
  std::erase_if(destination.unconsumed, [&](const Unconsumed& one) {
    if (!consumed(one)) return false;
    free(one);
    return true;
  });
}

void Outbox::forget(int peer) {
  const auto is_to = [&](const Sending& sending) { return sending.work->request.peer == peer; };
  Destination& destination = destinations_[static_cast<size_t>(peer)];
  destination.queued.clear();
  for (const Unconsumed& one : destination.unconsumed) free(one);
  destination.unconsumed.clear();
  streaming_.remove_if([&](const Sending& sending) {
    if (!is_to(sending)) return false;
    arena_.free(sending.offset, sending.capacity);
    return true;
  });
  std::erase_if(unanswered_, [&](const auto& entry) { return is_to(entry.second); });
  std::erase_if(ungranted_, [&](const auto& entry) { return is_to(entry.second); });
}

void Outbox::forget_all() {
  for (Destination& destination : destinations_) destination.queued.clear();
  streaming_.clear();
  unanswered_.clear();
  ungranted_.clear();
}

}  // namespace pycoll
