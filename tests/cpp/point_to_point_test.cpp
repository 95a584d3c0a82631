// Point to point between ranks that are threads.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "core/clock.h"
#include "message_model.h"
#include "thread_ranks.h"

using namespace pycoll;
using namespace pycoll::test;
using std::chrono::milliseconds;

namespace {

void sizes() {
  // Around what fits a descriptor, a chunk, a buffer, several buffers.
  const std::vector<size_t> all{0,       1,      31,     32,     33,       63,   64,       65,
                                4096,    131071, 131072, 131073, kMiB - 1, kMiB, kMiB + 1, 3 * kMiB + 17,
                                4 * kMiB};
  run_ranks(2, [&](Communicator& group) {
    const int peer = 1 - group.rank();
    for (size_t i = 0; i < all.size(); ++i) {
      const uint64_t seed = 2 * i;
      if (group.rank() == 0) send(group, message(all[i], seed), peer, i);
      check(receive(group, all[i], peer, i) == message(all[i], seed + (group.rank() == 0 ? 1 : 0)),
            "size " + std::to_string(all[i]));
      if (group.rank() == 1) send(group, message(all[i], seed + 1), peer, i);
    }
  });
}

void order_of_one_tag() {
  run_ranks(2, [](Communicator& group) {
    constexpr uint32_t kMessages = 2000;  // many more than a ring holds
    // Lengths alternate between those that ride in descriptors and those that need buffers.
    const auto bytes_of = [](uint32_t i) { return i % 3 == 0 ? size_t{400} : sizeof(uint32_t); };
    if (group.rank() == 0) {
      for (uint32_t i = 0; i < kMessages; ++i) {
        Bytes data(bytes_of(i));
        std::memcpy(data.data(), &i, sizeof i);
        send(group, data, 1, 5);
      }
    } else {
      for (uint32_t i = 0; i < kMessages; ++i) {
        uint32_t number = 0;
        const Bytes data = receive(group, bytes_of(i), i % 2 == 0 ? 0 : -1, 5);
        std::memcpy(&number, data.data(), sizeof number);
        check(number == i, "in order of posting");
      }
    }
  });
}

// The receiver wants first what was sent last; what was sent before fills the sender's arena many times over.
void wanted_last_sent_first() {
  run_ranks(2, [](Communicator& group) {
    constexpr uint64_t kMessages = 48;
    const auto bytes_of = [](uint64_t tag) { return kMiB + 1000 * tag; };
    if (group.rank() == 0) {
      std::vector<Bytes> data;
      std::vector<std::shared_ptr<Work>> works;
      for (uint64_t tag = 0; tag < kMessages; ++tag) data.push_back(message(bytes_of(tag), tag));
      for (uint64_t tag = 0; tag < kMessages; ++tag)
        works.push_back(group.send(data[tag].data(), data[tag].size(), 1, tag));
      check(!works.back()->done(), "what exceeds the arena waits at the sender");
      for (const auto& work : works) work->wait();
    } else {
      for (uint64_t tag = kMessages; tag-- > 0;)
        check(receive(group, bytes_of(tag), 0, tag) == message(bytes_of(tag), tag), "message");
    }
  });
}

void arena_is_used_again() {
  run_ranks(2, [](Communicator& group) {
    Bytes token(1);
    for (uint64_t round = 0; round < 200; ++round) {
      if (group.rank() == 0) {
        send(group, message(300'000, round), 1, round);
        group.recv(token.data(), 1, 1, round)->wait();
      } else {
        check(receive(group, 300'000, 0, round) == message(300'000, round), "round");
        send(group, token, 0, round);
      }
    }
  });
}

void from_shared_buffers() {
  run_ranks(2, [](Communicator& group) {
    for (const size_t bytes : {size_t{10}, 100'000 + size_t{1}, 5 * kMiB + 3}) {
      auto* const shared = static_cast<uint8_t*>(group.allocate(bytes));
      if (group.rank() == 0) {
        const Bytes data = message(bytes, bytes);
        std::copy(data.begin(), data.end(), shared);
        group.send(shared, bytes, 1, 1)->wait();
        std::memset(shared, 0, bytes);  // the send is complete: this must not reach the receiver
      } else {
        group.recv(shared, bytes, 0, 1)->wait();
        check(std::equal(shared, shared + bytes, message(bytes, bytes).begin()), "bytes");
      }
      group.deallocate(shared);
    }
  });
}

void too_long_for_its_buffer() {
  run_ranks(2, [](Communicator& group) {
    for (const size_t bytes : {size_t{20}, size_t{5000}, 3 * kMiB}) {
      if (group.rank() == 0) {
        send(group, message(bytes, 1), 1, 1);
        send(group, message(bytes, 2), 1, 1);
      } else {
        const Bytes untouched(bytes - 1, 77);
        Bytes data = untouched;
        check_throws<InvalidArgument>(
            [&] { group.recv(data.data(), bytes - 1, 0, 1)->wait(); },
            "has " + std::to_string(bytes) + " bytes and the buffer only " + std::to_string(bytes - 1));
        check(data == untouched, "nothing is written");
        check(receive(group, bytes, 0, 1) == message(bytes, 2), "the next message is as it should be");
      }
    }
  });
}

void nobody_waits() {
  run_ranks(3, [](Communicator& group) {
    // Handles are dropped; only callbacks tell. Long messages need both sides to move.
    const int next = (group.rank() + 1) % 3;
    const int previous = (group.rank() + 2) % 3;
    const Bytes data = message(6 * kMiB, static_cast<uint64_t>(group.rank()));
    Bytes received(data.size());
    std::atomic<int> ended{0};
    group.recv(received.data(), received.size(), previous, 9)->on_done([&] { ++ended; });
    group.send(data.data(), data.size(), next, 9)->on_done([&] { ++ended; });
    for (int i = 0; i < 10'000 && ended != 2; ++i) std::this_thread::sleep_for(milliseconds(1));
    check(ended == 2, "both ended");
    check(received == message(data.size(), static_cast<uint64_t>(previous)), "message");
  });
}

void callbacks_may_communicate() {
  run_ranks(2, [](Communicator& group) {
    const int peer = 1 - group.rank();
    uint8_t first = 0;
    uint8_t second = 0;
    std::atomic<bool> ended{false};
    const auto other = group.recv(&second, 1, peer, 2);
    group.recv(&first, 1, peer, 1)->on_done([&] {
      other->wait();  // arrives together with the first
      const Bytes answer{static_cast<uint8_t>(first + second)};
      send(group, answer, peer, 3);
      ended = true;
    });
    send(group, {40}, peer, 1);
    send(group, {2}, peer, 2);
    check(receive(group, 1, peer, 3) == Bytes{42}, "the answer");
    for (int i = 0; i < 2000 && !ended; ++i) std::this_thread::sleep_for(milliseconds(1));
    check(ended, "the callback ended");
  });
}

void many_threads_of_a_rank() {
  run_ranks(2, [](Communicator& group) {
    std::vector<std::thread> threads;
    for (uint64_t tag = 0; tag < 4; ++tag) {
      threads.emplace_back([&, tag] {
        for (uint64_t i = 0; i < 50; ++i) {
          const Bytes data = message(1 + 700 * i, tag * 1000 + i);
          const auto out = group.send(data.data(), data.size(), 1 - group.rank(), tag);
          check(receive(group, data.size(), 1 - group.rank(), tag) == data, "message");
          out->wait();
        }
      });
    }
    for (auto& thread : threads) thread.join();
  });
}

void beside_collectives() {
  run_ranks(3, [](Communicator& group) {
    for (int round = 0; round < 30; ++round) {
      const int next = (group.rank() + 1) % 3;
      const int previous = (group.rank() + 2) % 3;
      const auto tag = static_cast<uint64_t>(round);
      const Bytes data = message(40'000, tag * 3 + static_cast<uint64_t>(group.rank()));
      const auto out = group.send(data.data(), data.size(), next, tag);
      std::vector<int32_t> sum(100, group.rank() + round);
      CollectiveCall call;
      call.dtype = DType::Int32;
      call.input = sum.data();
      call.output = sum.data();
      call.count = sum.size();
      group.run(call);
      check(sum == std::vector<int32_t>(100, 3 + 3 * round), "sum");
      check(
          receive(group, 40'000, previous, tag) == message(40'000, tag * 3 + static_cast<uint64_t>(previous)),
          "message");
      out->wait();
    }
  });
}

// A message outlives its sender's stay in the group, one that was never sent does not keep anybody waiting.
void sender_left() {
  run_ranks(2, [](Communicator& group) {
    if (group.rank() == 0) {
      send(group, message(kMiB, 1), 1, 1);
      send(group, message(12, 2), 1, 2);
      return;
    }
    std::this_thread::sleep_for(milliseconds(150));
    check(receive(group, 12, 0, 2) == message(12, 2), "short message");
    check(receive(group, kMiB, 0, 1) == message(kMiB, 1), "long message");
    Bytes data(8);
    const auto start = SteadyClock::now();
    check_throws<PeerLost>([&] { group.recv(data.data(), 8, 0, 3)->wait(); },
                           "recv of 8 bytes from rank 0, tag 3: rank 0 (pid");
    check_throws<PeerLost>([&] { group.recv(data.data(), 8, -1, 3)->wait(); }, "all other ranks have left");
    check_throws<PeerLost>([&] { send(group, Bytes(9 * kMiB), 0, 3); },
                           "send of 9437184 bytes to rank 0, tag 3: rank 0 (pid");
    check(SteadyClock::now() - start < milliseconds(1000), "at once");
  });
}

// Receives from any rank go on as long as there is a rank that may send.
void one_of_several_left() {
  run_ranks(3, [](Communicator& group) {
    if (group.rank() == 0) return;
    if (group.rank() == 1) {
      std::this_thread::sleep_for(milliseconds(200));
      return send(group, {11}, 2, 1);
    }
    Bytes data(1);
    const auto from_any = group.recv(data.data(), 1, -1, 1);
    check_throws<PeerLost>([&] { receive(group, 1, 0, 1); }, "rank 0 (pid");
    from_any->wait();
    check(data == Bytes{11}, "message");
  });
}

void deadline() {
  run_ranks(2, [](Communicator& group) {
    Bytes data(8);
    const auto start = SteadyClock::now();
    if (group.rank() == 0) {
      // Nobody waits: the deadline holds all the same, and is the operation's own.
      const auto work = group.recv(data.data(), 8, 1, 4, milliseconds(200));
      for (int i = 0; i < 2000 && !work->done(); ++i) std::this_thread::sleep_for(milliseconds(1));
      check_throws<Timeout>([&] { work->wait(); },
                            "rank 0: recv of 8 bytes from rank 1, tag 4 timed out after 0.2");
      check_throws<Timeout>([&] { std::rethrow_exception(work->exception()); }, "rank 1 (pid");
    } else {
      // The group failed, so everybody's operations end.
      check_throws<Timeout>([&] { receive(group, 8, 0, 5); }, "recv of 8 bytes from rank 1, tag 4 timed out");
    }
    const auto passed = SteadyClock::now() - start;
    check(passed >= milliseconds(190) && passed < milliseconds(1500), "in time");
    check_throws<Timeout>([&] { group.send(data.data(), 8, 1 - group.rank(), 1); }, "timed out");
  });
}

void deadline_of_a_wait() {
  run_ranks(2, [](Communicator& group) {
    Bytes data(8);
    const auto work = group.recv(data.data(), 8, 1 - group.rank(), 4);
    if (group.rank() == 0)
      check_throws<Timeout>([&] { work->wait(milliseconds(50)); }, "a wait() for it timed out after 0.05 s");
    else
      check_throws<Timeout>([&] { work->wait(); }, "a wait() for it timed out after 0.05 s");
  });
}

void closing_and_aborting() {
  run_ranks(2, [](Communicator& group) {
    Bytes data(8);
    const auto work = group.recv(data.data(), 8, 1 - group.rank(), 4);
    if (group.rank() == 0) {
      std::atomic<bool> called{false};
      work->on_done([&] { called = true; });
      group.close();
      check(work->done() && called, "closing ends what is under way");
      check_throws<Aborted>([&] { work->wait(); }, "closed by this rank");
      check_throws<InvalidArgument>([&] { group.send(data.data(), 8, 1, 0); }, "closed");
    } else {
      check_throws<PeerLost>([&] { work->wait(); }, "rank 0 (pid");
    }
  });
  run_ranks(2, [](Communicator& group) {
    Bytes data(8);
    const auto work = group.recv(data.data(), 8, 1 - group.rank(), 4);
    CollectiveCall barrier;
    barrier.kind = CollectiveKind::Barrier;
    group.run(barrier);  // a group that is aborted already takes no receive
    if (group.rank() == 0) group.abort("enough");
    check_throws<Aborted>([&] { work->wait(); }, "enough");
  });
}

void bad_arguments() {
  run_ranks(2, [](Communicator& group) {
    uint8_t byte = 0;
    check_throws<InvalidArgument>([&] { group.send(&byte, 1, 2, 0); }, "rank 2");
    check_throws<InvalidArgument>([&] { group.send(&byte, 1, group.rank(), 0); }, "send");
    check_throws<InvalidArgument>([&] { group.recv(&byte, 1, -2, 0); }, "-2");
    check_throws<InvalidArgument>([&] { group.recv(nullptr, 1, 1 - group.rank(), 0); }, "needs a buffer");
  });
  run_ranks(1, [](Communicator& group) {
    uint8_t byte = 0;
    check_throws<InvalidArgument>([&] { group.recv(&byte, 1, -1, 0); }, "alone in its group");
  });
}

}  // namespace

int main() {
  run("sizes", sizes);
  run("mixture, 2 ranks", [] { mixture(2, 150, 4 * kMiB, 1); });
  run("mixture, 3 ranks", [] { mixture(3, 100, 4 * kMiB, 2); });
  run("mixture, 4 ranks, short messages", [] { mixture(4, 1000, 2000, 3); });
  run("order of one tag", order_of_one_tag);
  run("wanted last, sent first", wanted_last_sent_first);
  run("the arena is used again", arena_is_used_again);
  run("from shared buffers", from_shared_buffers);
  run("too long for its buffer", too_long_for_its_buffer);
  run("nobody waits", nobody_waits);
  run("callbacks may communicate", callbacks_may_communicate);
  run("many threads of a rank", many_threads_of_a_rank);
  run("beside collectives", beside_collectives);
  run("the sender left", sender_left);
  run("one of several left", one_of_several_left);
  run("deadline", deadline);
  run("deadline of a wait", deadline_of_a_wait);
  run("closing and aborting", closing_and_aborting);
  run("bad arguments", bad_arguments);
  return result();
}
