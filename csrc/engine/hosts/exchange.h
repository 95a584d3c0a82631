// An all-gather among the leaders of hosts, of one block each: what every collective across hosts begins
// with.
//
// By dissemination, as Bruck, Ho, Kipnis, Upfal and Weathersby have it (Efficient Algorithms for All-to-All
// Communications, TPDS 8, 1997, section 4): in round k each host has the blocks of 2^k successors and sends
// them to its predecessor at distance 2^k. ceil(log2 hosts) rounds.
#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/hosts/links.h"

namespace pycoll {

// What a block begins with, and what the exchange itself knows of one.
struct BlockHead {
  uint64_t bytes = 0;  // of the block, head and all; a multiple of 16
  // Since the moment from which the block counts its times, by the clocks of those who had it: the time it
  // spent on wires is missing. So no two hosts' clocks need agree.
  uint64_t age_ns = 0;
};

class HostExchange {
 public:
  HostExchange(shm::Group& group, HostLinks& links);

  // `id`: greater with each exchange of the group, the same on all leaders. `mine` begins with a BlockHead.
  // All blocks, one after the other, beginning with this host's and going on with its successors'; valid
  // until the next exchange.
  std::span<const std::byte> all_gather(uint64_t id, std::span<const std::byte> mine,
                                        shm::Operation& operation);
  // Another host has begun the exchange of that collective.
  bool heard(uint64_t sequence) const {
    return early_[2 * sequence & 3][0].id.load(std::memory_order_acquire) == 2 * sequence;
  }

 private:
  struct Early {                  // a message that came, perhaps before it was waited for
    std::atomic<uint64_t> id{0};  // stored last
    uint64_t came_ns = 0;
    std::vector<std::byte> blocks;
  };
  static constexpr size_t kRounds = 24;

  void heed(std::span<const std::byte> note);
  void send(uint64_t id, uint32_t round, int host, size_t blocks);
  void take(Early& early);
  int leader(int host) const;

  shm::Group& group_;
  HostLinks& links_;
  int hosts_;
  int host_;
  // By (id mod 4, round). A collective has up to two exchanges, and a host may be one collective ahead of
  // another.
  std::array<std::array<Early, kRounds>, 4> early_;
  std::vector<std::byte> all_;
  std::vector<size_t> begins_;      // of each block in all_
  std::vector<uint64_t> since_ns_;  // by block: when it was got
  std::vector<std::byte> note_;
};

}  // namespace pycoll
