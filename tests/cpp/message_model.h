// Messages that tests of point to point send, and what must come of them.
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "engine/communicator.h"
#include "thread_ranks.h"

namespace pycoll::test {

using Bytes = std::vector<uint8_t>;
inline constexpr size_t kMiB = 1 << 20;

// No two messages are equal, nor one message's halves.
inline Bytes message(size_t bytes, uint64_t seed) {
  Bytes data(bytes);
  uint64_t state = seed * 0x9e3779b97f4a7c15U + 1;
  const auto next_word = [&state] {
    state = state * 6364136223846793005U + 1442695040888963407U;
    return state ^ (state >> 29);
  };
  size_t at = 0;
  for (; bytes - at >= 8; at += 8) {  // whole words: a sanitizer looks at each access
    const uint64_t word = next_word();
    std::memcpy(&data[at], &word, 8);
  }
  const uint64_t last = next_word();
  if (at < bytes) std::memcpy(&data[at], &last, bytes - at);
  return data;
}

inline Bytes receive(Communicator& group, size_t bytes, int source, uint64_t tag) {
  Bytes data(bytes);
  group.recv(data.data(), bytes, source, tag)->wait();
  return data;
}

inline void send(Communicator& group, const Bytes& data, int destination, uint64_t tag) {
  group.send(data.data(), data.size(), destination, tag)->wait();
}

// Every rank sends every other a shuffled mixture of tags and sizes, and receives in another shuffle, half of
// it by "any rank"; every message is checked against what its tag says it must be.
inline void mixture(int ranks, size_t messages, size_t longest, uint64_t seed,
                    const std::vector<std::string>& hosts = {}) {
  const auto bytes_of = [=](uint64_t tag) {
    std::mt19937_64 random(seed + tag);
    const size_t range = size_t{1} << (random() % 24);
    return std::min<size_t>(random() % range, longest);
  };
  // Tags say source, destination and number, so that receives from any rank have one right answer too.
  const auto tag_of = [=](int source, int destination, size_t number) {
    return (static_cast<uint64_t>(source) * static_cast<uint64_t>(ranks) +
            static_cast<uint64_t>(destination)) *
               messages +
           number;
  };
  const auto body = [&](Communicator& group) {
    struct Part {
      int peer;
      uint64_t tag;
      Bytes data;
      int heard = -2;
      std::shared_ptr<Work> work;
    };
    std::vector<Part> sends;
    std::vector<Part> receives;
    for (int peer = 0; peer < ranks; ++peer) {
      for (size_t i = 0; i < messages && peer != group.rank(); ++i) {
        const uint64_t out = tag_of(group.rank(), peer, i);
        sends.push_back({peer, out, message(bytes_of(out), out), -2, nullptr});
        const uint64_t in = tag_of(peer, group.rank(), i);
        receives.push_back({peer, in, Bytes(bytes_of(in) + in % 3), -2, nullptr});  // some buffers are longer
      }
    }
    std::mt19937_64 random(seed + static_cast<uint64_t>(group.rank()));
    std::shuffle(sends.begin(), sends.end(), random);
    std::shuffle(receives.begin(), receives.end(), random);
    std::atomic<size_t> called{0};
    for (size_t i = 0; i < sends.size(); ++i) {
      sends[i].work = group.send(sends[i].data.data(), sends[i].data.size(), sends[i].peer, sends[i].tag);
      Part& in = receives[i];
      in.work = group.recv(in.data.data(), in.data.size(), in.tag % 2 == 0 ? -1 : in.peer, in.tag,
                           std::nullopt, &in.heard);
      in.work->on_done([&called] { ++called; });
    }
    for (Part& in : receives) {
      in.work->wait();
      check(in.heard == in.peer, "the source is told");
      in.data.resize(bytes_of(in.tag));
      check(in.data == message(in.data.size(), in.tag), "message " + std::to_string(in.tag));
    }
    for (Part& out : sends) out.work->wait();
    for (int i = 0; i < 2000 && called != receives.size(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    check(called == receives.size(), "every callback ran");
  };
  run_ranks(ranks, body, quick_options(), hosts);
}

}  // namespace pycoll::test
