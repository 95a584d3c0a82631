// The way of a transfer from one device to another. Only switches, and devices that forward, are passed. The
// widest bottleneck comes first, then the fewest hops, then the least latency; ways that are equal in all
// three are parallel paths, as those of equal-cost multipath routing (ECMP).
#pragma once
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "topology/topology.h"

namespace pycoll {

enum class Routing : uint8_t {
  Spread,  // a transfer is divided evenly over all parallel paths
  Hash,    // a seeded hash of (src, dst) picks one of them
};

// A link that a transfer passes, and the part of its bytes that do.
struct Hop {
  int link;
  double share;
};

// The routes of a list of (source rank, destination rank).
struct RouteTable {
  std::vector<size_t> begin;    // of each pair's hops; one more than there are pairs
  std::vector<Hop> hops;        // each link once a pair
  std::vector<double> latency;  // of each pair: seconds, the sum over a path
  std::vector<double> rate;     // of each pair: bytes/s of a transfer that shares no link

  size_t pairs() const { return latency.size(); }
  std::span<const Hop> of(size_t pair) const {
    return {hops.data() + begin[pair], begin[pair + 1] - begin[pair]};
  }
};

// The finaliser of SplitMix64: every bit of the result depends on all bits of x.
constexpr uint64_t mix_bits(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// `pairs`, of two different ranks each, are best in order of their sources: what a source sees is worked out
// anew where it changes. TopologyError where there is no way.
RouteTable find_routes(const Topology& topology, std::span<const std::pair<int, int>> pairs, Routing routing,
                       uint64_t seed);

}  // namespace pycoll
