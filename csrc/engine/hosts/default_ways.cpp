#include "engine/hosts/default_ways.h"

#include <algorithm>

namespace pycoll {
namespace {

// From here on a wire's rate counts for more than its latency: 1 Gbit/s takes as long for it as for the fifty
// hops of a ring of 26, 100 Gbit/s as for the hops of a small one.
constexpr uint64_t kLarge = 512 << 10;

// Small pieces keep memory and wires busy at once. 16 MiB on 4 hosts with 2 ranks each at 1 Gbit/s take 276
// ms with a piece a rank, 227 with pieces of 256 KiB, 218 with 64 KiB; the wires' bound is 211.
int many(uint64_t bytes, const Placement& placement) {
  const auto ranks = static_cast<uint64_t>(placement.ranks());
  return static_cast<int>(ranks * std::clamp<uint64_t>((bytes >> 16) / ranks, 1, 64));
}

// One way for all sizes, in which every element is added in the same order: along the same binary tree.
Way fixed_order_way(CollectiveKind kind) {
  const bool rooted = kind == CollectiveKind::Reduce;
  return {
      .algorithm = rooted ? "binomial_tree" : "recursive_halving_doubling", .pieces = 0, .schedule = nullptr};
}

}  // namespace

Way default_way(CollectiveKind kind, uint64_t bytes, const Placement& placement, bool fixed_order) {
  if (fixed_order && is_reduction(kind)) return fixed_order_way(kind);
  const bool several_a_host = placement.hosts.size() < placement.host_of.size();
  switch (kind) {
    case CollectiveKind::AllReduce:
    case CollectiveKind::ReduceScatter:
    case CollectiveKind::AllGather:
      // Between hosts each byte crosses once each way, however many ranks a host has.
      if (several_a_host)
        return {.algorithm = "hierarchical", .pieces = many(bytes, placement), .schedule = nullptr};
      return {.algorithm = bytes < kLarge ? "recursive_halving_doubling" : "ring",
              .pieces = 0,
              .schedule = nullptr};
    case CollectiveKind::Broadcast:
    case CollectiveKind::Reduce:
      if (bytes < kLarge) return {.algorithm = "binomial_tree", .pieces = 0, .schedule = nullptr};
      // A chain's time is that of one hop, and of its pieces before.
      return {.algorithm = "ring",
              .pieces = static_cast<int>(std::clamp<uint64_t>(bytes >> 17, 8, 128)),
              .schedule = nullptr};
    case CollectiveKind::AllToAll:
      return {.algorithm = "pairwise", .pieces = 0, .schedule = nullptr};
    case CollectiveKind::Gather:
    case CollectiveKind::Scatter:
    case CollectiveKind::Barrier:
      break;
  }
  return {.algorithm = "direct", .pieces = 0, .schedule = nullptr};
}

}  // namespace pycoll
