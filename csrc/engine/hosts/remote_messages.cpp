#include "engine/hosts/remote_messages.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "core/error.h"
#include "engine/hosts/notes.h"

namespace pycoll {

using shm::MessageKind;

namespace {

constexpr uint64_t kEager = 64 << 10;
constexpr uint64_t kCredit = 1 << 20;      // bytes that one rank may have sent another unasked
constexpr uint64_t kAllCredit = 32 << 20;  // and all ranks one, together
constexpr uint64_t kOverhead = 128;        // what holding a message takes, however short it is
constexpr uint64_t kFragment = 512 << 10;  // of a message, before others to the same rank have their turn
constexpr uint64_t kAtOnce = 2 << 20;      // to or from one rank, before others have their turn

enum class RemoteNote : uint8_t { Eager, Announced, Granted, Taken, Credit };

struct FragmentHead {
  uint64_t id = 0;
  uint64_t bytes = 0;
};

uint64_t cost_of(uint64_t bytes) {
  return bytes + kOverhead;
}

}  // namespace

struct RemoteMessages::Note {
  RemoteNote kind = RemoteNote::Eager;
  uint8_t reserved[7] = {};
  uint64_t id = 0;     // the sender's; of all but Eager and Credit
  uint64_t tag = 0;    // Eager, Announced
  uint64_t bytes = 0;  // of the message; Credit: that are given back
  // Eager: the payload follows
};

RemoteMessages::RemoteMessages(shm::Group& group, const MessagePeers& peers, MessageWorks& works,
                               Inbox& inbox, std::unique_ptr<Network> network)
    : peers_(peers),
      works_(works),
      inbox_(inbox),
      network_(std::move(network)),
      credit_(
          std::clamp<uint64_t>(kAllCredit / static_cast<uint64_t>(peers.count()), 4 * kOverhead, kCredit)) {
  std::strncpy(group.mine().message_bell, bell_.name().c_str(), shm::kBellName - 1);
  inbox.take_from_elsewhere(*this);
}

void RemoteMessages::tell(int peer, const Note& note, std::span<const std::byte> payload) {
  if (payload.empty()) return network_->post(peers_.number(peer), bytes_of(note));
  std::array<std::byte, sizeof note + kEager> whole;
  std::memcpy(whole.data(), &note, sizeof note);
  std::memcpy(whole.data() + sizeof note, payload.data(), payload.size());
  network_->post(peers_.number(peer), std::span(whole).first(sizeof note + payload.size()));
}

// Sending

void RemoteMessages::post(MessageWorkPtr send) {
  const MessageRequest& request = send->request;
  if (gone(request.peer)) return;  // the next check ends it
  Destination& to = destinations_[request.peer];
  Note note{.tag = request.tag, .bytes = request.bytes};
  if (request.bytes <= kEager && to.unreceived + cost_of(request.bytes) <= credit_) {
    to.unreceived += cost_of(request.bytes);
    tell(request.peer, note, {request.data, request.bytes});
    works_.end(*send, nullptr);
    return;
  }
  note.kind = RemoteNote::Announced;
  note.id = next_id_++;
  tell(request.peer, note);
  announced_.emplace(note.id, std::move(send));
}

bool RemoteMessages::send_some(int destination, Destination& to) {
  const int number = peers_.number(destination);
  uint64_t sent = 0;
  bool moved = false;
  while (!to.granted.empty() && sent < kAtOnce) {
    Granted& first = to.granted.front();
    const MessageRequest& request = first.work->request;
    if (to.fragment == 0) {
      const FragmentHead head{.id = first.id, .bytes = std::min(kFragment, request.bytes - first.sent)};
      to.head.assign(bytes_of(head).begin(), bytes_of(head).end());
      to.fragment = head.bytes;
    }
    if (!to.head.empty()) {
      const size_t went = network_->send(number, to.head);
      to.head.erase(to.head.begin(), to.head.begin() + static_cast<std::ptrdiff_t>(went));
      if (!to.head.empty()) return moved;
    }
    const size_t went = network_->send(number, {request.data + first.sent, to.fragment});
    if (went == 0) return moved;
    moved = true;
    sent += went;
    first.sent += went;
    to.fragment -= went;
    if (to.fragment != 0) continue;
    if (first.sent == request.bytes)
      works_.end(*first.work, nullptr);
    else
      to.granted.push_back(std::move(first));
    to.granted.pop_front();
  }
  return moved;
}

// Receiving

void RemoteMessages::heed(int number, std::span<const std::byte> bytes) {
  Note note;
  if (!read_note(bytes, note)) return;
  const int peer = peers_.of_number(number);
  shm::Message message{.kind = MessageKind::Announced, .tag = note.tag, .bytes = note.bytes};
  switch (note.kind) {
    case RemoteNote::Eager:
      if (bytes.size() == sizeof note + note.bytes) eager_came(peer, note, bytes.subspan(sizeof note));
      break;
    case RemoteNote::Announced:
      set_place(message, {.id = note.id, .range = {}});
      inbox_.arrived(peer, message);
      break;
    case RemoteNote::Granted:
    case RemoteNote::Taken: {
      const auto found = announced_.find(note.id);
      if (found == announced_.end() || found->second->request.peer != peer) break;
      if (note.kind == RemoteNote::Taken)
        works_.end(*found->second, nullptr);
      else
        destinations_[peer].granted.push_back({note.id, std::move(found->second)});
      announced_.erase(found);
      break;
    }
    case RemoteNote::Credit: {
      uint64_t& unreceived = destinations_[peer].unreceived;
      unreceived -= std::min(unreceived, note.bytes);
      break;
    }
  }
}

void RemoteMessages::eager_came(int source, const Note& note, std::span<const std::byte> payload) {
  shm::Message message{.kind = MessageKind::Buffered, .tag = note.tag, .bytes = note.bytes};
  const uint64_t id = next_held_++;
  set_place(message, {.id = id, .range = {}});
  arriving_ = payload;
  arriving_taken_ = false;
  inbox_.arrived(source, message);
  arriving_ = {};
  if (arriving_taken_) return;
  held_[{source, id}].assign(payload.begin(), payload.end());
  held_bytes_ += cost_of(note.bytes);
}

void RemoteMessages::deliver(MessageWorkPtr work, int source, const shm::Message& message) {
  const uint64_t id = place_of(message).id;
  if (message.kind == MessageKind::Announced && message.bytes != 0) {
    sources_[source].receiving.emplace(id, Receiving{.work = std::move(work), .bytes = message.bytes});
    tell(source, {.kind = RemoteNote::Granted, .id = id});
    return;
  }
  const auto held = held_.find({source, id});
  const std::span<const std::byte> payload =
      held != held_.end() ? std::span<const std::byte>(held->second) : arriving_;
  if (!payload.empty()) std::memcpy(work->request.data, payload.data(), payload.size());
  refuse(source, message);
  inbox_.complete(*work, source);
}

void RemoteMessages::refuse(int source, const shm::Message& message) {
  const uint64_t id = place_of(message).id;
  if (message.kind == MessageKind::Announced) return tell(source, {.kind = RemoteNote::Taken, .id = id});
  if (const auto held = held_.find({source, id}); held != held_.end()) {
    held_.erase(held);
    held_bytes_ -= cost_of(message.bytes);
  } else {
    arriving_taken_ = true;
  }
  give_back(source, cost_of(message.bytes));
}

// Not a note for each message: a sender without credit announces, and so goes on.
void RemoteMessages::give_back(int source, uint64_t bytes) {
  uint64_t& owed = sources_[source].owed;
  owed += bytes;
  if (owed < credit_ / 4) return;
  tell(source, {.kind = RemoteNote::Credit, .bytes = std::exchange(owed, 0)});
}

bool RemoteMessages::receive_some(int source, Source& from) {
  const int number = peers_.number(source);
  uint64_t taken = 0;
  while (taken < kAtOnce) {
    const std::span<const std::byte> bytes = network_->arrived(number);
    if (bytes.empty()) break;
    take(source, from, bytes);
    network_->received(number, bytes.size());
    taken += bytes.size();
  }
  return taken != 0;
}

void RemoteMessages::take(int source, Source& from, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    if (from.fragment == 0) {
      const size_t part = std::min(sizeof(FragmentHead) - from.head.size(), bytes.size());
      from.head.insert(from.head.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(part));
      bytes = bytes.subspan(part);
      FragmentHead head;
      if (!read_note(from.head, head)) return;
      from.head.clear();
      from.id = head.id;
      from.fragment = head.bytes;
    }
    const size_t part = std::min<uint64_t>(from.fragment, bytes.size());
    const auto found = from.receiving.find(from.id);
    // Of a receive that has ended, nothing is kept.
    if (found != from.receiving.end() && part <= found->second.bytes - found->second.came) {
      Receiving& receiving = found->second;
      std::memcpy(receiving.work->request.data + receiving.came, bytes.data(), part);
      receiving.came += part;
      if (receiving.came == receiving.bytes) {
        inbox_.complete(*receiving.work, source);
        from.receiving.erase(found);
      }
    }
    from.fragment -= part;
    bytes = bytes.subspan(part);
  }
}

// Both

bool RemoteMessages::progress() {
  bool moved = network_->poll([this](int number, std::span<const std::byte> note) { heed(number, note); });
  for (auto& [peer, from] : sources_)
    if (!from.receiving.empty() || from.fragment != 0) moved |= receive_some(peer, from);
  for (auto& [peer, to] : destinations_)
    if (!to.granted.empty()) moved |= send_some(peer, to);
  return moved;
}

void RemoteMessages::sleep(std::chrono::microseconds at_most) {
  std::array<pollfd, 2> wakers{{{network_->descriptor(), POLLIN, 0}, {bell_.descriptor(), POLLIN, 0}}};
  const timespec limit{at_most.count() / 1'000'000, at_most.count() % 1'000'000 * 1000};
  ::ppoll(wakers.data(), wakers.size(), &limit, nullptr);
  if ((wakers[1].revents & POLLIN) != 0) bell_.clear();
}

std::optional<int> RemoteMessages::source_of(const MessageWork& work) const {
  for (const auto& [peer, from] : sources_)
    for (const auto& [id, receiving] : from.receiving)
      if (receiving.work.get() == &work) return peer;
  return std::nullopt;
}

bool RemoteMessages::gone(int peer) const {
  const int number = peers_.number(peer);
  return network_->lost(number) != nullptr || network_->left(number);
}

std::string RemoteMessages::fate(int peer) const {
  const std::string* const how = network_->lost(peers_.number(peer));
  return how != nullptr ? "is lost: " + *how : "has left the group";
}

void RemoteMessages::drain(int peer) {
  const auto from = sources_.find(peer);
  while (from != sources_.end() && receive_some(peer, from->second)) {
  }
}

void RemoteMessages::forget(int peer) {
  destinations_.erase(peer);
  if (const auto from = sources_.find(peer); from != sources_.end()) from->second.receiving.clear();
  std::erase_if(announced_, [&](const auto& entry) { return entry.second->request.peer == peer; });
}

void RemoteMessages::forget_all() {
  announced_.clear();
  for (auto& [peer, to] : destinations_) to.granted.clear();
  for (auto& [peer, from] : sources_) from.receiving.clear();
  held_.clear();
  held_bytes_ = 0;
}

void RemoteMessages::poll_only() {
  network_->poll([](int, std::span<const std::byte>) {});
}

}  // namespace pycoll
