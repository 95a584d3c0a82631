#include "engine/hosts/exchange.h"

#include <algorithm>
#include <chrono>
#include <string>

#include "core/error.h"
#include "engine/hosts/notes.h"

namespace pycoll {
namespace {

uint64_t now_ns() {
  return static_cast<uint64_t>(SteadyClock::now().time_since_epoch().count());
}

BlockHead head_of(const std::byte* block) {
  BlockHead head;
  std::memcpy(&head, block, sizeof head);
  return head;
}

}  // namespace

HostExchange::HostExchange(shm::Group& group, HostLinks& links)
    : group_(group),
      links_(links),
      hosts_(static_cast<int>(links.placement().hosts.size())),
      host_(links.placement().host_of[static_cast<size_t>(links.rank())]) {
  links.handle(NoteKind::Exchange, [this](int, std::span<const std::byte> note) { heed(note); });
}

int HostExchange::leader(int host) const {
  return links_.placement().hosts[static_cast<size_t>(host)].ranks[0];
}

void HostExchange::heed(std::span<const std::byte> bytes) {
  ExchangeNote note;
  if (!read_note(bytes, note) || note.round >= kRounds) return;
  Early& early = early_[note.id & 3][note.round];
  const auto blocks = bytes.subspan(sizeof note);
  early.blocks.assign(blocks.begin(), blocks.end());
  early.came_ns = now_ns();
  early.id.store(note.id, std::memory_order_release);
}

void HostExchange::send(uint64_t id, uint32_t round, int host, size_t blocks) {
  const uint64_t now = now_ns();
  ExchangeNote head;
  head.round = round;
  head.id = id;
  const size_t end = blocks < begins_.size() ? begins_[blocks] : all_.size();
  note_.assign(bytes_of(head).begin(), bytes_of(head).end());
  note_.insert(note_.end(), all_.begin(), all_.begin() + static_cast<std::ptrdiff_t>(end));
  for (size_t b = 0; b < blocks; ++b) {
    std::byte* const block = note_.data() + sizeof head + begins_[b];
    BlockHead block_head = head_of(block);
    block_head.age_ns += now - since_ns_[b];
    std::memcpy(block, &block_head, sizeof block_head);
  }
  links_.post(leader(host), note_);
}

// Adds the blocks of a message to those this host has.
void HostExchange::take(Early& early) {
  const size_t base = all_.size();
  all_.insert(all_.end(), early.blocks.begin(), early.blocks.end());
  for (size_t at = base; at + sizeof(BlockHead) <= all_.size();) {
    begins_.push_back(at);
    since_ns_.push_back(early.came_ns);
    const uint64_t bytes = head_of(all_.data() + at).bytes;
    if (bytes < sizeof(BlockHead) || bytes > all_.size() - at)
      throw Error("group '" + group_.name() + "': a message between hosts is damaged");
    at += bytes;
  }
}

std::span<const std::byte> HostExchange::all_gather(uint64_t id, std::span<const std::byte> mine,
                                                    shm::Operation& operation) {
  all_.assign(mine.begin(), mine.end());
  begins_.assign(1, 0);
  since_ns_.assign(1, now_ns());
  uint32_t round = 0;
  for (int distance = 1; distance < hosts_; distance *= 2, ++round) {
    const auto blocks = static_cast<size_t>(std::min(distance, hosts_ - distance));
    send(id, round, (host_ - distance + hosts_) % hosts_, blocks);
    Early& early = early_[id & 3][round];
    links_.look();
    group_.wait_elsewhere(operation, leader((host_ + distance) % hosts_),
                          [&] { return early.id.load(std::memory_order_acquire) == id; });
    take(early);
  }
  // The time that this host had them counts too, for the reader.
  const uint64_t now = now_ns();
  for (size_t b = 0; b < begins_.size(); ++b) {
    BlockHead head = head_of(all_.data() + begins_[b]);
    head.age_ns += now - since_ns_[b];
    std::memcpy(all_.data() + begins_[b], &head, sizeof head);
  }
  return all_;
}

}  // namespace pycoll
