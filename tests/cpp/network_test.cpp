// The network over TCP: between threads of this process, and against what else comes by its ports.
#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <random>
#include <sstream>

#include "network_tests.h"
#include "transport/tcp/advertisement.h"
#include "transport/tcp/frame.h"
#include "transport/tcp/frame_ring.h"
#include "transport/tcp/interfaces.h"

using namespace pycoll;
using namespace pycoll::test;

namespace {

constexpr uint64_t kKey = 0x1234567890abcdef;  // run_network()'s

NetworkOptions with_lanes(int lanes) {
  NetworkOptions options;
  options.lanes = lanes;
  return options;
}

// A plain blocking connection to where a network listens.
int intrude(const std::string& address) {
  const tcp::Advertisement there = tcp::Advertisement::parse(address, "it");
  const tcp::SocketAddress& to = there.endpoints.front().address;
  const int socket = ::socket(to.family(), SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (::connect(socket, to.get(), to.size()) != 0) throw std::runtime_error("cannot connect");
  return socket;
}

void write_all(int socket, const void* bytes, size_t length) {
  // The other end may have closed already: that is what it should do.
  [[maybe_unused]] const ssize_t sent = ::send(socket, bytes, length, MSG_NOSIGNAL);
}

tcp::Hello hello_of(uint32_t from, uint32_t to) {
  tcp::Hello hello;
  hello.key = kKey;
  hello.from = from;
  hello.to = to;
  return hello;
}

// While two ranks talk, others connect and say nothing, or nonsense, or nearly the right thing.
void intruders() {
  std::string target;
  std::atomic<bool> done{false};
  std::mutex mutex;
  std::condition_variable known;
  std::thread intruder([&] {
    {
      std::unique_lock lock(mutex);
      known.wait(lock, [&] { return !target.empty(); });
    }
    std::mt19937_64 random(1);
    std::vector<int> open;
    for (int i = 0; i < 600; ++i) {
      const int socket = intrude(target);
      tcp::Hello hello = hello_of(1, 0);
      switch (i % 8) {
        case 0:
          break;  // connects and closes
        case 1: {
          std::array<uint64_t, 100> garbage;
          for (uint64_t& word : garbage) word = random();
          write_all(socket, garbage.data(), random() % sizeof garbage);
          break;
        }
        case 2:
          hello.key ^= 1ULL << random() % 64;
          break;
        case 3:
          hello.from = static_cast<uint32_t>(random()) | 2;
          break;
        case 4:
          hello.to = 1;
          break;
        case 5:
          hello.role = static_cast<tcp::Role>(2 + random() % 1000);
          break;
        case 6:
          hello.lane = static_cast<uint16_t>(1 + random() % 1000);
          break;
        case 7:
          hello.magic ^= 1ULL << random() % 64;
          break;
      }
      if (i % 8 > 1) write_all(socket, &hello, i % 3 == 0 ? 17 : sizeof hello);
      if (i % 16 == 0)
        open.push_back(socket);
      else
        ::close(socket);
    }
    done = true;
    for (const int socket : open) ::close(socket);
  });
  run_network(open_tcp_network, 2, [&](Station& node) {
    if (node.rank == 0) {
      const std::lock_guard lock(mutex);
      target = node.network->address();
      known.notify_one();
    }
    bool last = false;
    for (int i = 0; !last; ++i) {
      if (node.rank == 0) {
        last = done;
        node.network->post(1, pattern_bytes(last ? 1 : 2, 0, 1));
      }
      node.receive_all(1 - node.rank, 5, node.rank == 1 || i > 0 ? 1000 : 0);
      node.send_all(1 - node.rank, pattern_bytes(5, 0, 1000));
      if (node.rank == 1) last = node.next_message(0) == pattern_bytes(1, 0, 1);
    }
    if (node.rank == 0) node.receive_all(1, 5, 1000);
    check(node.network->lost(1 - node.rank) == nullptr, "intruders do no harm");
  });
  intruder.join();
}

// Whoever knows the key but then sends no frames is a peer gone mad: lost, and nothing worse.
void nonsense_after_hello() {
  std::mt19937_64 random(2);
  for (int i = 0; i < 30; ++i) {
    NetworkOptions options;
    options.ranks = 2;
    options.group = "test";
    Station node{0, 2, open_tcp_network(options), {}};
    const std::string address = node.network->address();
    node.network->meet({address, address}, {"here", "there"}, kKey);
    const int socket = intrude(address);
    tcp::Hello hello = hello_of(1, 0);
    hello.role = i % 2 == 0 ? tcp::Role::Messages : tcp::Role::Stream;
    write_all(socket, &hello, sizeof hello);
    std::vector<uint64_t> garbage(1 + random() % 5000);
    for (uint64_t& word : garbage) word = random();
    tcp::FrameHeader header{i % 2 == 0 ? tcp::FrameKind::Message : tcp::FrameKind::Data, 100, 0};
    if (i % 3 != 0) write_all(socket, &header, sizeof header);
    if (i % 6 == 1) {
      header.length = 0xffffffff;
      write_all(socket, garbage.data(), 100);
      write_all(socket, &header, sizeof header);
    } else {
      write_all(socket, garbage.data(), garbage.size() * sizeof garbage[0]);
    }
    ::shutdown(socket, SHUT_WR);
    node.until([&] { return node.network->lost(1) != nullptr; }, "the mad peer was lost");
    check(node.network->arrived(1).size() <= 64 << 10, "at most what a frame holds");
    ::close(socket);
  }
}

// Nobody listens any more where rank 1 did.
void refused() {
  NetworkOptions options;
  options.ranks = 2;
  options.group = "test";
  for (const bool watched : {true, false}) {
    Station node{0, 2, open_tcp_network(options), {}};
    options.rank = 1;
    std::string address = open_tcp_network(options)->address();
    options.rank = 0;
    node.network->meet({node.network->address(), address}, {"here", "there"}, kKey);
    if (watched)
      node.network->watch(1);
    else
      node.send_all(1, {});
    if (!watched) node.network->send(1, pattern_bytes(1, 0, 10));
    node.until([&] { return node.network->lost(1) != nullptr; }, "rank 1 was lost");
    const std::string& how = *node.network->lost(1);
    const std::string expected =
        tcp::Advertisement::parse(address, "it").endpoints.front().address.text() + " over ";
    check(how.find("cannot be reached: tried " + expected) != std::string::npos, how);
    check(how.find("Connection refused") != std::string::npos, how);
    check(node.network->flushed(), "what was meant for the dead is not waited for");
  }
}

// Rank 1 is a process of its own, that `child` runs in; rank 0 is here.
void with_a_process(const std::function<void(Station&)>& child,
                    const std::function<void(Station&, pid_t)>& parent) {
  int sockets[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) throw std::runtime_error("socketpair");
  const pid_t pid = ::fork();
  const int rank = pid == 0 ? 1 : 0;
  {
    NetworkOptions options;
    options.rank = rank;
    options.ranks = 2;
    options.group = "test";
    Station node{rank, 2, open_tcp_network(options), {}};
    std::string own = node.network->address();
    own.resize(1000, ' ');
    std::string other(1000, ' ');
    write_all(sockets[rank], own.data(), own.size());
    if (::recv(sockets[rank], other.data(), other.size(), MSG_WAITALL) != 1000)
      throw std::runtime_error("no address");
    if (rank == 1) std::swap(own, other);
    node.network->meet({own, other}, {"here", "there"}, kKey);
    if (rank == 1) {
      child(node);
      ::_exit(0);
    }
    parent(node, pid);
  }
  ::close(sockets[0]);
  ::close(sockets[1]);
}

// SIGKILL, while a child of the dead process lives on.
void killed() {
  int pipe[2];
  if (::pipe(pipe) != 0) throw std::runtime_error("pipe");
  with_a_process(
      [&](Station& node) {
        node.network->post(0, pattern_bytes(1, 0, 10));
        node.next_message(0);
        if (::fork() == 0) {
          // Lives until the parent closes its end.
          ::close(pipe[1]);
          char byte;
          const bool closed = ::read(pipe[0], &byte, 1) == 0;
          node.network.reset();
          ::_exit(closed ? 0 : 1);
        }
        node.network->post(0, pattern_bytes(2, 0, 20));
        node.until([] { return false; }, "killed");
      },
      [&](Station& node, pid_t pid) {
        node.network->post(1, pattern_bytes(1, 0, 10));
        check(node.next_message(1).size() == 10, "first message");
        check(node.next_message(1).size() == 20, "second message");
        ::kill(pid, SIGKILL);
        node.until([&] { return node.network->lost(1) != nullptr; }, "rank 1 was lost");
        int status = 0;
        ::waitpid(pid, &status, 0);
      });
  ::close(pipe[0]);
  ::close(pipe[1]);
}

void frame_ring() {
  tcp::FrameRing ring(1024);
  check(ring.empty() && !ring.begin(0, 1025), "longer than the ring");
  check(ring.begin(0, 1024) && ring.missing().size() == 1024, "as long as the ring");
  check(!ring.begin(1, 1), "full");
  ring.came(1024);
  check(!ring.take(1000) && ring.first().size() == 24 && ring.take(24) && ring.empty(), "taken in two parts");
  // Frames of all lengths go around many times; each keeps its bytes and its place.
  std::mt19937 random(3);
  std::deque<std::pair<uint64_t, size_t>> inside;
  uint64_t begun = 0;
  size_t most = 0;
  for (int i = 0; i < 20000; ++i) {
    const size_t length = 1 + random() % 400;
    if (random() % 2 == 0 && ring.begin(begun, length)) {
      const std::span<std::byte> place = ring.missing();
      check(reinterpret_cast<uintptr_t>(place.data()) % 64 == 0 && place.size() == length, "place");
      std::ranges::copy(pattern_bytes(begun, 0, length), place.begin());
      ring.came(length);
      inside.emplace_back(begun++, length);
    } else if (!inside.empty()) {
      const auto [number, size] = inside.front();
      inside.pop_front();
      check(ring.first_number() == number, "order");
      const std::span<const std::byte> first = ring.first();
      check(Bytes(first.begin(), first.end()) == pattern_bytes(number, 0, size), "content");
      check(ring.take(size), "the whole frame");
    }
    most = std::max(most, inside.size());
  }
  check(most > 3, "several frames at once");
}

tcp::Advertisement advertise(uint64_t host, const std::vector<std::string>& addresses) {
  tcp::Advertisement made{host, {}};
  for (const std::string& address : addresses)
    made.endpoints.push_back(
        {"if" + std::to_string(made.endpoints.size()), *tcp::SocketAddress::parse(address, 80), 24});
  return made;
}

std::string ordered(const std::vector<tcp::Advertisement>& all, size_t own, size_t target) {
  std::string text;
  for (const tcp::Endpoint& one : tcp::order_endpoints(all, own, target)) text += one.address.host() + " ";
  return text;
}

void advertisements() {
  const tcp::Advertisement one{7,
                               {{"eth0", *tcp::SocketAddress::parse("10.0.0.1", 4000), 16},
                                {"ib0", *tcp::SocketAddress::parse("fd00::1", 5000), 64}}};
  check(one.text() == "pycoll-tcp/1 7 eth0,10.0.0.1,16,4000 ib0,fd00::1,64,5000", one.text());
  check(tcp::Advertisement::parse(one.text(), "it").text() == one.text(), "there and back");
  for (const char* const bad : {"", "pycoll-tcp/1", "pycoll-tcp/1 7", "pycoll-tcp/2 7 eth0,10.0.0.1,16,4000",
                                "pycoll-tcp/1 x eth0,10.0.0.1,16,4000", "pycoll-tcp/1 7 eth0,10.0.0,16,4000",
                                "pycoll-tcp/1 7 eth0,10.0.0.1,33,4000", "pycoll-tcp/1 7 eth0,10.0.0.1,16",
                                "pycoll-tcp/1 7 eth0,10.0.0.1,16,70000"})
    check_throws<InvalidArgument>([&] { tcp::Advertisement::parse(bad, "rank 3"); }, "rank 3 gave");

  // Three hosts on 10.0.0, the first two on 10.0.1 as well; each has a bridge of the same address.
  const std::vector<tcp::Advertisement> all{advertise(1, {"172.17.0.1", "10.0.1.1", "10.0.0.1"}),
                                            advertise(2, {"172.17.0.1", "10.0.1.2", "10.0.0.2", "127.0.0.1"}),
                                            advertise(3, {"172.17.0.1", "10.0.0.3"}),
                                            advertise(3, {"172.17.0.1", "10.0.0.3"})};
  check(ordered(all, 0, 1) == "10.0.0.2 10.0.1.2 ", ordered(all, 0, 1));
  check(ordered(all, 1, 2) == "10.0.0.3 ", ordered(all, 1, 2));
  check(ordered(all, 3, 2) == "172.17.0.1 10.0.0.3 " || ordered(all, 3, 2) == "10.0.0.3 172.17.0.1 ",
        ordered(all, 3, 2));
}

void interfaces() {
  NetworkOptions options;
  options.ranks = 1;
  options.group = "test";
  options.interface = "no-such-interface";
  check_throws<InvalidArgument>([&] { open_tcp_network(options); }, "PYCOLL_IFNAME");
  check_throws<InvalidArgument>([&] { open_tcp_network(options); }, "lo (up, 127.0.0.1");
  options.interface = "lo";
  check(open_tcp_network(options)->description() == "tcp over lo (127.0.0.1), lo (::1), 1 lane" ||
            open_tcp_network(options)->description() == "tcp over lo (127.0.0.1), 1 lane",
        open_tcp_network(options)->description());
  options.lanes = 0;
  check_throws<InvalidArgument>([&] { open_tcp_network(options); }, "PYCOLL_LANES is 0");
  // A host name that means nothing, or this host alone, must not keep anybody from working.
  for (const char* const towards : {"", "localhost", "127.0.0.1", "no-such-host.invalid"}) {
    const std::vector<tcp::NetworkInterface> all = tcp::choose_interfaces(towards, "");
    const bool outside = std::any_of(all.begin(), all.end(), [](const auto& one) {
      return one.up && !one.loopback && !one.addresses.empty();
    });
    for (const tcp::NetworkInterface& one : all) {
      check(!one.reason.empty(), "a reason for " + one.name);
      if (outside) check(!(one.loopback && one.chosen), "loopback does not leave the host");
    }
  }
}

}  // namespace

int main() {
  // First those that fork, while there is one thread.
  run("killed", killed);
  run("frame ring", frame_ring);
  run("advertisements", advertisements);
  run("interfaces", interfaces);
  run("refused", refused);
  all_tests(open_tcp_network);
  run("long without a look", [] { long_without_a_look(open_tcp_network); });
  const NetworkOptions four = with_lanes(4);
  run("lanes: stream sizes", [&] { stream_sizes(open_tcp_network, four); });
  run("lanes: alignment", [&] { alignment(open_tcp_network, four); });
  run("lanes: everybody to everybody", [&] { everybody_to_everybody(open_tcp_network, 3, kMiB, four); });
  run("lanes: slow reader", [&] { slow_reader(open_tcp_network, four); });
  run("intruders", intruders);
  run("nonsense after hello", nonsense_after_hello);
  return result();
}
