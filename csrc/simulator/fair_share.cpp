#include "simulator/fair_share.h"

#include <algorithm>
#include <functional>

namespace pycoll {

namespace {

// Loads and rates that differ by a smaller part differ by rounding.
constexpr double kRounding = 1e-12;

// So often the gathered pairs may turn out too few before all that are connected are taken.
constexpr int kLocalTries = 4;

}  // namespace

FairShare::FairShare(const SimulationPlan& plan)
    : plan_(plan),
      active_(plan.pairs.size()),
      rate_(plan.pairs.size()),
      bottleneck_(plan.pairs.size(), SimulationPlan::kNone),
      members_(plan.topology->links.size()),
      place_(plan.shared_hops.size()),
      demand_(plan.topology->links.size()),
      gathered_pair_(plan.pairs.size()),
      gathered_link_(plan.topology->links.size()),
      frozen_(plan.pairs.size()),
      load_(plan.topology->links.size()),
      weight_(plan.topology->links.size()),
      open_(plan.topology->links.size()) {}

// A link that could carry all its members at their own routes' rates limits none of them.
bool FairShare::overloaded(int32_t link) const {
  return demand_[at(link)] > bandwidth(link) * kOverload;
}

void FairShare::add(int32_t pair) {
  active_[at(pair)] = 1;
  rate_[at(pair)] = 0;
  dirty_pairs_.push_back(pair);
  for (size_t hop = plan_.shared_begin[at(pair)]; hop < plan_.shared_begin[at(pair) + 1]; ++hop) {
    const auto [link, share] = plan_.shared_hops[hop];
    place_[hop] = members_[at(link)].size();
    members_[at(link)].push_back({pair, hop});
    demand_[at(link)] += share * plan_.routes.rate[at(pair)];
  }
}

void FairShare::remove(int32_t pair) {
  active_[at(pair)] = 0;
  for (size_t hop = plan_.shared_begin[at(pair)]; hop < plan_.shared_begin[at(pair) + 1]; ++hop) {
    const auto [link, share] = plan_.shared_hops[hop];
    if (overloaded(link)) dirty_links_.push_back(link);
    auto& members = members_[at(link)];
    members[place_[hop]] = members.back();
    place_[members.back().hop] = place_[hop];
    members.pop_back();
    demand_[at(link)] -= share * plan_.routes.rate[at(pair)];
    if (members.empty()) demand_[at(link)] = 0;  // and no rounding errors are left
  }
}

const std::vector<int32_t>& FairShare::settle() {
  pairs_.clear();
  links_.clear();
  if (dirty_pairs_.empty() && dirty_links_.empty()) return pairs_;
  ++gathering_;
  for (int32_t pair : dirty_pairs_) gather(pair);
  for (int32_t link : dirty_links_)
    for (const Member& member : members_[at(link)])
      if (bottleneck_[at(member.pair)] == link) gather(member.pair);
  dirty_pairs_.clear();
  dirty_links_.clear();
  gather_links(0);
  fill();
  for (int tries = 1; gather_disturbed(); ++tries) {
    if (tries == kLocalTries) gather_connected();
    fill();
  }
  return pairs_;
}

void FairShare::gather(int32_t pair) {
  if (!active_[at(pair)] || gathered(pair)) return;
  gathered_pair_[at(pair)] = gathering_;
  pairs_.push_back(pair);
}

void FairShare::gather_links(size_t first_pair) {
  for (size_t i = first_pair; i < pairs_.size(); ++i) {
    for (const Hop& hop : plan_.shared(pairs_[i])) {
      if (gathered_link_[at(hop.link)] == gathering_ || !overloaded(hop.link)) continue;
      gathered_link_[at(hop.link)] = gathering_;
      links_.push_back(hop.link);
    }
  }
}

// Whoever shares an overloaded link with one that is gathered.
void FairShare::gather_connected() {
  size_t pair = 0;
  for (size_t link = 0; link < links_.size(); ++link) {
    for (const Member& member : members_[at(links_[link])]) gather(member.pair);
    gather_links(pair);
    pair = pairs_.size();
  }
}

// Those whose bottleneck is one no more at the new rates of the gathered ones, and those that are faster on a
// link than one whose bottleneck it is to be. False: there are none.
bool FairShare::gather_disturbed() {
  const size_t before = pairs_.size();
  const size_t links = links_.size();
  for (size_t i = 0; i < links; ++i) {
    const int32_t link = links_[i];
    double load = 0, fastest = 0, level = bandwidth(link) / kRounding;
    for (const Member& member : members_[at(link)]) {
      const double rate = rate_[at(member.pair)];
      load += share(member) * rate;
      fastest = std::max(fastest, rate);
      if (bottleneck_[at(member.pair)] == link && gathered(member.pair)) level = std::min(level, rate);
    }
    const bool full = load >= bandwidth(link) * (1 - kRounding);
    for (const Member& member : members_[at(link)]) {
      if (gathered(member.pair)) continue;
      const double rate = rate_[at(member.pair)];
      const bool fast_enough = full && rate >= fastest * (1 - kRounding);
      const bool too_fast = rate > level * (1 + kRounding);
      if (too_fast || (bottleneck_[at(member.pair)] == link && !fast_enough)) gather(member.pair);
    }
  }
  gather_links(before);
  return pairs_.size() > before;
}

// All rates of gathered pairs rise together, past those of others, which stay. A pair stops rising when a
// link of its own is full: one that it shares, or the narrowest of its route.
void FairShare::fill() {
  ++filling_;
  levels_.clear();
  for (int32_t link : links_) {
    double weight = 0, load = 0;
    int32_t open = 0;
    for (const Member& member : members_[at(link)]) {
      if (gathered(member.pair)) {
        weight += share(member);
        ++open;
      } else {
        load += share(member) * rate_[at(member.pair)];
      }
    }
    weight_[at(link)] = weight;
    load_[at(link)] = std::min(load, bandwidth(link));
    open_[at(link)] = open;
    levels_.emplace_back((bandwidth(link) - load_[at(link)]) / weight, link);
  }
  std::make_heap(levels_.begin(), levels_.end(), std::greater<>());
  const auto alone = [&](int32_t pair) { return plan_.routes.rate[at(pair)]; };
  slowest_first_ = pairs_;
  std::sort(slowest_first_.begin(), slowest_first_.end(),
            [&](int32_t a, int32_t b) { return alone(a) < alone(b); });

  size_t slowest = 0;  // of those that have not stopped
  while (true) {
    while (slowest < pairs_.size() && frozen_[at(slowest_first_[slowest])] == filling_) ++slowest;
    if (slowest == pairs_.size()) return;
    // Levels only rise as members stop, so an entry of the heap that is out of date stands too early.
    while (!levels_.empty()) {
      const auto [level, link] = levels_.front();
      const double now = std::max(0.0, bandwidth(link) - load_[at(link)]) / weight_[at(link)];
      if (open_[at(link)] > 0 && now <= level) break;
      std::pop_heap(levels_.begin(), levels_.end(), std::greater<>());
      if (open_[at(link)] > 0) {
        levels_.back().first = now;
        std::push_heap(levels_.begin(), levels_.end(), std::greater<>());
      } else {
        levels_.pop_back();
      }
    }
    const int32_t pair = slowest_first_[slowest];
    if (levels_.empty() || alone(pair) <= levels_.front().first) {
      freeze(pair, alone(pair), plan_.pairs[at(pair)].narrowest);
      continue;
    }
    const auto [level, link] = levels_.front();
    for (const Member& member : members_[at(link)])
      if (gathered(member.pair) && frozen_[at(member.pair)] != filling_) freeze(member.pair, level, link);
  }
}

void FairShare::freeze(int32_t pair, double rate, int32_t link) {
  frozen_[at(pair)] = filling_;
  rate_[at(pair)] = rate;
  bottleneck_[at(pair)] = link;
  for (const Hop& hop : plan_.shared(pair)) {
    if (gathered_link_[at(hop.link)] != gathering_) continue;
    load_[at(hop.link)] += hop.share * rate;
    weight_[at(hop.link)] -= hop.share;
    --open_[at(hop.link)];
  }
}

}  // namespace pycoll
