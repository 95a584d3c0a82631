#include "engine/inbox.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace pycoll {

using shm::MessageKind;

namespace {

// Of the fronts of these queues, the one that came first. A queue that runs empty is dropped: its tag may
// never come again.
template <class Queues>
auto take_first(Queues& queues, std::span<const typename Queues::key_type> keys)
    -> std::optional<typename Queues::mapped_type::value_type> {
  auto first = queues.end();
  for (const auto& key : keys) {
    const auto found = queues.find(key);
    if (found == queues.end()) continue;
    if (first == queues.end() || found->second.front().order < first->second.front().order) first = found;
  }
  if (first == queues.end()) return std::nullopt;
  auto taken = std::move(first->second.front());
  first->second.pop_front();
  if (first->second.empty()) queues.erase(first);
  return taken;
}

}  // namespace

Inbox::Inbox(shm::Group& group, const MessagePeers& peers, shm::MessageRings& rings, MessageWorks& works)
    : group_(group), peers_(peers), rings_(rings), works_(works) {}

std::optional<Inbox::Posted> Inbox::take_posted(int source, uint64_t tag) {
  if (posted_.empty()) return std::nullopt;
  return take_first(posted_, std::array{Key{source, tag}, Key{-1, tag}});
}

std::optional<Inbox::Unexpected> Inbox::take_unexpected(int source, uint64_t tag) {
  if (unexpected_.empty()) return std::nullopt;
  if (source >= 0) return take_first(unexpected_, std::array{Key{source, tag}});
  std::vector<Key> keys;
  for (int rank = 0; rank < peers_.count(); ++rank) keys.emplace_back(rank, tag);
  return take_first(unexpected_, keys);
}

void Inbox::post(MessageWorkPtr work) {
  const MessageRequest& request = work->request;
  if (const auto waiting = take_unexpected(request.peer, request.tag))
    deliver(std::move(work), waiting->source, waiting->message);
  else
    posted_[{request.peer, request.tag}].push_back({next_order_++, std::move(work)});
}

void Inbox::arrived(int source, const shm::Message& message) {
  if (auto receive = take_posted(source, message.tag))
    deliver(std::move(receive->work), source, message);
  else
    unexpected_[{source, message.tag}].push_back({next_order_++, source, message});
}

void Inbox::deliver(MessageWorkPtr work, int source, const shm::Message& message) {
  if (message.bytes > work->request.bytes) return refuse(*work, source, message);
  if (!peers_.is_near(source)) return elsewhere_->deliver(std::move(work), source, message);
  if (message.kind == MessageKind::Inline) {
    if (message.bytes != 0) std::memcpy(work->request.data, message.body, message.bytes);
    return complete(*work, source);
  }
  const shm::MessagePlace place = place_of(message);
  Receiving receiving{.work = std::move(work), .source = source, .bytes = message.bytes, .id = place.id};
  if (message.kind == MessageKind::Announced) {
    shm::Message answer{.kind = MessageKind::Wanted};
    set_place(answer, {.id = place.id, .range = {}});
    rings_.answer(source, answer);
  } else if (message.kind == MessageKind::Lent) {
    receiving.data = group_.segment().map_heap(place.range.base, place.range.length) + place.range.offset;
    receiving.capacity = message.bytes;
  } else {
    attach(receiving, place);
  }
  begin(std::move(receiving));
}

void Inbox::begin(Receiving receiving) {
  receiving_.push_back(std::move(receiving));
  Receiving& here = receiving_.back();
  for (int chunk = 0; chunk < shm::kMessageChunksAtOnce && read_some(here);) ++chunk;
  if (here.copied == here.bytes) {
    finish(here);
    receiving_.pop_back();
  }
}

void Inbox::attach(Receiving& receiving, const shm::MessagePlace& place) {
  receiving.buffer = rings_.buffer(receiving.source, place.range.base);
  receiving.data = reinterpret_cast<const std::byte*>(receiving.buffer + 1);
  receiving.capacity = place.range.length;
}

void Inbox::granted(int source, const shm::Message& message) {
  const shm::MessagePlace place = place_of(message);
  for (Receiving& receiving : receiving_)
    if (receiving.data == nullptr && receiving.source == source && receiving.id == place.id)
      attach(receiving, place);
}

// Ends a receive whose buffer is too short for its message. The sender's part is done all the same.
void Inbox::refuse(MessageWork& work, int source, const shm::Message& message) {
  const shm::MessagePlace place = place_of(message);
  if (!peers_.is_near(source)) {
    elsewhere_->refuse(source, message);
  } else if (message.kind == MessageKind::Buffered) {
    rings_.buffer(source, place.range.base)->read.value.store(message.bytes, std::memory_order_release);
    rings_.add_consumed(source);
    shm::ring(group_.control(source));
  } else if (message.kind != MessageKind::Inline) {
    shm::Message answer{.kind = MessageKind::Taken};
    set_place(answer, {.id = place.id, .range = {}});
    rings_.answer(source, answer);
  }
  works_.end(work, std::make_exception_ptr(InvalidArgument(
                       peers_.self_in_words() + ": recv from rank " + std::to_string(peers_.number(source)) +
                       ", tag " + std::to_string(message.tag) + ": the message has " +
                       std::to_string(message.bytes) + " bytes and the buffer only " +
                       std::to_string(work.request.bytes) +
                       ". The message is dropped, the buffer is as it was; receive into a longer one.")));
}

// The next chunk of the payload, as far as it is there; false: nothing new is.
bool Inbox::read_some(Receiving& receiving) {
  // Once all is read the buffer is the sender's again, and its head may be another message's payload.
  if (receiving.data == nullptr || receiving.copied == receiving.bytes) return false;
  const uint64_t written = receiving.buffer == nullptr
                               ? receiving.bytes
                               : receiving.buffer->written.value.load(std::memory_order_acquire);
  const uint64_t at = receiving.copied % receiving.capacity;
  const uint64_t bytes = std::min({written - receiving.copied, receiving.capacity - at, shm::kMessageChunk});
  if (bytes == 0) return false;
  std::memcpy(receiving.work->request.data + receiving.copied, receiving.data + at, bytes);
  receiving.copied += bytes;
  if (receiving.buffer == nullptr) return true;
  receiving.buffer->read.value.store(receiving.copied, std::memory_order_release);
  // Only a sender whose message is longer than its buffer waits for room in it.
  if (receiving.bytes > receiving.capacity) shm::ring(group_.control(receiving.source));
  return true;
}

void Inbox::finish(Receiving& receiving) {
  if (receiving.buffer != nullptr) {
    rings_.add_consumed(receiving.source);
    shm::ring(group_.control(receiving.source));
    return complete(*receiving.work, receiving.source);
  }
  // The sender's user may have let go of a lent buffer while it was read, if the group failed or the sender
  // left.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (group_.failed() ||
      group_.control(receiving.source).messages_closed.load(std::memory_order_acquire) != 0) {
    works_.end(*receiving.work,
               std::make_exception_ptr(PeerLost(
                   peers_.self_in_words() + ": rank " + std::to_string(peers_.number(receiving.source)) +
                   " left the group, or the group failed, while its message of " +
                   std::to_string(receiving.bytes) + " bytes was being received")));
    return;
  }
  shm::Message answer{.kind = MessageKind::Taken};
  set_place(answer, {.id = receiving.id, .range = {}});
  rings_.answer(receiving.source, answer);
  complete(*receiving.work, receiving.source);
}

void Inbox::complete(MessageWork& work, int source) {
  if (work.request.source_out != nullptr) *work.request.source_out = peers_.number(source);
  works_.end(work, nullptr);
}

bool Inbox::progress() {
  bool moved = false;
  for (auto receiving = receiving_.begin(); receiving != receiving_.end();) {
    for (int chunk = 0; chunk < shm::kMessageChunksAtOnce && read_some(*receiving); ++chunk) moved = true;
    if (receiving->copied == receiving->bytes) {
      finish(*receiving);
      receiving = receiving_.erase(receiving);
    } else {
      ++receiving;
    }
  }
  return moved;
}

int Inbox::source_of(const MessageWork& work) const {
  for (const Receiving& receiving : receiving_)
    if (receiving.work.get() == &work) return receiving.source;
  return work.request.peer;
}

bool Inbox::safe(const MessageWork& work) const {
  for (const Receiving& receiving : receiving_)
    if (receiving.work.get() == &work)
      return receiving.buffer != nullptr &&
             receiving.buffer->written.value.load(std::memory_order_acquire) == receiving.bytes;
  return false;
}

void Inbox::forget(const MessageWork& work) {
  receiving_.remove_if([&](const Receiving& receiving) { return receiving.work.get() == &work; });
  const auto queue = posted_.find({work.request.peer, work.request.tag});
  if (queue == posted_.end()) return;
  std::erase_if(queue->second, [&](const Posted& posted) { return posted.work.get() == &work; });
  if (queue->second.empty()) posted_.erase(queue);
}

void Inbox::forget_all() {
  posted_.clear();
  unexpected_.clear();
  receiving_.clear();
}

}  // namespace pycoll
