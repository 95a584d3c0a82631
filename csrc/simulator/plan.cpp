#include "simulator/plan.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <string>
#include <unordered_set>
#include <utility>

#include "core/error.h"

namespace pycoll {

namespace {

constexpr int32_t kNone = SimulationPlan::kNone;

// Items 0..count-1 by key, equal keys in order.
struct Buckets {
  std::vector<size_t> begin;
  std::vector<int32_t> items;

  template <typename KeyOf>
  Buckets(size_t keys, size_t count, KeyOf key_of) : begin(keys + 1), items(count) {
    for (size_t i = 0; i < count; ++i) ++begin[static_cast<size_t>(key_of(i)) + 1];
    std::partial_sum(begin.begin(), begin.end(), begin.begin());
    std::vector<size_t> next(begin.begin(), begin.end() - 1);
    for (size_t i = 0; i < count; ++i)
      items[next[static_cast<size_t>(key_of(i))]++] = static_cast<int32_t>(i);
  }

  std::span<const int32_t> of(size_t key) const {
    return {items.data() + begin[key], begin[key + 1] - begin[key]};
  }
};

class Planner {
 public:
  Planner(SimulationPlan& plan, Routing routing, uint64_t seed)
      : plan_(plan), schedule_(*plan.schedule), topology_(*plan.topology), routing_(routing), seed_(seed) {}

  void plan() {
    require_fit();
    put_in_order();
    find_pairs();
    find_queues();
    find_versions();
    find_routes_of_pairs();
    find_shared_links();
  }

 private:
  static size_t at(int32_t index) { return static_cast<size_t>(index); }
  const Transfer& transfer(size_t step) const {
    return schedule_.transfers[at(plan_.transfer_of(static_cast<int32_t>(step)))];
  }
  size_t count() const { return schedule_.transfers.size(); }
  size_t ranks() const { return at(schedule_.ranks()); }

  void require_fit() const {
    if (schedule_.ranks() != topology_.rank_count())
      throw InvalidArgument("the schedule is for " + std::to_string(schedule_.ranks()) +
                            " ranks, but topology '" + topology_.name + "' has " +
                            std::to_string(topology_.rank_count()));
    if (count() > static_cast<size_t>(INT32_MAX / 2))
      throw InvalidArgument("the schedule has " + std::to_string(count()) +
                            " transfers; more than 2^30 cannot be simulated");
    for (size_t i = 0; i < count(); ++i) {
      const Transfer& t = schedule_.transfers[i];
      const auto within = [](int value, int limit) { return value >= 0 && value < limit; };
      if (t.round < 0 || !within(t.src, schedule_.ranks()) || !within(t.dst, schedule_.ranks()) ||
          !within(t.piece, schedule_.pieces()) || t.src == t.dst)
        throw ScheduleError("transfer " + std::to_string(i) + " of the schedule (round " +
                            std::to_string(t.round) + ", rank " + std::to_string(t.src) + " to rank " +
                            std::to_string(t.dst) + ", piece " + std::to_string(t.piece) +
                            ") names what does not exist: verify the schedule");
    }
  }

  void put_in_order() {
    const auto by_round = [](const Transfer& a, const Transfer& b) { return a.round < b.round; };
    if (!std::is_sorted(schedule_.transfers.begin(), schedule_.transfers.end(), by_round)) {
      plan_.index.resize(count());
      std::iota(plan_.index.begin(), plan_.index.end(), 0);
      std::stable_sort(plan_.index.begin(), plan_.index.end(), [&](int32_t a, int32_t b) {
        return by_round(schedule_.transfers[at(a)], schedule_.transfers[at(b)]);
      });
    }
    plan_.steps.resize(count());
    for (size_t i = 0; i < count(); ++i) plan_.steps[i].action = transfer(i).action;
  }

  void find_pairs() {
    const Buckets by_source(ranks(), count(), [&](size_t step) { return transfer(step).src; });
    std::vector<int32_t> pair_to(ranks());  // of the source at hand
    std::vector<int32_t> last;              // step of each pair
    for (size_t src = 0; src < ranks(); ++src) {
      std::fill(pair_to.begin(), pair_to.end(), kNone);
      for (int32_t step : by_source.of(src)) {
        const int32_t dst = transfer(at(step)).dst;
        int32_t& pair = pair_to[at(dst)];
        if (pair == kNone) {
          pair = static_cast<int32_t>(plan_.pairs.size());
          plan_.pairs.push_back({static_cast<int32_t>(src), dst, step, 0, kNone});
          last.push_back(kNone);
        }
        const int32_t before = std::exchange(last[at(pair)], step);
        if (before != kNone) plan_.steps[at(before)].next_in_pair = step;
        plan_.steps[at(step)].pair = pair;
        plan_.steps[at(step)].opens_message =
            before == kNone || transfer(at(before)).round != transfer(at(step)).round;
        ++plan_.pairs[at(pair)].transfers;
      }
    }
  }

  // A device with ports starts its sends, and its receives, in this order.
  void find_queues() {
    plan_.first_send.assign(ranks(), kNone);
    plan_.first_receive.assign(ranks(), kNone);
    for (size_t step = count(); step-- > 0;) {
      const Transfer& t = transfer(step);
      plan_.steps[step].next_send = std::exchange(plan_.first_send[at(t.src)], static_cast<int32_t>(step));
      plan_.steps[step].next_receive =
          std::exchange(plan_.first_receive[at(t.dst)], static_cast<int32_t>(step));
    }
  }

  // Piece by piece, since no two pieces ever meet.
  void find_versions() {
    const Buckets by_piece(at(schedule_.pieces()), count(),
                           [&](size_t step) { return transfer(step).piece; });
    std::vector<int32_t> version(ranks());  // that each rank holds
    std::vector<int32_t> made_in(ranks());  // round
    const auto held = [&](int32_t rank) {
      if (version[at(rank)] == kNone) version[at(rank)] = add_version();
      return version[at(rank)];
    };
    plan_.versions.reserve(2 * count());
    for (size_t piece = 0; piece < at(schedule_.pieces()); ++piece) {
      std::fill(version.begin(), version.end(), kNone);
      std::fill(made_in.begin(), made_in.end(), kNone);
      const std::span<const int32_t> order = by_piece.of(piece);
      for (size_t first = 0, last; first < order.size(); first = last) {
        const int32_t round = transfer(at(order[first])).round;
        for (last = first; last < order.size() && transfer(at(order[last])).round == round; ++last)
          plan_.steps[at(order[last])].reads = held(transfer(at(order[last])).src);
        for (size_t i = first; i < last; ++i) {
          const int32_t dst = transfer(at(order[i])).dst;
          const int32_t before = held(dst);
          if (made_in[at(dst)] != round) {
            made_in[at(dst)] = round;
            const int32_t made = version[at(dst)] = add_version();
            plan_.versions[at(before)].next = made;
            if (!plan_.versions[at(before)].there()) ++plan_.versions[at(made)].holds;
          }
          plan_.steps[at(order[i])].writes = version[at(dst)];
          ++plan_.versions[at(version[at(dst)])].writes_to_come;
        }
      }
    }
    plan_.versions.shrink_to_fit();
    for (size_t step = count(); step-- > 0;) {
      SimulationPlan::Step& reader = plan_.steps[step];
      SimulationPlan::Version& read = plan_.versions[at(reader.reads)];
      reader.next_reader = std::exchange(read.first_reader, static_cast<int32_t>(step));
      if (read.next != kNone) ++plan_.versions[at(read.next)].holds;
    }
  }

  int32_t add_version() {
    plan_.versions.emplace_back();
    return static_cast<int32_t>(plan_.versions.size() - 1);
  }

  void find_routes_of_pairs() {
    std::vector<std::pair<int, int>> ends;
    for (const SimulationPlan::Pair& pair : plan_.pairs) ends.emplace_back(pair.src, pair.dst);
    plan_.routes = find_routes(topology_, ends, routing_, seed_);
    for (size_t pair = 0; pair < plan_.pairs.size(); ++pair) {
      int32_t& narrowest = plan_.pairs[pair].narrowest;
      for (const Hop& hop : plan_.routes.of(pair)) {
        const double rate = topology_.links[at(hop.link)].bandwidth / hop.share;
        if (rate <= plan_.routes.rate[pair] * kOverload && (narrowest == kNone || hop.link < narrowest))
          narrowest = hop.link;
      }
    }
  }

  void find_shared_links() {
    std::vector<double> load(topology_.links.size());
    for (size_t pair = 0; pair < plan_.pairs.size(); ++pair)
      for (const Hop& hop : plan_.routes.of(pair)) load[at(hop.link)] += hop.share * plan_.routes.rate[pair];
    std::vector<bool> limits(topology_.links.size());
    std::unordered_set<uint64_t> seen;
    const std::vector<uint64_t> patterns = usage_patterns();
    for (size_t link = 0; link < topology_.links.size(); ++link)
      limits[link] =
          load[link] > topology_.links[link].bandwidth * kOverload && seen.insert(patterns[link]).second;
    plan_.shared_begin.assign(1, 0);
    for (size_t pair = 0; pair < plan_.pairs.size(); ++pair) {
      for (const Hop& hop : plan_.routes.of(pair))
        if (limits[at(hop.link)]) plan_.shared_hops.push_back(hop);
      plan_.shared_begin.push_back(plan_.shared_hops.size());
    }
  }

  // By link, a hash of the part of its bandwidth that each pair's bytes take. Links with equal hashes, such
  // as those from a switch to all its parallel spines, are full at the same time, and one stands for all.
  std::vector<uint64_t> usage_patterns() const {
    std::vector<uint64_t> patterns(topology_.links.size());
    for (size_t pair = 0; pair < plan_.pairs.size(); ++pair)
      for (const Hop& hop : plan_.routes.of(pair)) {
        const double part = hop.share / topology_.links[at(hop.link)].bandwidth;
        patterns[at(hop.link)] += mix_bits(mix_bits(pair) ^ rounded_bits(part));
      }
    return patterns;
  }

  // But for the last digits, in which equal quotients may differ.
  static uint64_t rounded_bits(double value) {
    constexpr int kDropped = 16;
    return (std::bit_cast<uint64_t>(value) + (uint64_t{1} << (kDropped - 1))) >> kDropped;
  }

  SimulationPlan& plan_;
  const Schedule& schedule_;
  const Topology& topology_;
  const Routing routing_;
  const uint64_t seed_;
};

}  // namespace

SimulationPlan make_simulation_plan(std::shared_ptr<const Schedule> schedule,
                                    std::shared_ptr<const Topology> topology, Routing routing,
                                    uint64_t seed) {
  SimulationPlan plan;
  plan.schedule = std::move(schedule);
  plan.topology = std::move(topology);
  Planner(plan, routing, seed).plan();
  return plan;
}

}  // namespace pycoll
