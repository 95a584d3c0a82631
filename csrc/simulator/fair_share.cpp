#include "simulator/fair_share.h"

#include <algorithm>
#include <functional>

namespace pycoll {

namespace {

constexpr double kFull = 1 + 1e-9;

}  // namespace

FairShare::FairShare(const SimulationPlan& plan)
    : plan_(plan),
      active_(plan.pairs.size()),
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
  return demand_[at(link)] > bandwidth(link) * kFull;
}

void FairShare::add(int32_t pair) {
  active_[at(pair)] = 1;
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

const std::vector<FairShare::Rate>& FairShare::settle() {
  rates_.clear();
  if (dirty_pairs_.empty() && dirty_links_.empty()) return rates_;
  ++filling_;
  gather_component();
  fill_component();
  dirty_pairs_.clear();
  dirty_links_.clear();
  return rates_;
}

void FairShare::gather(int32_t pair) {
  if (!active_[at(pair)] || gathered_pair_[at(pair)] == filling_) return;
  gathered_pair_[at(pair)] = filling_;
  pairs_.push_back(pair);
}

void FairShare::gather_component() {
  pairs_.clear();
  links_.clear();
  for (int32_t pair : dirty_pairs_) gather(pair);
  for (int32_t link : dirty_links_)  // may no longer be overloaded: its members go faster
    for (const Member& member : members_[at(link)]) gather(member.pair);
  for (size_t i = 0; i < pairs_.size(); ++i) {
    for (const Hop& hop : plan_.shared(pairs_[i])) {
      if (gathered_link_[at(hop.link)] == filling_ || !overloaded(hop.link)) continue;
      gathered_link_[at(hop.link)] = filling_;
      links_.push_back(hop.link);
      for (const Member& member : members_[at(hop.link)]) gather(member.pair);
    }
  }
}

// All rates rise together. A pair stops rising when a link of its own is full: one that it shares, or the
// narrowest of its route.
void FairShare::fill_component() {
  levels_.clear();
  for (int32_t link : links_) {
    double weight = 0;
    for (const Member& member : members_[at(link)]) weight += plan_.shared_hops[member.hop].share;
    weight_[at(link)] = weight;
    load_[at(link)] = 0;
    open_[at(link)] = static_cast<int32_t>(members_[at(link)].size());
    levels_.emplace_back(bandwidth(link) / weight, link);
  }
  std::make_heap(levels_.begin(), levels_.end(), std::greater<>());
  const auto alone = [&](int32_t pair) { return plan_.routes.rate[at(pair)]; };
  std::sort(pairs_.begin(), pairs_.end(), [&](int32_t a, int32_t b) { return alone(a) < alone(b); });

  size_t slowest = 0;  // of those that have not stopped
  while (true) {
    while (slowest < pairs_.size() && frozen_[at(pairs_[slowest])] == filling_) ++slowest;
    if (slowest == pairs_.size()) return;
    // Levels only rise as members stop, so an entry of the heap that is out of date stands too early.
    while (!levels_.empty()) {
      const auto [level, link] = levels_.front();
      const double now = (bandwidth(link) - load_[at(link)]) / weight_[at(link)];
      if (open_[at(link)] > 0 && now <= level) break;
      std::pop_heap(levels_.begin(), levels_.end(), std::greater<>());
      if (open_[at(link)] > 0) {
        levels_.back().first = now;
        std::push_heap(levels_.begin(), levels_.end(), std::greater<>());
      } else {
        levels_.pop_back();
      }
    }
    const int32_t pair = pairs_[slowest];
    if (levels_.empty() || alone(pair) <= levels_.front().first) {
      freeze(pair, alone(pair), plan_.pairs[at(pair)].narrowest);
      continue;
    }
    const auto [level, link] = levels_.front();
    for (const Member& member : members_[at(link)])
      if (frozen_[at(member.pair)] != filling_) freeze(member.pair, level, link);
  }
}

void FairShare::freeze(int32_t pair, double rate, int32_t link) {
  frozen_[at(pair)] = filling_;
  rates_.push_back({pair, rate, link});
  for (const Hop& hop : plan_.shared(pair)) {
    if (gathered_link_[at(hop.link)] != filling_) continue;
    load_[at(hop.link)] += hop.share * rate;
    weight_[at(hop.link)] -= hop.share;
    --open_[at(hop.link)];
  }
}

}  // namespace pycoll
