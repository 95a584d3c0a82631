// Tests of a Network, whatever implements it: each rank is a thread with a network of its own.
#pragma once
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "core/clock.h"
#include "thread_ranks.h"
#include "transport/network.h"

namespace pycoll::test {

using OpenNetwork = std::function<std::unique_ptr<Network>(const NetworkOptions&)>;
using Bytes = std::vector<std::byte>;

inline constexpr auto kPatience = std::chrono::seconds(60);  // for what must happen at some time

// Bytes [from, from + bytes) of what `seed` names: neighbours differ, and so do any two streams.
inline Bytes pattern_bytes(uint64_t seed, uint64_t from, size_t bytes) {
  Bytes made(bytes);
  size_t next = 0;
  for (size_t i = 0; i < bytes; i += next) {
    const uint64_t position = from + i;
    uint64_t word = (position >> 3) * 0x9e3779b97f4a7c15U + seed * 0xd1342543de82ef95U + 1;
    word ^= word >> 29;
    word >>= 8 * (position % 8);
    next = std::min<size_t>(8 - position % 8, bytes - i);
    if (next == 8)  // at once: a sanitizer looks at each access
      std::memcpy(&made[i], &word, 8);
    else
      std::memcpy(&made[i], &word, next);
  }
  return made;
}

inline bool has_pattern(std::span<const std::byte> bytes, uint64_t seed, uint64_t from) {
  const Bytes expected = pattern_bytes(seed, from, bytes.size());
  return bytes.empty() || std::memcmp(bytes.data(), expected.data(), bytes.size()) == 0;
}

// One rank: its network, the messages that have come, and waiting as an engine does it.
struct Station {
  int rank = 0;
  int ranks = 1;
  std::unique_ptr<Network> network;
  std::map<int, std::vector<Bytes>> messages;  // by source

  bool poll() {
    return network->poll([this](int source, std::span<const std::byte> message) {
      messages[source].emplace_back(message.begin(), message.end());
    });
  }

  // Polls, and sleeps while there is nothing to do, until `done`.
  template <class Done>
  void until(const Done& done, const char* what) {
    const auto deadline = SteadyClock::now() + kPatience;
    while (!done()) {
      if (poll()) continue;
      if (done()) return;
      if (SteadyClock::now() > deadline)
        throw std::runtime_error("rank " + std::to_string(rank) + " waited in vain until " + what);
      if (!network->arm()) continue;
      pollfd one{network->descriptor(), POLLIN, 0};
      ::poll(&one, 1, 1000);
    }
  }

  // All of it, in calls of at most `step` bytes.
  void send_all(int destination, std::span<const std::byte> bytes, size_t step = 32 << 10) {
    until(
        [&] {
          while (!bytes.empty()) {
            const size_t offered = std::min(step, bytes.size());
            const size_t taken = network->send(destination, bytes.first(offered));
            bytes = bytes.subspan(taken);
            if (taken < offered) return false;
          }
          return true;
        },
        "all was sent");
  }

  // Receives and checks pattern(seed, 0..bytes).
  void receive_all(int source, uint64_t seed, size_t bytes) {
    size_t at = 0;
    bool right = true;
    until(
        [&] {
          for (;;) {
            const std::span<const std::byte> piece = network->arrived(source);
            if (piece.empty() || at == bytes) return at == bytes;
            const size_t taken = std::min(piece.size(), bytes - at);
            right = right && has_pattern(piece.first(taken), seed, at);
            network->received(source, taken);
            at += taken;
          }
        },
        "all was received");
    check(right, "rank " + std::to_string(rank) + " received other bytes than rank " +
                     std::to_string(source) + " sent");
  }

  Bytes next_message(int source) {
    auto& queue = messages[source];
    until([&] { return !queue.empty(); }, "a message came");
    Bytes first = std::move(queue.front());
    queue.erase(queue.begin());
    return first;
  }

  void leave() {
    network->leave();
    until([&] { return network->flushed(); }, "all was flushed");
    network.reset();
  }
};

// Runs body(node) on a thread a rank; all leave in the end.
template <class Body>
void run_network(const OpenNetwork& open, int ranks, const Body& body, NetworkOptions options = {}) {
  Meeting meeting(ranks);
  std::vector<std::string> errors(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        NetworkOptions own = options;
        own.rank = rank;
        own.ranks = ranks;
        own.group = "test";
        Station node{rank, ranks, open(own), {}};
        node.network->meet(meeting.all_gather(rank, node.network->address()),
                           meeting.all_gather(rank, "host" + std::to_string(rank)), 0x1234567890abcdef);
        body(node);
        // Nobody goes before all are done with everybody, unless the body has left.
        if (node.network) node.until([&] { return node.network->flushed(); }, "all was flushed");
        meeting.all_gather(rank, "");
        if (node.network) node.leave();
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(rank)] = error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (int rank = 0; rank < ranks; ++rank)
    check(errors[static_cast<size_t>(rank)].empty(),
          "rank " + std::to_string(rank) + ": " + errors[static_cast<size_t>(rank)]);
}

}  // namespace pycoll::test
