// What holds for every Network, as tests that are told how to open one.
#pragma once
#include <algorithm>
#include <numeric>

#include "network_model.h"

namespace pycoll::test {

inline constexpr size_t kMiB = 1 << 20;

// Around what fits a cache line, a frame, a buffer.
inline void stream_sizes(const OpenNetwork& open, const NetworkOptions& options = {}) {
  run_network(
      open, 2,
      [](Station& node) {
        uint64_t seed = 0;
        for (const size_t bytes :
             {1UL, 2UL, 63UL, 64UL, 65UL, 4096UL, 65535UL, 65536UL, 65537UL, kMiB - 1, kMiB, 3000001UL})
          for (const size_t step : {1000UL, 32UL << 10, 64UL << 10, kMiB}) {
            ++seed;
            if (node.rank == 0) node.send_all(1, pattern_bytes(seed, 0, bytes), step);
            node.receive_all(1 - node.rank, seed, bytes);
            if (node.rank == 1) node.send_all(0, pattern_bytes(seed, 0, bytes), step);
          }
      },
      options);
}

// The bytes of one send() begin aligned, and whole elements never lie apart.
inline void alignment(const OpenNetwork& open, const NetworkOptions& options = {}) {
  constexpr size_t kElement = 16;
  const std::vector<size_t> steps{1, 7, 64, 250, 2048, 4096, 4095, 8192, 3};  // elements
  run_network(
      open, 2,
      [&](Station& node) {
        const size_t elements = 20 * std::accumulate(steps.begin(), steps.end(), size_t{0});
        const Bytes data = pattern_bytes(9, 0, elements * kElement);
        std::vector<size_t> begins{0};  // of each send, as offsets in the stream
        for (size_t i = 0; begins.back() < data.size(); ++i)
          begins.push_back(begins.back() + steps[i % steps.size()] * kElement);
        if (node.rank == 0) {
          for (size_t i = 0; i + 1 < begins.size(); ++i)
            node.send_all(1, std::span(data).subspan(begins[i], begins[i + 1] - begins[i]), 4 * kMiB);
          return;
        }
        size_t at = 0;
        bool aligned = true;
        bool right = true;
        node.until(
            [&] {
              for (;;) {
                std::span<const std::byte> piece = node.network->arrived(0);
                if (std::binary_search(begins.begin(), begins.end(), at) && !piece.empty())
                  aligned = aligned && reinterpret_cast<uintptr_t>(piece.data()) % 64 == 0;
                piece = piece.first(piece.size() / kElement * kElement);
                if (piece.empty()) return at == data.size();
                right = right && std::equal(piece.begin(), piece.end(), data.begin() + static_cast<long>(at));
                node.network->received(0, piece.size());
                at += piece.size();
              }
            },
            "all elements came whole");
        check(aligned, "a send began unaligned");
        check(right, "other bytes came than were sent");
      },
      options);
}

// All ranks stream to all others at once, and post messages in between.
inline void everybody_to_everybody(const OpenNetwork& open, int ranks, size_t bytes,
                                   const NetworkOptions& options = {}) {
  constexpr int kMessages = 50;
  run_network(
      open, ranks,
      [&](Station& node) {
        const auto seed_of = [&](int source, int destination) {
          return static_cast<uint64_t>(source * ranks + destination);
        };
        std::vector<Bytes> data(static_cast<size_t>(ranks));
        std::vector<size_t> sent(data.size());
        std::vector<size_t> came(data.size());
        std::vector<int> posted(data.size());
        for (int peer = 0; peer < ranks; ++peer)
          data[static_cast<size_t>(peer)] = pattern_bytes(seed_of(node.rank, peer), 0, bytes);
        bool right = true;
        const auto move = [&](int peer) {  // true: something could be done
          const auto p = static_cast<size_t>(peer);
          const size_t taken = node.network->send(
              peer, std::span(data[p]).subspan(sent[p], std::min<size_t>(32 << 10, bytes - sent[p])));
          sent[p] += taken;
          const std::span<const std::byte> piece = node.network->arrived(peer);
          right = right && has_pattern(piece, seed_of(peer, node.rank), came[p]);
          came[p] += piece.size();
          const bool any = taken > 0 || !piece.empty();
          node.network->received(peer, piece.size());
          while (posted[p] < kMessages && sent[p] * kMessages >= bytes * static_cast<size_t>(posted[p])) {
            const auto number = static_cast<uint64_t>(posted[p]++);
            node.network->post(peer, pattern_bytes(number + 1000, 0, 10 * number));
          }
          return any;
        };
        node.until(
            [&] {
              bool all = true;
              for (int peer = 0; peer < ranks; ++peer) {
                if (peer == node.rank) continue;
                const auto p = static_cast<size_t>(peer);
                while (move(peer)) {
                }
                all = all && sent[p] == bytes && came[p] == bytes && posted[p] == kMessages &&
                      node.messages[peer].size() == kMessages;
              }
              return all;
            },
            "all bytes and messages came");
        check(right, "other bytes came than were sent");
        for (auto& [source, messages] : node.messages)
          for (size_t i = 0; i < messages.size(); ++i)
            check(messages[i] == pattern_bytes(i + 1000, 0, 10 * i), "a message out of order, or another");
      },
      options);
}

// Who takes nothing stops the sender, and messages pass all the same.
inline void slow_reader(const OpenNetwork& open, const NetworkOptions& options = {}) {
  constexpr size_t kMost = 16 * kMiB;  // that buffers on both sides may hold, the kernel's included
  run_network(
      open, 2,
      [&](Station& node) {
        const int peer = 1 - node.rank;
        const Bytes data = pattern_bytes(static_cast<uint64_t>(node.rank), 0, 64 << 10);
        size_t sent = 0;
        // Both push until neither gets rid of anything; what moves meanwhile is only what buffers take.
        auto quiet_since = SteadyClock::now();
        while (SteadyClock::now() - quiet_since < std::chrono::milliseconds(300)) {
          node.poll();
          const size_t taken = node.network->send(peer, std::span(data).subspan(sent % data.size()));
          sent += taken;
          if (taken > 0) quiet_since = SteadyClock::now();
          if (sent > 1024 * kMiB) break;
          if (taken == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        check(sent < 1024 * kMiB, "nothing stopped the sender");
        check(node.network->memory_bytes() < kMost,
              "memory is not bounded: " + std::to_string(node.network->memory_bytes()));
        uint64_t mine = sent;
        node.network->post(peer, std::as_bytes(std::span(&mine, 1)));
        uint64_t theirs = 0;
        const Bytes message = node.next_message(peer);
        std::memcpy(&theirs, message.data(), sizeof theirs);
        size_t came = 0;
        bool right = true;
        node.until(
            [&] {
              for (std::span<const std::byte> piece; !(piece = node.network->arrived(peer)).empty();) {
                // The 64 KiB that are sent over and over.
                piece = piece.first(std::min(piece.size(), data.size() - came % data.size()));
                right = right && has_pattern(piece, static_cast<uint64_t>(peer), came % data.size());
                node.network->received(peer, piece.size());
                came += piece.size();
              }
              return came == theirs;
            },
            "the flood came");
        check(right, "other bytes came than were sent");
      },
      options);
}

inline void message_sizes(const OpenNetwork& open) {
  run_network(open, 2, [](Station& node) {
    for (const size_t bytes : {0UL, 1UL, 64UL, 65519UL, 65520UL, 65536UL, 100000UL, kMiB}) {
      if (node.rank == 0) node.network->post(1, pattern_bytes(bytes, 0, bytes));
      check(node.next_message(1 - node.rank) == pattern_bytes(bytes, 0, bytes),
            "message of " + std::to_string(bytes));
      if (node.rank == 1) node.network->post(0, pattern_bytes(bytes, 0, bytes));
    }
    // Many at once, of all kinds of lengths, answered from within the delivery.
    constexpr uint64_t kMany = 3000;
    for (uint64_t i = 0; i < kMany; ++i)
      node.network->post(1 - node.rank, pattern_bytes(i, 0, i * 37 % 3000));
    for (uint64_t i = 0; i < kMany; ++i)
      check(node.next_message(1 - node.rank) == pattern_bytes(i, 0, i * 37 % 3000), "one of many messages");
    check_throws<InvalidArgument>([&] { node.network->post(1 - node.rank, Bytes(kMiB + 1)); }, "1048577");
    check_throws<InvalidArgument>([&] { node.network->post(2, {}); }, "rank 2");
    check_throws<InvalidArgument>([&] { node.network->send(node.rank, {}); }, "no other rank");
  });
}

// Who begins something and then computes for long has lost nobody, and is lost to nobody.
inline void long_without_a_look(const OpenNetwork& open) {
  NetworkOptions options;
  options.silence = std::chrono::milliseconds(300);
  run_network(
      open, 2,
      [](Station& node) {
        const int peer = 1 - node.rank;
        for (int i = 0; i < 2; ++i) {
          node.network->post(peer, pattern_bytes(1, 0, 8));
          const size_t taken = node.network->send(peer, pattern_bytes(2, 0, 1000));
          if (i % 2 == node.rank) std::this_thread::sleep_for(std::chrono::milliseconds(900));
          node.next_message(peer);
          node.send_all(peer, std::span<const std::byte>(pattern_bytes(2, 0, 1000)).subspan(taken));
          node.receive_all(peer, 2, 1000);
          check(node.network->lost(peer) == nullptr, "lost though alive");
        }
      },
      options);
}

// A sleeper is woken by whatever gives it something to do.
inline void sleeping(const OpenNetwork& open) {
  run_network(open, 2, [](Station& node) {
    for (int i = 0; i < 200; ++i) {
      if (node.rank == 0) node.network->post(1, pattern_bytes(1, 0, 8));
      node.next_message(1 - node.rank);
      if (node.rank == 1) node.network->post(0, pattern_bytes(1, 0, 8));
      const Bytes data = pattern_bytes(2, 0, 1000);
      if (node.rank == 0) node.send_all(1, data);
      node.receive_all(1 - node.rank, 2, 1000);
      if (node.rank == 1) node.send_all(0, data);
    }
  });
}

inline void leaving(const OpenNetwork& open, bool with_messages, size_t bytes) {
  run_network(open, 2, [&](Station& node) {
    if (node.rank == 0) {
      if (with_messages) node.network->post(1, pattern_bytes(1, 0, 10));
      node.send_all(1, pattern_bytes(2, 0, bytes));
      node.leave();
      return;
    }
    // What came before the farewell is there, also if looked at after it.
    node.until([&] { return node.network->left(0) || bytes > kMiB / 2; }, "rank 0 left");
    if (with_messages) check(node.next_message(0) == pattern_bytes(1, 0, 10), "message");
    node.receive_all(0, 2, bytes);
    node.until([&] { return node.network->left(0); }, "rank 0 left");
    check(node.network->arrived(0).empty(), "nothing follows");
    // To who has left, things go nowhere, without harm.
    node.network->post(0, pattern_bytes(1, 0, 10));
    check(node.network->send(0, pattern_bytes(1, 0, 10)) == 0, "nothing goes to who has left");
    for (int i = 0; i < 100; ++i) node.poll();
    check(node.network->lost(0) == nullptr, "left, not lost");
    check(node.network->flushed(), "flushed");
    node.leave();
  });
}

inline void leaving_together(const OpenNetwork& open, int ranks) {
  run_network(open, ranks, [&](Station& node) {
    for (int peer = 0; peer < ranks; ++peer)
      if (peer != node.rank) {
        node.network->post(peer, pattern_bytes(1, 0, 10));
        node.send_all(peer, pattern_bytes(2, 0, 5000));
      }
    for (int peer = 0; peer < ranks; ++peer)
      if (peer != node.rank) {
        node.next_message(peer);
        node.receive_all(peer, 2, 5000);
      }
    node.leave();
  });
}

// Without a farewell: rank 0's network is destroyed. Who has to do with it, or watches it, learns of it.
inline void death(const OpenNetwork& open) {
  run_network(open, 4, [](Station& node) {
    if (node.rank == 0) {
      for (const int peer : {1, 2, 3})
        while (node.next_message(peer).empty()) {
        }
      node.network.reset();
      return;
    }
    if (node.rank == 1) node.send_all(0, pattern_bytes(1, 0, 1000));
    if (node.rank == 2) node.network->watch(0);
    node.network->post(0, pattern_bytes(1, 0, 1));
    node.until([&] { return node.network->lost(0) != nullptr; }, "rank 0 was lost");
    check(!node.network->left(0), "lost, not left");
    check(node.network->send(0, pattern_bytes(1, 0, 10)) == 0, "nothing goes to the dead");
    node.network->post(0, pattern_bytes(1, 0, 10));
    // The others live.
    const int next = node.rank % 3 + 1;
    const int previous = (node.rank + 1) % 3 + 1;
    node.network->post(next, pattern_bytes(3, 0, 10));
    check(node.next_message(previous) == pattern_bytes(3, 0, 10), "the others live");
  });
}

inline void all_tests(const OpenNetwork& open) {
  run("stream sizes", [&] { stream_sizes(open); });
  run("alignment", [&] { alignment(open); });
  run("everybody to everybody", [&] { everybody_to_everybody(open, 4, 2 * kMiB); });
  run("everybody to everybody, many", [&] { everybody_to_everybody(open, 12, 50'000); });
  run("slow reader", [&] { slow_reader(open); });
  run("message sizes", [&] { message_sizes(open); });
  run("sleeping", [&] { sleeping(open); });
  run("leaving", [&] { leaving(open, true, 100'000); });
  run("leaving, stream only", [&] { leaving(open, false, 100'000); });
  run("leaving, more than buffers hold", [&] { leaving(open, true, 20 * kMiB); });
  run("leaving together", [&] { leaving_together(open, 6); });
  run("death", [&] { death(open); });
}

}  // namespace pycoll::test
