// What tests from Python cannot see of the simulator: that rates are max-min fair after every single change,
// on machines of some size; and, with sanitizers, that its flat arrays are read within their bounds.
#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "algorithms/registry.h"
#include "check.h"
#include "core/error.h"
#include "simulator/fair_share.h"
#include "simulator/plan.h"
#include "simulator/simulate.h"
#include "topology/topology.h"

namespace {

using namespace pycoll;
using test::check;

constexpr double kClose = 1e-9;

void join(Topology& topology, int a, int b, double bandwidth, double latency = 1e-6) {
  for (const auto& [from, to] : {std::pair{a, b}, std::pair{b, a}}) {
    const std::string name =
        std::to_string(from) + "->" + std::to_string(to) + "#" + std::to_string(topology.links.size());
    topology.links.push_back({from, to, bandwidth, latency, name});
  }
}

int add_node(Topology& topology, NodeKind kind) {
  Node node;
  node.name = "n" + std::to_string(topology.nodes.size());
  node.kind = kind;
  topology.nodes.push_back(node);
  return static_cast<int>(topology.nodes.size()) - 1;
}

// Leaves of eight ranks under parallel spines, oversubscribed; each device's link differs a little where
// `uneven`.
std::shared_ptr<Topology> two_tiers(int ranks, int spines, bool uneven, std::mt19937& random) {
  auto topology = std::make_shared<Topology>();
  topology->name = "two tiers";
  std::uniform_real_distribution<double> some(0.5, 1.5);
  for (int rank = 0; rank < ranks; ++rank) topology->ranks.push_back(add_node(*topology, NodeKind::Device));
  std::vector<int> leaves, tops;
  for (int leaf = 0; leaf < (ranks + 7) / 8; ++leaf) leaves.push_back(add_node(*topology, NodeKind::Switch));
  for (int spine = 0; spine < spines; ++spine) tops.push_back(add_node(*topology, NodeKind::Switch));
  for (int rank = 0; rank < ranks; ++rank)
    join(*topology, rank, leaves[static_cast<size_t>(rank / 8)], uneven ? 1e9 * some(random) : 1e9);
  for (int leaf : leaves)
    for (int spine : tops) join(*topology, leaf, spine, 3e9 / spines);
  topology->check();
  return topology;
}

std::shared_ptr<Schedule> built(const char* algorithm, CollectiveKind kind, int ranks) {
  BuildRequest request;
  request.kind = kind;
  request.ranks = ranks;
  return std::make_shared<Schedule>(build(algorithm, request));
}

// Every transfer on its way is limited by its own route alone, or by a full link on which none is faster; no
// link carries more than it can.
void check_fair(const SimulationPlan& plan, const FairShare& sharing, const std::vector<bool>& active) {
  const size_t links = plan.topology->links.size();
  std::vector<double> load(links), fastest(links);
  for (size_t pair = 0; pair < active.size(); ++pair) {
    if (!active[pair]) continue;
    const double rate = sharing.rate(static_cast<int32_t>(pair));
    for (const Hop& hop : plan.routes.of(pair)) {
      load[static_cast<size_t>(hop.link)] += hop.share * rate;
      fastest[static_cast<size_t>(hop.link)] = std::max(fastest[static_cast<size_t>(hop.link)], rate);
    }
  }
  const auto full = [&](size_t link) {
    return load[link] >= plan.topology->links[link].bandwidth * (1 - kClose);
  };
  bool none_overloaded = true, all_limited = true;
  for (size_t link = 0; link < links; ++link)
    none_overloaded &= load[link] <= plan.topology->links[link].bandwidth * (1 + kClose);
  for (size_t pair = 0; pair < active.size(); ++pair) {
    if (!active[pair]) continue;
    const double rate = sharing.rate(static_cast<int32_t>(pair));
    bool limited = false;
    for (const Hop& hop : plan.routes.of(pair)) {
      const auto link = static_cast<size_t>(hop.link);
      limited |= full(link) && rate >= fastest[link] * (1 - kClose);
    }
    all_limited &= limited;
  }
  check(none_overloaded, "a link carries more than it can");
  check(all_limited, "a transfer could go faster");
}

void rates_are_fair_after_every_change(int ranks, int spines, bool uneven) {
  std::mt19937 random(static_cast<unsigned>(ranks * 100 + spines * 10 + uneven));
  const auto topology = two_tiers(ranks, spines, uneven, random);
  const auto schedule = built("direct", CollectiveKind::AllToAll, ranks);
  const SimulationPlan plan = make_simulation_plan(schedule, topology, Routing::Spread, 0);
  FairShare sharing(plan);
  std::vector<bool> active(plan.pairs.size());
  for (int change = 0; change < 500 && test::failures == 0; ++change) {
    const int at_once = random() % 10 == 0 ? 40 : 1 + static_cast<int>(random() % 2);
    for (int i = 0; i < at_once; ++i) {
      const size_t pair = random() % active.size();
      if (active[pair])
        sharing.remove(static_cast<int32_t>(pair));
      else
        sharing.add(static_cast<int32_t>(pair));
      active[pair] = !active[pair];
    }
    sharing.settle();
    check_fair(plan, sharing, active);
  }
}

// The ring on a flat switch, in schedule order and with the transfers in any other.
void ring_takes_what_the_formula_says() {
  const int ranks = 12;
  auto topology = std::make_shared<Topology>();
  topology->name = "flat";
  for (int rank = 0; rank < ranks; ++rank) topology->ranks.push_back(add_node(*topology, NodeKind::Device));
  const int hub = add_node(*topology, NodeKind::Switch);
  for (int rank = 0; rank < ranks; ++rank) join(*topology, rank, hub, 1e9, 1e-6);
  for (Node& node : topology->nodes) node.overhead = 3e-6;
  const double expected = 2 * (ranks - 1) * (5e-6 + 6e6 / ranks / 1e9);
  std::mt19937 random(1);
  auto schedule = built("ring", CollectiveKind::AllReduce, ranks);
  for (int ports : {0, 1, 2}) {
    for (int rank = 0; rank < ranks; ++rank) topology->nodes[static_cast<size_t>(rank)].ports = ports;
    const SimulationPlan plan = make_simulation_plan(schedule, topology, Routing::Spread, 0);
    const SimulationResult result = simulate(plan, 6e6, {}, [] {});
    check(std::abs(result.time / expected - 1) < kClose, "ring, ports " + std::to_string(ports));
    check(result.critical_path.size() == 2 * (ranks - 1), "length of the critical path");
    std::shuffle(schedule->transfers.begin(), schedule->transfers.end(), random);
  }
}

// Every algorithm, with reductions that take time, ports, late ranks and hashed routes.
void all_transfers_end() {
  std::mt19937 random(2);
  for (const Algorithm& algorithm : algorithms()) {
    for (const int ranks : {1, 2, 7, 16}) {
      if (!algorithm.accepts(ranks)) continue;
      for (CollectiveKind kind : algorithm.collectives) {
        const auto topology = two_tiers(ranks, 2, true, random);
        for (int rank = 0; rank < ranks; ++rank) {
          Node& device = topology->nodes[static_cast<size_t>(rank)];
          device.ports = static_cast<int>(random() % 3);
          device.overhead = 1e-6;
          if (random() % 2 == 0) device.reduce_rate = 2e9;
        }
        std::vector<double> arrivals(static_cast<size_t>(ranks));
        arrivals[random() % arrivals.size()] = 1e-3;
        const auto schedule = built(std::string(algorithm.name).c_str(), kind, ranks);
        const SimulationPlan plan = make_simulation_plan(schedule, topology, Routing::Hash, random());
        const double size = kind == CollectiveKind::Barrier ? 0 : 1e6;
        const SimulationResult result = simulate(plan, size, arrivals, [] {});
        bool in_order = true;
        for (size_t i = 0; i < schedule->transfers.size(); ++i)
          in_order &= result.start[i] < result.sent[i] && result.sent[i] < result.done[i] &&
                      result.done[i] <= result.time;
        check(in_order, std::string(algorithm.name) + ": a transfer did not end");
      }
    }
  }
}

void a_poll_may_stop_it() {
  std::mt19937 random(3);
  const auto topology = two_tiers(64, 1, true, random);
  const auto schedule = built("recursive_halving_doubling", CollectiveKind::AllReduce, 64);
  const SimulationPlan plan = make_simulation_plan(schedule, topology, Routing::Spread, 0);
  test::check_throws<Aborted>(
      [&] {
        for (int i = 0; i < 100000; ++i) simulate(plan, 1e9, {}, [] { throw Aborted("enough"); });
      },
      "enough");
}

}  // namespace

int main() {
  test::run("rates are fair: one spine", [] { rates_are_fair_after_every_change(24, 1, false); });
  test::run("rates are fair: uneven", [] { rates_are_fair_after_every_change(24, 1, true); });
  test::run("rates are fair: parallel spines", [] { rates_are_fair_after_every_change(32, 4, true); });
  test::run("rates are fair: many ranks", [] { rates_are_fair_after_every_change(64, 3, true); });
  test::run("ring takes what the formula says", ring_takes_what_the_formula_says);
  test::run("all transfers end", all_transfers_end);
  test::run("a poll may stop it", a_poll_may_stop_it);
  return test::result();
}
