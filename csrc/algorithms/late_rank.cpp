#include <algorithm>
#include <cmath>
#include <numeric>

#include "algorithms/builder.h"
#include "algorithms/late_rank/parts.h"
#include "algorithms/late_rank/phases.h"
#include "algorithms/list.h"
#include "algorithms/params.h"
#include "core/error.h"
#include "topology/clusters.h"
#include "topology/rank_order.h"
#include "topology/routes.h"

namespace pycoll {

namespace {

using late_rank::at;

// What is asked for, beside ranks and pieces.
struct LateRequest {
  std::vector<int> late;      // in the order in which they come
  std::vector<int> arrivals;  // of several: rounds from the end of the pre-phase until each comes
  // Equal parts of the buffer, a piece for each early rank in each, reduced one after the other; when the
  // late rank comes, `cut` of them are. A ring takes the rest.
  bool grouped = false;
  int groups = 1;
  int cut = 1;
  std::vector<int> cluster;  // of each rank; empty where it does not matter

  int ranks = 1;
  int early() const { return ranks - static_cast<int>(late.size()); }
  bool is_cut() const { return cut < groups; }
  bool several() const { return late.size() > 1; }
  int owners() const { return several() || !cluster.empty() ? early() : late_rank::owners(ranks); }
};

// The largest groups of near ranks that the machine has, as a number for each rank.
std::vector<int> clusters_of(const Topology& topology) {
  const std::vector<RankGroups> levels = find_clusters(topology);
  if (levels.empty()) return {};
  std::vector<int> cluster(at(topology.rank_count()));
  for (size_t group = 0; group < levels.back().size(); ++group)
    for (int rank : levels.back()[group]) cluster[at(rank)] = static_cast<int>(group);
  return cluster;
}

LateRequest read(const BuildRequest& request) {
  const int n = request.ranks;
  LateRequest made;
  made.ranks = n;
  if (n == 1) return made;
  made.late = integers_param(request, "late", {n - 1}, 0, n - 1);
  std::vector<int> distinct = made.late;
  std::ranges::sort(distinct);
  if (std::ranges::adjacent_find(distinct) != distinct.end())
    throw InvalidArgument("algorithm 'late_rank': parameter 'late' names a rank twice");
  if (made.early() < 1)
    throw InvalidArgument("algorithm 'late_rank': parameter 'late' names all ranks; one must be early");
  made.arrivals = integers_param(request, "arrivals", std::vector<int>(made.late.size(), 0), 0, 1 << 24);
  if (made.arrivals.size() != made.late.size())
    throw InvalidArgument("algorithm 'late_rank': parameter 'arrivals' needs a round for each late rank");
  if (!made.several() && made.arrivals.front() != 0)
    throw InvalidArgument("algorithm 'late_rank': rounds are counted from the arrival of the only late rank");
  made.grouped = request.params.contains("groups") || request.params.contains("cut");
  made.groups = integer_param(request, "groups", 1, 1, 1 << 16);
  made.cut = integer_param(request, "cut", made.groups, 0, made.groups);
  if (made.is_cut() && std::ranges::any_of(made.arrivals, [](int round) { return round != 0; }))
    throw Unsupported(
        "algorithm 'late_rank': parameter 'cut' is for late ranks that have all come, not for later "
        "'arrivals'");
  if (choice_param(request, "spread", {"doubling", "near"}) == "near") {
    if (!request.topology || made.several())
      throw Unsupported("algorithm 'late_rank': spread 'near' needs a topology, and is for one late rank");
    made.cluster = clusters_of(*request.topology);
  }
  return made;
}

// The number of pieces at which the time (K-1+q)(alpha + S*beta/K) is least; alpha and beta are those of the
// slowest step of a ring.
int best_pieces(const Topology& topology, double size, int depth) {
  const int n = topology.rank_count();
  std::vector<std::pair<int, int>> pairs;
  for (int rank = 0; rank < n; ++rank) pairs.emplace_back(rank, (rank + 1) % n);
  const RouteTable routes = find_routes(topology, pairs, Routing::Spread, 0);
  double alpha = 0, rate = kUnlimited;
  for (int rank = 0; rank < n; ++rank) {
    alpha = std::max(alpha, routes.latency[at(rank)] + topology.device_of(rank).overhead);
    rate = std::min(rate, routes.rate[at(rank)]);
  }
  constexpr double kLeastPiece = 1024, kMost = 1 << 14;  // bytes, pieces
  const double most = std::clamp(size / kLeastPiece, 1.0, kMost);
  if (alpha <= 0) return static_cast<int>(most);
  const auto time = [&](double pieces) { return (pieces - 1 + depth) * (alpha + size / rate / pieces); };
  const double best = std::clamp(std::sqrt((depth - 1) * size / rate / alpha), 1.0, most);
  const double low = std::floor(best), high = std::min(std::ceil(best), most);
  return static_cast<int>(time(low) <= time(high) ? low : high);
}

// Without a size: as many rounds of an early rank's share each as keep filling and draining the pipeline, q-1
// rounds, to a sixteenth.
int default_pieces(const BuildRequest& request, const LateRequest& asked) {
  const int n = asked.ranks;
  if (n == 1) return 1;
  const int depth = late_rank::least_rounds(n, 1);
  const double size = number_param(request, "size", 0, 0, 1e18);
  if (asked.grouped) {
    // Fine enough for equal shards in the ring's part, of which there are n.
    const int rest = (asked.groups - asked.cut) * asked.early();
    return asked.groups * asked.early() * (n / std::gcd(n, rest));
  }
  if (request.topology && size > 0) return best_pieces(*request.topology, size, depth);
  return asked.early() * std::max(1, (16 * (depth - 1) + asked.early() - 1) / asked.early());
}

Schedule build_late_rank(const BuildRequest& request) {
  Collective{request.kind, request.ranks, 1, 0}.check_ranks();
  const LateRequest asked = read(request);
  ScheduleBuilder schedule("late_rank", request, default_pieces(request, asked),
                           {"late", "arrivals", "phase", "groups", "cut", "size", "spread"});
  if (schedule.ranks() == 1) return schedule.finish();
  std::vector<int> ring(at(schedule.ranks()));
  std::iota(ring.begin(), ring.end(), 0);
  if (request.topology) ring = ring_order(*request.topology);
  std::vector<int> order = ring;  // the early ranks as in the ring, then the late ones as they come
  for (int rank : asked.late) {
    std::erase(order, rank);
    order.push_back(rank);
  }
  late_rank::Parts parts(schedule, order);
  const int slots = asked.grouped ? asked.groups * asked.early() : schedule.pieces();
  const int reduced = asked.grouped ? asked.cut * asked.early() : slots;
  if (reduced > 0) {
    const int group = asked.grouped ? asked.early() : reduced;
    parts.add_before(late_rank::reduce_to_owners(asked.early(), asked.owners(), reduced, group), slots);
    std::vector<int> cluster;  // of virtual ranks
    for (int rank : order)
      if (!asked.cluster.empty()) cluster.push_back(asked.cluster[at(rank)]);
    parts.add_after(*late_rank::after_arrival(asked.ranks, reduced, asked.arrivals, cluster), slots);
  }
  if (asked.is_cut()) parts.add_ring(schedule.block(reduced, slots).begin, ring);
  return parts.finish(request);
}

}  // namespace

Algorithm late_rank_allreduce() {
  return {
      .name = "late_rank",
      .description =
          "all but the late rank reduce while they wait for it; when it comes, it swaps piece after piece "
          "with "
          "the ranks that own the sums, and pieces spread by doubling: K-1+log2 n rounds after its arrival, "
          "half the ring's time for large buffers",
      .source =
          "Devraj et al., Efficient AllReduce with Stragglers (StragglAR), arXiv 2505.23523, generalised to "
          "any number of ranks, pieces and late ranks",
      .collectives = {CollectiveKind::AllReduce},
      .valid_ranks = "any",
      .accepts = any_ranks,
      .build = build_late_rank,
      .for_late_ranks = true,
  };
}

}  // namespace pycoll
