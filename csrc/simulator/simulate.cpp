#include "simulator/simulate.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>
#include <utility>

#include "core/error.h"
#include "simulator/critical_path.h"
#include "simulator/events.h"
#include "simulator/fair_share.h"
#include "simulator/trace.h"

namespace pycoll {

namespace {

constexpr int32_t kNone = SimulationPlan::kNone;

// Events whose times differ by less were to be at the same time, but for rounding.
constexpr double kSameMoment = 1 + 1e-12;

// Rates that differ by a smaller part differ by rounding.
constexpr double kSameRate = 1e-13;

class Run {
 public:
  Run(const SimulationPlan& plan, double size, const std::vector<double>& arrivals, FunctionRef<void()> poll)
      : plan_(plan),
        topology_(*plan.topology),
        bytes_(size / plan.schedule->pieces()),
        poll_(poll),
        ends_(plan.pairs.size()),
        sharing_(plan),
        versions_(plan.versions),
        lanes_(plan.pairs.size()),
        ranks_(plan.first_send.size()) {
    for (size_t pair = 0; pair < lanes_.size(); ++pair) lanes_[pair].next = plan.pairs[pair].first;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      const Node& device = topology_.device_of(static_cast<int>(rank));
      ranks_[rank] = {.device = &device,
                      .next_send = plan.first_send[rank],
                      .next_receive = plan.first_receive[rank],
                      .here = arrivals.empty() || arrivals[rank] == 0};
      adds_at_once_ &= device.reduce_rate == kUnlimited || bytes_ == 0;
    }
    if (!adds_at_once_) parked_.assign(plan.versions.size(), kNone);
    if (!adds_at_once_) next_parked_.assign(plan.steps.size(), kNone);
    trace_.resize(plan.steps.size());
    result_.rank_times.assign(ranks_.size(), 0);
    last_.resize(ranks_.size());
    if (!arrivals.empty()) expect(arrivals);
  }

  SimulationResult run() {
    for (const Lane& lane : lanes_) consider(lane.next, {kNone, Reason::Nothing});
    start_candidates();
    settle();
    while ((now_ = next_time()) < kNeverHappens) {
      while (next_time() <= now_ * kSameMoment) {
        do handle_next();
        while (next_time() <= now_ * kSameMoment);
        settle();
      }
    }
    return finish();
  }

 private:
  using Step = SimulationPlan::Step;
  using Version = SimulationPlan::Version;

  struct Cause {
    int32_t step = kNone;
    Reason reason = Reason::Nothing;
  };

  // From one rank to another. Transfers go one by one.
  struct Lane {
    int32_t next = kNone;  // step that is on its way, or is to start next
    bool busy = false;
    bool leaving = false;  // nothing is on its way, but its share of the links is not given back yet
    double left = 0;       // bytes, at `since`
    double rate = 0;
    double since = 0;
    int32_t link = kNone;  // that limits it now, for `limited` seconds before `since`
    double limited = 0;
    int32_t longest_link = kNone;  // of those before
    double longest = 0;
  };

  struct RankState {
    const Node* device = nullptr;
    int32_t next_send = kNone;
    int32_t next_receive = kNone;
    bool here = true;
    int sending = 0;
    int receiving = 0;
    double adder_free = 0;  // additions of a device run one after the other
  };

  struct Candidate {
    int32_t step;
    Cause cause;
  };

  static size_t at(int32_t index) { return static_cast<size_t>(index); }
  const Step& step(int32_t index) const { return plan_.steps[at(index)]; }
  const SimulationPlan::Pair& pair_of(int32_t index) const { return plan_.pairs[at(step(index).pair)]; }
  RankState& source_of(int32_t index) { return ranks_[at(pair_of(index).src)]; }
  RankState& destination_of(int32_t index) { return ranks_[at(pair_of(index).dst)]; }

  void expect(const std::vector<double>& arrivals) {
    result_.rank_times = arrivals;
    lanes_into_.resize(ranks_.size());
    for (size_t pair = 0; pair < plan_.pairs.size(); ++pair)
      lanes_into_[at(plan_.pairs[pair].dst)].push_back(static_cast<int32_t>(pair));
    for (size_t rank = 0; rank < ranks_.size(); ++rank)
      if (!ranks_[rank].here) events_.push(arrivals[rank], EventKind::Come, static_cast<int32_t>(rank));
  }

  double next_time() const { return std::min(events_.next_time(), ends_.next_time()); }

  void handle_next() {
    if (++events_seen_ % kEventsBetweenPolls == 0) poll_now_and_then();
    if (ends_.next_time() <= events_.next_time())
      sent(ends_.pop());
    else
      handle(events_.pop());
    start_candidates();
  }

  void handle(const Event& event) {
    switch (event.kind) {
      case EventKind::Begin:
        return begin(event.id);
      case EventKind::Arrive:
        return arrive(event.id);
      case EventKind::Added:
        return stored(event.id);
      case EventKind::Come:
        return come(event.id);
    }
  }

  // ---- Starting. A transfer is considered whenever something that it may have waited for has happened.

  void consider(int32_t index, Cause cause) {
    if (index != kNone) candidates_.push_back({index, cause});
  }

  void start_candidates() {
    while (!candidates_.empty()) {
      const Candidate candidate = candidates_.back();
      candidates_.pop_back();
      if (may_start(candidate.step)) start(candidate.step, candidate.cause);
    }
  }

  bool may_start(int32_t index) {
    const Lane& lane = lanes_[at(step(index).pair)];
    if (lane.next != index || lane.busy || !versions_[at(step(index).reads)].there()) return false;
    const RankState& src = source_of(index);
    const RankState& dst = destination_of(index);
    const auto port_is_free = [&](const RankState& rank, int32_t next, int in_use) {
      return rank.device->ports == 0 || (next == index && in_use < rank.device->ports);
    };
    return src.here && dst.here && port_is_free(src, src.next_send, src.sending) &&
           port_is_free(dst, dst.next_receive, dst.receiving);
  }

  void start(int32_t index, Cause cause) {
    if (now_ == 0) cause = {};  // who starts at once has not waited
    trace_[at(index)] = {.start = now_, .cause = cause.step, .reason = cause.reason};
    RankState& src = source_of(index);
    RankState& dst = destination_of(index);
    if (src.device->ports > 0) {
      ++src.sending;
      src.next_send = step(index).next_send;
      consider(src.next_send, {index, Reason::SendOrder});
    }
    if (dst.device->ports > 0) {
      ++dst.receiving;
      dst.next_receive = step(index).next_receive;
      consider(dst.next_receive, {index, Reason::ReceiveOrder});
    }
    const int32_t pair = step(index).pair;
    Lane& lane = lanes_[at(pair)];
    lane.busy = true;
    const double begins = now_ + (step(index).opens_message ? src.device->overhead : 0);
    if (plan_.shared(pair).empty() || bytes_ == 0) {  // nothing can slow it down
      lane.link = plan_.pairs[at(pair)].narrowest;
      lane.limited = lane.longest = 0;
      ends_.set(pair, begins + bytes_ / plan_.routes.rate[at(pair)]);
    } else if (begins > now_) {
      events_.push(begins, EventKind::Begin, pair);
    } else {
      begin(pair);
    }
  }

  void begin(int32_t pair) {
    Lane& lane = lanes_[at(pair)];
    lane.left = bytes_;
    lane.since = now_;
    lane.limited = lane.longest = 0;
    if (lane.leaving) {  // the next bytes follow the last ones: for the links nothing has changed
      lane.leaving = false;
      expect_end(pair);
      return;
    }
    lane.rate = 0;
    lane.link = kNone;
    sharing_.add(pair);
  }

  void expect_end(int32_t pair) {
    const Lane& lane = lanes_[at(pair)];
    ends_.set(pair, now_ + lane.left / lane.rate);
  }

  // ---- Moving

  void settle() {
    for (int32_t pair : leaving_)
      if (std::exchange(lanes_[at(pair)].leaving, false)) sharing_.remove(pair);
    leaving_.clear();
    for (int32_t pair : sharing_.settle()) {
      Lane& lane = lanes_[at(pair)];
      const double rate = sharing_.rate(pair);
      const int32_t link = sharing_.bottleneck(pair);
      const bool same_rate = std::abs(rate - lane.rate) <= kSameRate * rate;
      if (same_rate && link == lane.link) continue;
      advance(lane);
      if (link != lane.link) {
        if (lane.limited > lane.longest) {
          lane.longest = lane.limited;
          lane.longest_link = lane.link;
        }
        lane.link = link;
        lane.limited = 0;
      }
      if (same_rate) continue;
      lane.rate = rate;
      expect_end(pair);
    }
    if (!to_add_.empty()) begin_additions();
  }

  void advance(Lane& lane) {
    const double seconds = now_ - lane.since;
    lane.left = std::max(0.0, lane.left - seconds * lane.rate);
    lane.limited += seconds;
    lane.since = now_;
  }

  void sent(int32_t pair) {
    Lane& lane = lanes_[at(pair)];
    const int32_t index = lane.next;
    if (!plan_.shared(pair).empty() && bytes_ > 0) {
      advance(lane);
      lane.leaving = true;
      leaving_.push_back(pair);
    }
    Trace& trace = trace_[at(index)];
    trace.sent = now_;
    trace.link = lane.limited >= lane.longest ? lane.link : lane.longest_link;
    lane.busy = false;
    lane.next = step(index).next_in_pair;
    // Where several let the same transfer start, the one considered last is named as the reason.
    RankState& src = source_of(index);
    RankState& dst = destination_of(index);
    if (dst.device->ports > 0) {
      --dst.receiving;
      consider(dst.next_receive, {index, Reason::ReceivePort});
    }
    if (src.device->ports > 0) {
      --src.sending;
      consider(src.next_send, {index, Reason::SendPort});
    }
    consider(lane.next, {index, Reason::Turn});
    busy_until_now(pair_of(index).src, {index, Reason::Reading});
    release(versions_[at(step(index).reads)].next, {index, Reason::Reading});
    const double latency = plan_.routes.latency[at(pair)];
    if (latency > 0)
      events_.push(now_ + latency, EventKind::Arrive, index);
    else
      arrive(index);
  }

  // ---- Arriving

  void arrive(int32_t index) {
    if (adds_at_once_ || step(index).action == Action::Copy ||
        destination_of(index).device->reduce_rate == kUnlimited) {
      stored(index);
    } else if (const int32_t version = step(index).writes; versions_[at(version)].holds == 0) {
      to_add_.push_back(index);
    } else {
      next_parked_[at(index)] = std::exchange(parked_[at(version)], index);
    }
  }

  // In schedule order where several come at one moment, so that the order of events makes no difference.
  void begin_additions() {
    std::sort(to_add_.begin(), to_add_.end());
    for (int32_t index : to_add_) {
      RankState& rank = destination_of(index);
      rank.adder_free = std::max(now_, rank.adder_free) + bytes_ / rank.device->reduce_rate;
      events_.push(rank.adder_free, EventKind::Added, index);
    }
    to_add_.clear();
  }

  void stored(int32_t index) {
    trace_[at(index)].done = now_;
    busy_until_now(pair_of(index).dst, {index, Reason::Data});
    Version& version = versions_[at(step(index).writes)];
    --version.writes_to_come;
    if (version.there()) there(step(index).writes, {index, Reason::Data});
  }

  // One thing fewer keeps a version's writes from taking effect.
  void release(int32_t index, Cause cause) {
    if (index == kNone || --versions_[at(index)].holds > 0) return;
    if (!adds_at_once_)
      for (int32_t waiting = std::exchange(parked_[at(index)], kNone); waiting != kNone;
           waiting = next_parked_[at(waiting)])
        to_add_.push_back(waiting);
    if (versions_[at(index)].there()) there(index, cause);
  }

  void there(int32_t index, Cause cause) {
    const Version& version = versions_[at(index)];
    for (int32_t reader = version.first_reader; reader != kNone; reader = step(reader).next_reader)
      consider(reader, cause);
    release(version.next, cause);
  }

  void come(int32_t rank) {
    ranks_[at(rank)].here = true;
    const auto from_it = std::ranges::equal_range(plan_.pairs, rank, {}, &SimulationPlan::Pair::src);
    for (const SimulationPlan::Pair& pair : from_it)
      consider(lanes_[static_cast<size_t>(&pair - plan_.pairs.data())].next, {kNone, Reason::Arrival});
    for (int32_t pair : lanes_into_[at(rank)]) consider(lanes_[at(pair)].next, {kNone, Reason::Arrival});
  }

  // ---- Ending

  void busy_until_now(int32_t rank, Cause cause) {
    result_.rank_times[at(rank)] = std::max(result_.rank_times[at(rank)], now_);
    last_[at(rank)] = cause;
  }

  SimulationResult finish() {
    const auto latest = std::max_element(result_.rank_times.begin(), result_.rank_times.end());
    result_.time = *latest;
    const Cause last = last_[static_cast<size_t>(latest - result_.rank_times.begin())];
    result_.critical_path =
        critical_path(plan_, trace_, last.step, last.reason == Reason::Data, result_.time);
    result_.link_bytes.assign(topology_.links.size(), 0);
    for (size_t pair = 0; pair < plan_.pairs.size(); ++pair)
      for (const Hop& hop : plan_.routes.of(pair))
        result_.link_bytes[at(hop.link)] += hop.share * bytes_ * plan_.pairs[pair].transfers;
    record(plan_, trace_, result_);
    return std::move(result_);
  }

  void poll_now_and_then() {
    const auto now = std::chrono::steady_clock::now();
    if (now - polled_ < std::chrono::milliseconds(50)) return;
    polled_ = now;
    poll_();
  }

  static constexpr uint64_t kEventsBetweenPolls = 64;

  const SimulationPlan& plan_;
  const Topology& topology_;
  const double bytes_;  // of a piece
  FunctionRef<void()> poll_;
  std::chrono::steady_clock::time_point polled_ = std::chrono::steady_clock::now();
  uint64_t events_seen_ = 0;

  double now_ = 0;
  EventQueue events_;
  EndQueue ends_;
  FairShare sharing_;
  std::vector<Version> versions_;
  std::vector<Lane> lanes_;  // by pair
  std::vector<RankState> ranks_;
  std::vector<Candidate> candidates_;
  std::vector<int32_t> leaving_;                  // pairs
  std::vector<std::vector<int32_t>> lanes_into_;  // rank -> pairs; only with arrivals

  bool adds_at_once_ = true;
  std::vector<int32_t> parked_;  // version -> a step that has arrived and may not be added yet
  std::vector<int32_t> next_parked_;
  std::vector<int32_t> to_add_;

  std::vector<Trace> trace_;
  std::vector<Cause> last_;  // what each rank did last
  SimulationResult result_;
};

void require_seconds(const std::vector<double>& arrivals, int ranks) {
  if (!arrivals.empty() && arrivals.size() != static_cast<size_t>(ranks))
    throw InvalidArgument("start has " + std::to_string(arrivals.size()) + " times for " +
                          std::to_string(ranks) + " ranks");
  for (size_t rank = 0; rank < arrivals.size(); ++rank)
    if (!std::isfinite(arrivals[rank]) || arrivals[rank] < 0)
      throw InvalidArgument("rank " + std::to_string(rank) + " starts at " + std::to_string(arrivals[rank]) +
                            "; a start is 0 seconds or more");
}

void require_size(double size, CollectiveKind kind) {
  if (kind == CollectiveKind::Barrier) {
    if (size != 0) throw InvalidArgument("a barrier moves no bytes: its size must be 0");
  } else if (!std::isfinite(size) || size <= 0) {
    throw InvalidArgument("size must be a number of bytes above 0, not " + std::to_string(size));
  }
}

}  // namespace

SimulationResult simulate(const SimulationPlan& plan, double size, const std::vector<double>& arrivals,
                          FunctionRef<void()> poll) {
  require_size(size, plan.schedule->collective.kind);
  require_seconds(arrivals, plan.schedule->ranks());
  return Run(plan, size, arrivals, poll).run();
}

}  // namespace pycoll
