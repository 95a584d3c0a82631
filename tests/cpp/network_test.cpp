// The network over TCP, between threads of this process.
#include <cstdio>

#include "network_model.h"

using namespace pycoll;
using namespace pycoll::test;

namespace {

void sizes(const OpenNetwork& open) {
  run_network(open, 2, [](Node& node) {
    uint64_t seed = 0;
    for (const size_t bytes :
         {1UL, 2UL, 63UL, 64UL, 65UL, 4096UL, 65535UL, 65536UL, 65537UL, 1UL << 20, 3000001UL}) {
      ++seed;
      if (node.rank == 0) node.send_all(1, pattern_bytes(seed, 0, bytes));
      node.receive_all(1 - node.rank, seed, bytes);
      if (node.rank == 1) node.send_all(0, pattern_bytes(seed, 0, bytes));
    }
  });
}

void messages(const OpenNetwork& open) {
  run_network(open, 2, [](Node& node) {
    for (const size_t bytes : {0UL, 1UL, 64UL, 65536UL, 1UL << 20}) {
      if (node.rank == 0) node.network->post(1, pattern_bytes(bytes, 0, bytes));
      check(node.next_message(1 - node.rank) == pattern_bytes(bytes, 0, bytes), "message");
      if (node.rank == 1) node.network->post(0, pattern_bytes(bytes, 0, bytes));
    }
  });
}

void leaving(const OpenNetwork& open) {
  run_network(open, 2, [](Node& node) {
    if (node.rank == 0) {
      node.network->post(1, pattern_bytes(1, 0, 10));
      node.send_all(1, pattern_bytes(2, 0, 100000));
      node.leave();
    } else {
      check(node.next_message(0) == pattern_bytes(1, 0, 10), "message");
      node.receive_all(0, 2, 100000);
      node.until([&] { return node.network->left(0); }, "rank 0 left");
      check(node.network->lost(0) == nullptr, "not lost");
      node.network.reset();
    }
  });
}

void death(const OpenNetwork& open) {
  run_network(open, 2, [](Node& node) {
    node.network->watch(1 - node.rank);
    if (node.rank == 0) {
      node.network->post(1, pattern_bytes(1, 0, 10));
      check(node.next_message(1).size() == 5, "message");
      node.network.reset();  // without leaving
    } else {
      check(node.next_message(0) == pattern_bytes(1, 0, 10), "message");
      node.network->post(0, pattern_bytes(1, 0, 5));
      node.until([&] { return node.network->lost(0) != nullptr; }, "rank 0 was lost");
      check(!node.network->left(0), "did not leave");
      std::printf("%s\n", node.network->lost(0)->c_str());
      node.network.reset();
    }
  });
}

}  // namespace

int main() {
  const OpenNetwork open = open_tcp_network;
  run("sizes", [&] { sizes(open); });
  run("messages", [&] { messages(open); });
  run("leaving", [&] { leaving(open); });
  run("death", [&] { death(open); });
  return result();
}
