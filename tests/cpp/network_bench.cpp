// What a network gives, measured between processes (on several hosts, or one): run one of each rank with
//   network_bench RANK RANKS DIRECTORY ring MIB [LANES]      all ranks stream to the next one at once
//   network_bench RANK RANKS DIRECTORY pair MIB [LANES]      rank 0 streams to rank 1
//   network_bench 0|1  2     DIRECTORY pingpong COUNT        64-byte messages to and fro, asleep in between
//   network_bench 0|1  2     DIRECTORY raw-pair MIB          the last two over a plain blocking TCP socket
//   network_bench 0|1  2     DIRECTORY raw-pingpong COUNT
//   network_bench RANK RANKS DIRECTORY ring-of-death SECONDS   streams around until a rank is lost; says when
//   and how network_bench RANK RANKS DIRECTORY watch SECONDS           the same without any traffic
//   network_bench 0|1  2     DIRECTORY stall SECONDS           rank 1 takes nothing for so long, then all
// PYCOLL_NETWORK=tcp|ucx says which network, PYCOLL_UCX where UCX is.
// DIRECTORY: an empty one that all of them see, where they exchange addresses.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "network_tests.h"
#include "transport/tcp/interfaces.h"

using namespace pycoll;
using namespace pycoll::test;

namespace {

constexpr size_t kStep = 32 << 10;

std::vector<std::string> exchange(const std::string& directory, const std::string& name, int rank, int ranks,
                                  const std::string& mine) {
  const auto path = [&](int of) { return directory + "/" + name + std::to_string(of); };
  std::ofstream(path(rank) + ".new") << mine;
  std::rename((path(rank) + ".new").c_str(), path(rank).c_str());
  std::vector<std::string> all;
  for (int of = 0; of < ranks; ++of) {
    std::ifstream file;
    while (!file.is_open() || !file) {
      file.open(path(of));
      if (!file.is_open()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    std::stringstream text;
    text << file.rdbuf();
    all.push_back(text.str());
  }
  return all;
}

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double seconds_since(SteadyClock::time_point start) {
  return std::chrono::duration<double>(SteadyClock::now() - start).count();
}

void print_rate(int rank, int run, size_t bytes, double seconds, double cpu) {
  std::printf("rank %d run %d: %.4f s, %.1f MB/s, %.0f%% of a processor\n", rank, run, seconds,
              static_cast<double>(bytes) / seconds / 1e6, 100 * cpu / seconds);
}

// Sends to `to` and receives from `from` (-1: nobody) at once, as a schedule's step does.
void transfer(Station& node, int to, int from, const Bytes& data, Bytes& sink) {
  size_t sent = to < 0 ? data.size() : 0;
  size_t came = from < 0 ? data.size() : 0;
  node.until(
      [&] {
        while (sent < data.size()) {
          const size_t offered = std::min(kStep, data.size() - sent);
          const size_t taken = node.network->send(to, std::span(data).subspan(sent, offered));
          sent += taken;
          if (taken < offered) break;
        }
        while (came < data.size()) {
          const std::span<const std::byte> piece = node.network->arrived(from);
          if (piece.empty()) break;
          const size_t taken = std::min(piece.size(), data.size() - came);
          std::memcpy(sink.data() + came, piece.data(), taken);
          node.network->received(from, taken);
          came += taken;
        }
        return sent == data.size() && came == data.size();
      },
      "the transfer was done");
}

void barrier(Station& node) {
  for (int distance = 1; distance < node.ranks; distance *= 2) {
    node.network->post((node.rank + distance) % node.ranks, {});
    node.next_message((node.rank - distance + node.ranks) % node.ranks);
  }
}

void streams(Station& node, int to, int from, size_t bytes) {
  const Bytes data(bytes, std::byte{1});
  Bytes sink(bytes);
  for (int run = 0; run < 5; ++run) {
    barrier(node);
    const auto start = SteadyClock::now();
    const double cpu = cpu_seconds();
    transfer(node, to, from, data, sink);
    const double seconds = seconds_since(start);
    if (from >= 0) print_rate(node.rank, run, bytes, seconds, cpu_seconds() - cpu);
    barrier(node);
  }
}

// Until a neighbour is lost, or the time is over. A quiet one only watches.
void until_death(Station& node, double seconds, bool quiet) {
  const int next = (node.rank + 1) % node.ranks;
  const int previous = (node.rank + node.ranks - 1) % node.ranks;
  barrier(node);
  node.network->watch(next);
  node.network->watch(previous);
  const Bytes data(kStep);
  const auto start = SteadyClock::now();
  auto last = start;
  const std::string* how = nullptr;
  int who = -1;
  while (how == nullptr && seconds_since(start) < seconds) {
    bool any = node.poll();
    if (!quiet) {
      while (node.network->send(next, data) > 0) any = true;
      for (std::span<const std::byte> piece; !(piece = node.network->arrived(previous)).empty(); any = true)
        node.network->received(previous, piece.size());
    }
    for (const int peer : {next, previous})
      if (how == nullptr && (how = node.network->lost(peer)) != nullptr) who = peer;
    if (any) last = SteadyClock::now();
    pollfd one{node.network->descriptor(), POLLIN, 0};
    if (!any && node.network->arm()) ::poll(&one, 1, 200);
  }
  std::printf("rank %d: %.2f s after the start, %.2f s after the last event: %s %d %s\n", node.rank,
              seconds_since(start), seconds_since(last), how == nullptr ? "nobody is lost" : "lost rank", who,
              how == nullptr ? "" : how->c_str());
}

void stall(Station& node, double seconds) {
  const size_t bytes = 64 * kMiB;
  barrier(node);
  if (node.rank == 0) {
    node.send_all(1, Bytes(bytes));
  } else {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    size_t came = 0;
    node.until(
        [&] {
          for (std::span<const std::byte> piece; !(piece = node.network->arrived(0)).empty();) {
            came += piece.size();
            node.network->received(0, piece.size());
          }
          return came == bytes || node.network->lost(0) != nullptr;
        },
        "all came");
    std::printf("%zu MiB came %s\n", came / kMiB,
                node.network->lost(0) == nullptr ? "" : node.network->lost(0)->c_str());
  }
  barrier(node);
}

void print_times(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  std::printf("round trip: median %.1f us, least %.1f, 95%% %.1f\n", 1e6 * times[times.size() / 2],
              1e6 * times[0], 1e6 * times[times.size() * 95 / 100]);
}

void pingpong(Station& node, int count) {
  const Bytes message(64);
  std::vector<double> times;
  for (int i = 0; i < count; ++i) {
    const auto start = SteadyClock::now();
    if (node.rank == 0) node.network->post(1, message);
    node.next_message(1 - node.rank);
    if (node.rank == 1) node.network->post(0, message);
    times.push_back(seconds_since(start));
  }
  if (node.rank == 0) print_times(times);
}

// A plain connection between ranks 0 and 1 that waits in the kernel.
int raw_connection(int rank, const std::string& directory) {
  const std::vector<tcp::NetworkInterface> all = tcp::choose_interfaces("", "");
  const auto chosen = std::find_if(all.begin(), all.end(), [](const auto& one) { return one.chosen; });
  const tcp::SocketAddress own = chosen->addresses.front().address;
  const int listener = ::socket(own.family(), SOCK_STREAM, 0);
  ::bind(listener, own.get(), own.size());
  ::listen(listener, 1);
  const tcp::SocketAddress bound = tcp::SocketAddress::local_of(listener);
  const std::string peer =
      exchange(directory, "raw", rank, 2, bound.host() + " " + std::to_string(bound.port()))[0];
  int socket = -1;
  if (rank == 0) {
    socket = ::accept(listener, nullptr, nullptr);
  } else {
    std::istringstream words(peer);
    std::string host;
    unsigned port = 0;
    words >> host >> port;
    const auto to = tcp::SocketAddress::parse(host, static_cast<uint16_t>(port));
    socket = ::socket(to->family(), SOCK_STREAM, 0);
    if (::connect(socket, to->get(), to->size()) != 0) std::perror("connect");
  }
  ::close(listener);
  const int on = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return socket;
}

void raw_pingpong(int rank, const std::string& directory, int count) {
  const int socket = raw_connection(rank, directory);
  char message[64] = {};
  std::vector<double> times;
  bool good = true;
  for (int i = 0; i < count && good; ++i) {
    const auto start = SteadyClock::now();
    if (rank == 0) good = ::send(socket, message, sizeof message, 0) == sizeof message;
    good = good && ::recv(socket, message, sizeof message, MSG_WAITALL) == sizeof message;
    if (rank == 1) good = good && ::send(socket, message, sizeof message, 0) == sizeof message;
    times.push_back(seconds_since(start));
  }
  if (rank == 0) print_times(times);
  ::close(socket);
}

void raw_pair(int rank, const std::string& directory, size_t bytes) {
  const int socket = raw_connection(rank, directory);
  const Bytes data(bytes, std::byte{1});
  Bytes sink(64 << 10);
  for (int run = 0; run < 5; ++run) {
    const auto start = SteadyClock::now();
    const double cpu = cpu_seconds();
    for (size_t moved = 0; moved < bytes;) {
      const ssize_t now = rank == 0
                              ? ::send(socket, data.data() + moved, std::min(sink.size(), bytes - moved), 0)
                              : ::recv(socket, sink.data(), std::min(sink.size(), bytes - moved), 0);
      if (now <= 0) return;
      moved += static_cast<size_t>(now);
    }
    std::byte done{};
    if (rank == 1 ? ::send(socket, &done, 1, 0) != 1 : ::recv(socket, &done, 1, MSG_WAITALL) != 1) return;
    if (rank == 1) print_rate(rank, run, bytes, seconds_since(start), cpu_seconds() - cpu);
  }
  ::close(socket);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6) {
    std::fprintf(stderr, "usage: network_bench RANK RANKS DIRECTORY MODE SIZE [LANES]\n");
    return 2;
  }
  const int rank = std::atoi(argv[1]);
  const int ranks = std::atoi(argv[2]);
  const std::string directory = argv[3];
  const std::string mode = argv[4];
  const int size = std::atoi(argv[5]);
  const size_t bytes = static_cast<size_t>(size) << 20;
  if (mode == "raw-pingpong") raw_pingpong(rank, directory, size);
  if (mode == "raw-pair") raw_pair(rank, directory, bytes);
  if (mode.starts_with("raw")) return 0;
  NetworkOptions options;
  options.rank = rank;
  options.ranks = ranks;
  options.group = "bench";
  if (argc > 6) options.lanes = std::atoi(argv[6]);
  Station node{rank, ranks, open_network(options), {}};
  node.network->meet(exchange(directory, "address", rank, ranks, node.network->address()),
                     std::vector<std::string>(static_cast<size_t>(ranks), "host"), 42);
  if (mode == "ring") streams(node, (rank + 1) % ranks, (rank + ranks - 1) % ranks, bytes);
  if (mode == "pair") streams(node, rank == 0 ? 1 : -1, rank == 1 ? 0 : -1, bytes);
  if (mode == "pingpong") pingpong(node, size);
  if (mode == "stall") stall(node, size);
  if (mode == "ring-of-death" || mode == "watch") {
    until_death(node, size, mode == "watch");
    return 0;
  }
  barrier(node);
  node.leave();
}
