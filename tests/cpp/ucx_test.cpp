// What is peculiar to the network over UCX; network_test has what holds of any network.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "check.h"
#include "core/clock.h"
#include "core/error.h"
#include "network_tests.h"
#include "transport/choice.h"
#include "transport/network.h"
#include "transport/ucx/information.h"
#include "transport/ucx/stream_ring.h"

using namespace pycoll;
using namespace pycoll::test;

namespace {

constexpr uint64_t kKey = 0x1234567890abcdef;

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto* first = reinterpret_cast<const std::byte*>(text.data());
  return {first, first + text.size()};
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::unique_ptr<Network> open(int rank, int ranks = 2) {
  NetworkOptions options;
  options.rank = rank;
  options.ranks = ranks;
  options.interface = "lo";
  return open_ucx_network(options);
}

// Two or more networks of this thread, polled in turn.
struct Ranks {
  std::vector<std::unique_ptr<Network>> networks;
  std::vector<std::vector<std::string>> messages;  // by rank that got them

  explicit Ranks(int ranks, std::vector<uint64_t> keys = {}) : messages(static_cast<size_t>(ranks)) {
    std::vector<std::string> addresses, hosts;
    for (int rank = 0; rank < ranks; ++rank) {
      networks.push_back(open(rank, ranks));
      addresses.push_back(networks.back()->address());
      hosts.push_back("h" + std::to_string(rank));
    }
    keys.resize(static_cast<size_t>(ranks), kKey);
    for (size_t rank = 0; rank < networks.size(); ++rank) networks[rank]->meet(addresses, hosts, keys[rank]);
  }

  Network& operator[](int rank) { return *networks[static_cast<size_t>(rank)]; }

  bool poll() {
    bool happened = false;
    for (size_t rank = 0; rank < networks.size(); ++rank)
      if (networks[rank])
        happened |= networks[rank]->poll(
            [&](int, std::span<const std::byte> message) { messages[rank].push_back(text_of(message)); });
    return happened;
  }

  template <class Done>
  void until(const Done& done, const char* what) {
    const auto deadline = SteadyClock::now() + kPatience;
    while (!done()) {
      poll();
      if (SteadyClock::now() > deadline)
        throw std::runtime_error(std::string("waited in vain until ") + what);
    }
  }
};

void ring_positions() {
  ucx::SendRing out(4096);
  ucx::ReceiveRing in(4096);
  const std::vector<std::byte> data(5000, std::byte{7});
  const std::span<const std::byte> all(data);
  ucx::SendRing::Piece* first = out.put(all.first(10), 1024);
  check(first != nullptr && first->position == 0 && first->bytes.size() == 10 && first->end == 64, "padded");
  ucx::SendRing::Piece* second = out.put(all.first(1500), 1024);
  check(second != nullptr && second->position == 64 && second->bytes.size() == 1024, "at most the longest");
  ucx::SendRing::Piece* third = out.put(all, 5000);
  check(third != nullptr && third->position == 1088 && third->bytes.size() == 3008, "up to the ring's end");
  check(out.put(all, 5000) == nullptr, "full");

  // Given back, but not gone from the wire yet; and the other way round.
  out.given_back(1088);
  check(out.put(all, 5000) == nullptr, "what is on the wire stays");
  out.gone(*second);
  check(out.put(all, 5000) == nullptr, "the first is still on the wire");
  out.gone(*first);
  ucx::SendRing::Piece* fourth = out.put(all.first(100), 5000);
  check(fourth != nullptr && fourth->position == 4096 && fourth->bytes.size() == 100,
        "anew from the beginning");
  check(out.position() == 4224, "padded at the end");

  // They may come in any order.
  check(in.expect(1088, 3008) != nullptr && in.expect(64, 1024) != nullptr, "places");
  in.landed(1088);
  in.landed(64);
  check(in.arrived().empty(), "the first is missing");
  std::byte* place = in.expect(0, 10);
  in.landed(0);
  check(in.arrived().size() == 10 && in.arrived().data() == place, "padding ends a span");
  in.take(4);
  check(in.arrived().size() == 6 && in.taken() == 0, "taken in part");
  in.take(6);
  check(in.taken() == 64 && in.arrived().size() == 4032, "neighbours lie in one piece");
  check(in.has_all(4096) && !in.has_all(4097), "what has landed");
  in.take(100);
  check(in.taken() == 128, "credit in whole units");

  check(in.expect(1088, 10) == nullptr, "twice the same");
  check(in.expect(4096 + 128, 4000) == nullptr, "more than there is room for");
  check(in.expect(4096 + 32, 8) == nullptr, "not aligned");
  check(in.expect(0, 8) == nullptr, "what was taken already");
  check(in.expect(8192 - 64, 65) == nullptr, "over the end of the ring");
  check_throws<InvalidArgument>([&] { in.take(100000); }, "100000 bytes given back");
}

void names_compared() {
  const std::vector<std::string> hosts = {"h0", "h1"};
  check_same_network("ucx", 0, {"pycoll-ucx/1 00", "pycoll-ucx/1 01"}, hosts);
  check_throws<InvalidArgument>(
      [&] { check_same_network("ucx", 0, {"pycoll-ucx/1 00", "pycoll-tcp/1 5"}, hosts); },
      "rank 0 on host 'h0' ucx, rank 1 on host 'h1' tcp; set PYCOLL_NETWORK");
  NetworkOptions options;
  options.interface = "lo";
  const auto tcp = open_tcp_network(options);
  check_throws<InvalidArgument>([&] { tcp->meet({"pycoll-ucx/1 00"}, {"h0"}, 1); },
                                "rank 0 on host 'h0' tcp, rank 0 on host 'h0' ucx");
}

void strangers() {
  Ranks ranks(3, {99, kKey, kKey});
  ranks[0].post(1, bytes_of("from a stranger"));
  ranks[0].send(1, bytes_of("so is this"));
  ranks.until([&] { return ranks[0].flushed(); }, "all was flushed");
  ranks[2].post(1, bytes_of("from a friend"));
  ranks.until([&] { return !ranks.messages[1].empty(); }, "a message came");
  for (int i = 0; i < 100; ++i) ranks.poll();
  check(ranks.messages[1] == std::vector<std::string>{"from a friend"}, "a stranger was heard");
  check(ranks[1].arrived(0).empty(), "a stranger's stream was taken");
}

void back_pressure() {
  Ranks ranks(2);
  const std::vector<std::byte> data(64 << 20, std::byte{5});
  size_t sent = 0;
  const auto send = [&] { sent += ranks[0].send(1, std::span<const std::byte>(data).subspan(sent)); };
  // Until nothing moves: the ring is full, and the receiver has all of it.
  ranks.until(
      [&] {
        send();
        return ranks[1].arrived(0).size() >= (1 << 20) - 64 || sent > (8 << 20);
      },
      "the stream stands still");
  for (int i = 0; i < 1000; ++i) {
    ranks.poll();
    send();
  }
  check(sent <= 2 << 20, "a receiver that takes nothing does not stop the sender: " + std::to_string(sent));
  check(ranks[0].memory_bytes() + ranks[1].memory_bytes() <= 4 << 20, "memory grows");
  size_t got = 0;
  ranks.until(
      [&] {
        if (sent < data.size()) send();
        const size_t here = ranks[1].arrived(0).size();
        if (here > 0) ranks[1].received(0, here);
        got += here;
        return got == data.size();
      },
      "all was received");
}

void stream_outlives_its_sender() {
  Ranks ranks(2);
  const std::vector<std::byte> data(300000, std::byte{9});
  check(ranks[0].send(1, data) == data.size(), "fits the ring");
  ranks[0].leave();
  ranks.until([&] { return ranks[0].flushed(); }, "all was flushed");
  ranks.networks[0].reset();
  ranks.until([&] { return ranks[1].left(0); }, "rank 0 has left");
  size_t got = 0;
  while (!ranks[1].arrived(0).empty()) {
    const size_t here = ranks[1].arrived(0).size();
    got += here;
    ranks[1].received(0, here);
  }
  check(got == data.size(), "what a rank had sent before it left");
  for (int i = 0; i < 100; ++i) ranks.poll();
  check(ranks[1].lost(0) == nullptr, "who left is not lost");
  check(ranks[1].send(0, data) == 0, "nothing goes to who has left");
}

void nobody_there() {
  Ranks ranks(2);
  ranks.networks[1].reset();
  ranks[0].watch(1);
  ranks.until([&] { return ranks[0].lost(1) != nullptr; }, "the absence is noticed");
  const std::string how = *ranks[0].lost(1);
  check(how.find("cannot be reached: tried tcp/lo: ") == 0, "how it was lost: " + how);
  check(ranks[0].send(1, bytes_of("hello")) == 0, "nothing goes to who is lost");
  ranks[0].post(1, bytes_of("hello"));
  ranks.until([&] { return ranks[0].flushed(); }, "a lost peer holds nothing up");
}

void bad_calls() {
  const auto network = open(0);
  check_throws<InvalidArgument>([&] { network->post(1, {}); }, "not met yet");
  check_throws<InvalidArgument>([&] { network->meet({"pycoll-ucx/1 00"}, {"h0"}, 1); },
                                "1 addresses and 1 hosts for 2 ranks");
  for (const char* wrong : {"pycoll-ucx/1 0g", "pycoll-ucx/1 000", "pycoll-ucx/1 ", "nonsense", ""})
    check_throws<InvalidArgument>([&] { network->meet({network->address(), wrong}, {"h0", "h1"}, 1); },
                                  "rank 1 on host 'h1' gave an address that is not one of UCX");
  network->meet({network->address(), network->address()}, {"h0", "h1"}, 1);
  check_throws<InvalidArgument>([&] { network->post(0, {}); }, "rank 0 is no other rank of 2");
  check_throws<InvalidArgument>([&] { network->send(2, {}); }, "rank 2 is no other rank of 2");
  check_throws<InvalidArgument>([&] { network->post(1, std::vector<std::byte>((1 << 20) + 1)); },
                                "at most 1 MiB");
  NetworkOptions options;
  options.interface = "no-such-interface";
  check_throws<InvalidArgument>([&] { open_ucx_network(options); }, "no-such-interface");
  options.interface = "lo";
  options.lanes = 0;
  check_throws<InvalidArgument>([&] { open_ucx_network(options); }, "PYCOLL_LANES is 0");
}

// A whole line, or what came before the end.
std::string read_line(int descriptor) {
  std::string line;
  for (char c; ::read(descriptor, &c, 1) == 1 && c != '\n';) line += c;
  return line;
}

void wait_for(Network& network, const std::function<bool()>& done, std::string* message = nullptr) {
  const auto deadline = SteadyClock::now() + kPatience;
  while (!done()) {
    const bool happened = network.poll([&](int, std::span<const std::byte> bytes) {
      if (message != nullptr) *message = text_of(bytes);
    });
    if (SteadyClock::now() > deadline) throw std::runtime_error("waited in vain");
    if (happened || !network.arm()) continue;
    pollfd one{network.descriptor(), POLLIN, 0};
    ::poll(&one, 1, 1000);
  }
}

// The body of rank 1, which is killed while it sleeps.
void victim(int in, int out) {
  const auto network = open(1);
  const std::string address = network->address() + "\n";
  if (::write(out, address.data(), address.size()) < 0) return;
  network->meet({read_line(in), network->address()}, {"h0", "h1"}, kKey);
  network->post(0, bytes_of("ready"));
  wait_for(*network, [&] { return network->flushed(); });
  ::pause();
}

// Before anything of UCX is in use, since it does not survive a fork.
void killed_process() {
  int to_child[2], from_child[2];
  if (::pipe2(to_child, O_CLOEXEC) != 0 || ::pipe2(from_child, O_CLOEXEC) != 0)
    throw std::runtime_error("no pipe");
  const pid_t child = ::fork();
  if (child == 0) {
    victim(to_child[0], from_child[1]);
    ::_exit(1);
  }
  const auto network = open(0);
  const std::string address = network->address() + "\n";
  const bool told = ::write(to_child[1], address.data(), address.size()) > 0;
  network->meet({network->address(), read_line(from_child[0])}, {"h0", "h1"}, kKey);
  network->watch(1);
  std::string message;
  wait_for(*network, [&] { return message == "ready"; }, &message);
  check(told && network->lost(1) == nullptr, "alive");
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  wait_for(*network, [&] { return network->lost(1) != nullptr; });
  check(network->lost(1)->starts_with("its connection was reset"), "how it was lost: " + *network->lost(1));
  check(!network->left(1), "a killed rank has not left");
  for (const int end : {to_child[0], to_child[1], from_child[0], from_child[1]}) ::close(end);
}

// Why there is no UCX here, found out by a process of its own; "": there is.
std::string why_none() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
  const pid_t child = ::fork();
  if (child == 0) {
    std::string why;
    const ucx::Information information = ucx::information();
    if (!information.found)
      for (const std::string& one : information.passed_over) why += one + "; ";
    const bool told = ::write(ends[1], why.data(), why.size()) >= 0;
    ::_exit(told ? 0 : 1);
  }
  ::close(ends[1]);
  const std::string why = read_line(ends[0]);
  ::close(ends[0]);
  ::waitpid(child, nullptr, 0);
  return why;
}

}  // namespace

int main() {
  run("ring positions", ring_positions);
  run("names compared", names_compared);
  if (const std::string why = why_none(); !why.empty()) {
    std::printf("skipped: the rest, for there is no UCX: %s\n", why.c_str());
    return result();
  }
  run("killed process", killed_process);
  run("strangers", strangers);
  run("back pressure", back_pressure);
  run("stream outlives its sender", stream_outlives_its_sender);
  run("nobody there", nobody_there);
  run("bad calls", bad_calls);
  const OpenNetwork on_loopback = [](NetworkOptions options) {
    options.interface = "lo";
    return open_ucx_network(options);
  };
  all_tests(on_loopback);
  NetworkOptions lanes;
  lanes.lanes = 3;
  run("lanes: alignment", [&] { alignment(on_loopback, lanes); });
  run("lanes: everybody to everybody", [&] { everybody_to_everybody(on_loopback, 3, 2 * kMiB, lanes); });
  return result();
}
