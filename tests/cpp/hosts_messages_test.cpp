// Point to point between ranks that pretend to be on several hosts.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
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

using Hosts = std::vector<std::string>;

const std::vector<Hosts> kPlacements = {{"a", "b"}, {"a", "a", "b"}, {"a", "b", "c"}, {"a", "b", "a", "b"}};

template <class Body>
void run_on(const Hosts& hosts, const Body& body, const CommunicatorOptions& options = quick_options()) {
  run_ranks(static_cast<int>(hosts.size()), body, options, hosts);
}

void sizes() {
  // Around what goes eagerly, what fits a fragment, and several fragments.
  const std::vector<size_t> all{0,     1,       33,      4096,        65535,       65536,
                                65537, 524'287, 524'288, 524'288 + 1, 3 * kMiB + 5};
  run_on({"a", "b"}, [&](Communicator& group) {
    const int peer = 1 - group.rank();
    for (size_t i = 0; i < all.size(); ++i) {
      if (group.rank() == 0) send(group, message(all[i], 2 * i), peer, i);
      check(receive(group, all[i], peer, i) == message(all[i], 2 * i + (group.rank() == 0 ? 1 : 0)),
            "size " + std::to_string(all[i]));
      if (group.rank() == 1) send(group, message(all[i], 2 * i + 1), peer, i);
    }
  });
}

void mixtures() {
  uint64_t seed = 1;
  for (const Hosts& hosts : kPlacements) {
    mixture(static_cast<int>(hosts.size()), 40, kMiB, ++seed, hosts);
    mixture(static_cast<int>(hosts.size()), 200, 2000, ++seed, hosts);
  }
}

// Lengths alternate between those that go at once and those that are announced, and there are more than the
// credit lets go at once.
void order_of_one_tag() {
  run_on({"a", "b"}, [](Communicator& group) {
    constexpr uint32_t kMessages = 600;
    const auto bytes_of = [](uint32_t i) { return i % 5 == 0 ? size_t{70'000} : size_t{9'000}; };
    if (group.rank() == 0) {
      std::vector<Bytes> data;
      std::vector<std::shared_ptr<Work>> works;
      for (uint32_t i = 0; i < kMessages; ++i) {
        data.emplace_back(bytes_of(i));
        std::memcpy(data.back().data(), &i, sizeof i);
        works.push_back(group.send(data.back().data(), data.back().size(), 1, 5));
      }
      check(!works.back()->done(), "what exceeds the credit waits at the sender");
      send(group, {1}, 1, 6);  // and does not hold up what is posted after it
      for (const auto& work : works) work->wait();
    } else {
      receive(group, 1, 0, 6);
      for (uint32_t i = 0; i < kMessages; ++i) {
        uint32_t number = 0;
        const Bytes data = receive(group, bytes_of(i), i % 2 == 0 ? 0 : -1, 5);
        std::memcpy(&number, data.data(), sizeof number);
        check(number == i, "in order of posting: " + std::to_string(number) + " at " + std::to_string(i));
      }
    }
  });
}

// Those of one source that match are received in the order in which they came, wherever they came from.
void from_any_rank() {
  const Hosts hosts = {"a", "a", "b", "c"};
  run_on(hosts, [&](Communicator& group) {
    constexpr int kRounds = 30;
    const auto bytes_of = [](int round) { return round % 3 == 0 ? 200'000 + size_t{7} : size_t{24}; };
    if (group.rank() != 0) {
      for (int round = 0; round < kRounds; ++round)
        send(group, message(bytes_of(round), static_cast<uint64_t>(100 * group.rank() + round)), 0, 3);
      return;
    }
    std::vector<int> heard(hosts.size());
    for (size_t i = 0; i < (hosts.size() - 1) * kRounds; ++i) {
      Bytes data(300'000);
      int source = -1;
      group.recv(data.data(), data.size(), -1, 3, std::nullopt, &source)->wait();
      check(source > 0 && source < 4, "the source is told");
      const int round = heard[static_cast<size_t>(source)]++;
      data.resize(bytes_of(round));
      check(data == message(data.size(), static_cast<uint64_t>(100 * source + round)),
            "message " + std::to_string(round) + " of rank " + std::to_string(source));
    }
  });
}

void wanted_last_sent_first() {
  run_on({"a", "b"}, [](Communicator& group) {
    constexpr uint64_t kMessages = 24;
    const auto bytes_of = [](uint64_t tag) { return kMiB + 1000 * tag; };
    if (group.rank() == 0) {
      std::vector<Bytes> data;
      std::vector<std::shared_ptr<Work>> works;
      for (uint64_t tag = 0; tag < kMessages; ++tag) data.push_back(message(bytes_of(tag), tag));
      for (uint64_t tag = 0; tag < kMessages; ++tag)
        works.push_back(group.send(data[tag].data(), data[tag].size(), 1, tag));
      for (const auto& work : works) work->wait();
    } else {
      for (uint64_t tag = kMessages; tag-- > 0;)
        check(receive(group, bytes_of(tag), 0, tag) == message(bytes_of(tag), tag), "message");
    }
  });
}

// However much is on its way, and however much of it nobody receives yet.
void memory_is_bounded() {
  run_on({"a", "b", "b"}, [](Communicator& group) {
    constexpr size_t kLong = 100'000'000;
    std::atomic<bool> over{false};
    size_t most = 0;
    std::thread watcher([&] {
      for (; !over; std::this_thread::sleep_for(milliseconds(2)))
        most = std::max(most, group.memory().private_bytes);
    });
    if (group.rank() == 0) {
      const Bytes data = message(kLong, 1);
      const Bytes small = message(50'000, 2);
      std::vector<std::shared_ptr<Work>> works{group.send(data.data(), kLong, 1, 1)};
      for (int i = 0; i < 1000; ++i) works.push_back(group.send(small.data(), small.size(), 1, 2));
      for (const auto& work : works) work->wait();
    } else if (group.rank() == 1) {
      check(receive(group, kLong, 0, 1) == message(kLong, 1), "the long message");
      for (int i = 0; i < 1000; ++i) receive(group, 50'000, 0, 2);
    }
    over = true;
    watcher.join();
    check(most < 16 * kMiB, "at most " + std::to_string(most) + " bytes");
  });
}

void too_long_for_its_buffer() {
  run_on({"a", "b"}, [](Communicator& group) {
    for (const size_t bytes : {size_t{20}, size_t{5000}, 3 * kMiB}) {
      if (group.rank() == 0) {
        send(group, message(bytes, 1), 1, 1);
        send(group, message(bytes, 2), 1, 1);
      } else {
        const Bytes untouched(bytes - 1, 77);
        Bytes data = untouched;
        check_throws<InvalidArgument>([&] { group.recv(data.data(), bytes - 1, 0, 1)->wait(); },
                                      "rank 1: recv from rank 0, tag 1: the message has " +
                                          std::to_string(bytes) + " bytes and the buffer only " +
                                          std::to_string(bytes - 1));
        check(data == untouched, "nothing is written");
        check(receive(group, bytes, 0, 1) == message(bytes, 2), "the next message is as it should be");
      }
    }
  });
}

void nobody_waits() {
  const Hosts hosts = {"a", "a", "b"};
  run_on(hosts, [](Communicator& group) {
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

void many_threads_of_a_rank() {
  run_on({"a", "b"}, [](Communicator& group) {
    std::vector<std::thread> threads;
    for (uint64_t tag = 0; tag < 4; ++tag) {
      threads.emplace_back([&, tag] {
        for (uint64_t i = 0; i < 40; ++i) {
          const Bytes data = message(1 + 5000 * i, tag * 1000 + i);
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
  run_on({"a", "b", "b"}, [](Communicator& group) {
    for (int round = 0; round < 20; ++round) {
      const int next = (group.rank() + 1) % 3;
      const int previous = (group.rank() + 2) % 3;
      const auto tag = static_cast<uint64_t>(round);
      const Bytes data = message(140'000, tag * 3 + static_cast<uint64_t>(group.rank()));
      const auto out = group.send(data.data(), data.size(), next, tag);
      std::vector<int32_t> sum(20'000, group.rank() + round);
      CollectiveCall call;
      call.dtype = DType::Int32;
      call.input = sum.data();
      call.output = sum.data();
      call.count = sum.size();
      const auto work = group.submit(call);
      check(receive(group, 140'000, previous, tag) ==
                message(140'000, tag * 3 + static_cast<uint64_t>(previous)),
            "message");
      work->wait();
      check(sum == std::vector<int32_t>(sum.size(), 3 + 3 * round), "sum");
      out->wait();
    }
  });
}

// A message outlives its sender's stay in the group, one that was never sent does not keep anybody waiting.
void sender_left() {
  run_on({"a", "b"}, [](Communicator& group) {
    if (group.rank() == 0) {
      for (int i = 0; i < 15; ++i) send(group, message(60'000, 1), 1, 1);
      return send(group, message(12, 2), 1, 2);
    }
    std::this_thread::sleep_for(milliseconds(150));
    check(receive(group, 12, 0, 2) == message(12, 2), "short message");
    for (int i = 0; i < 15; ++i) check(receive(group, 60'000, 0, 1) == message(60'000, 1), "longer message");
    Bytes data(8);
    check_throws<PeerLost>(
        [&] { group.recv(data.data(), 8, 0, 3)->wait(); },
        "rank 1: recv of 8 bytes from rank 0, tag 3: rank 0 on host 'a' has left the group");
    check_throws<PeerLost>([&] { group.recv(data.data(), 8, -1, 3)->wait(); }, "all other ranks have left");
    check_throws<PeerLost>([&] { send(group, Bytes(9 * kMiB), 0, 3); },
                           "send of 9437184 bytes to rank 0, tag 3: rank 0 on host 'a'");
  });
}

void long_message_of_a_sender_that_left() {
  run_on({"a", "b"}, [](Communicator& group) {
    if (group.rank() == 0) return send(group, message(20 * kMiB, 1), 1, 1);
    Bytes data(20 * kMiB);
    const auto work = group.recv(data.data(), data.size(), 0, 1);
    work->wait();
    check(data == message(data.size(), 1), "message");
  });
}

// Receives from any rank go on as long as there is a rank that may send.
void one_of_several_left() {
  Meeting over(3);
  run_on({"a", "b", "c"}, [&](Communicator& group) {
    if (group.rank() == 0) {
      group.close();
    } else if (group.rank() == 1) {
      std::this_thread::sleep_for(milliseconds(300));
      send(group, {11}, 2, 1);
    } else {
      Bytes data(1);
      const auto from_any = group.recv(data.data(), 1, -1, 1);
      check_throws<PeerLost>([&] { receive(group, 1, 0, 1); }, "rank 0 on host 'a'");
      from_any->wait();
      check(data == Bytes{11}, "message");
    }
    over.all_gather(group.rank(), "");
  });
}

void deadline() {
  Meeting over(4);
  run_on({"a", "b", "b", "c"}, [&](Communicator& group) {
    Bytes data(8);
    if (group.rank() == 0) {
      check_throws<Timeout>([&] { group.recv(data.data(), 8, 1, 4, milliseconds(300))->wait(); },
                            "rank 0: recv of 8 bytes from rank 1, tag 4 timed out after 0.3");
      check_throws<Timeout>([&] { group.send(data.data(), 8, 1, 1); }, "rank 1 on host 'b' has not sent");
    } else {
      // The group failed, so everybody's operations end, also of those who are in no collective.
      check_throws<Timeout>([&] { receive(group, 8, (group.rank() + 1) % 4, 5); },
                            "[seen by rank 0, told to rank " + std::to_string(group.rank()) + "]");
    }
    over.all_gather(group.rank(), "");
  });
}

void aborting() {
  Meeting over(3);
  run_on({"a", "b", "b"}, [&](Communicator& group) {
    Bytes data(8);
    const auto work = group.recv(data.data(), 8, (group.rank() + 1) % 3, 4);
    over.all_gather(group.rank(), "");
    if (group.rank() == 2) group.abort("enough");
    check_throws<Aborted>([&] { work->wait(); }, "enough");
    over.all_gather(group.rank(), "");
  });
}

}  // namespace

int main() {
  run("sizes", sizes);
  run("mixtures", mixtures);
  run("order of one tag", order_of_one_tag);
  run("from any rank", from_any_rank);
  run("wanted last, sent first", wanted_last_sent_first);
  run("memory is bounded", memory_is_bounded);
  run("too long for its buffer", too_long_for_its_buffer);
  run("nobody waits", nobody_waits);
  run("many threads of a rank", many_threads_of_a_rank);
  run("beside collectives", beside_collectives);
  run("the sender left", sender_left);
  run("a long message of a sender that left", long_message_of_a_sender_that_left);
  run("one of several left", one_of_several_left);
  run("deadline", deadline);
  run("aborting", aborting);
  return result();
}
