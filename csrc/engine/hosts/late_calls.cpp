#include "engine/hosts/late_calls.h"

#include <algorithm>
#include <string>

#include "algorithms/registry.h"
#include "engine/call_header.h"
#include "engine/hosts/default_ways.h"
#include "schedule/verify.h"

namespace pycoll {
namespace {

// Pieces small enough to keep the pipeline full, large enough that a message's own cost does not count: so
// many bytes for each doubling of the ranks that hold a piece.
constexpr uint64_t kPiece = 128 << 10;
constexpr int kMostGroups = 64;
constexpr uint64_t kLeastBytes = 1 << 20;  // below, a ring ends before anyone's lateness is worth the trouble

int doublings(int ranks) {
  int count = 0;
  while (1 << count < ranks) ++count;
  return count;
}

std::string join(const std::vector<int>& numbers) {
  std::string text;
  for (const int number : numbers) text += (text.empty() ? "" : ",") + std::to_string(number);
  return text;
}

}  // namespace

// Lets the early ranks' reduce-scatter go on group by group as the clerk opens them, and tells it how far it
// is.
class LateCalls::EarlyGate final : public Gate {
 public:
  EarlyGate(RollCall& roll, uint64_t sequence, const Plan& plan, int groups, bool reports)
      : roll_(roll),
        sequence_(sequence),
        pieces_(plan.schedule->pieces() / groups),
        reports_(reports),
        steps_left_(static_cast<size_t>(groups)) {
    for (const Step& step : plan.program.steps)
      ++steps_left_[group_of(plan.program.pieces[static_cast<size_t>(step.piece)])];
  }

  int open() override { return roll_.open() * pieces_; }
  bool closed() override { return roll_.decided(); }
  int keeper() override { return roll_.awaited(); }
  void moved(int piece) override {
    --steps_left_[group_of(piece)];
    size_t done = done_;
    while (done < steps_left_.size() && steps_left_[done] == 0) ++done;
    if (done == done_) return;
    done_ = done;
    if (reports_ && !roll_.decided()) roll_.report(sequence_, static_cast<int>(done_));
  }

 private:
  size_t group_of(int piece) const { return static_cast<size_t>(piece / pieces_); }

  RollCall& roll_;
  uint64_t sequence_;
  int pieces_;  // of a group
  bool reports_;
  std::vector<int> steps_left_;  // by group, of this rank
  size_t done_ = 0;
};

LateCalls::LateCalls(shm::Group& group, HostLinks& links, HostExchange& exchange, Executor& executor,
                     Plans& plans, EarlyGain& gain)
    : group_(group),
      links_(links),
      exchange_(exchange),
      executor_(executor),
      plans_(plans),
      gain_(gain),
      roll_(links) {
  // Others need the clerk while its own rank computes.
  if (links.rank() == 0 && links.placement().ranks() > 2) links.attend_always();
}

bool LateCalls::fits(const CollectiveCall& call) const {
  const Placement& placement = links_.placement();
  const int ranks = placement.ranks();
  return call.kind == CollectiveKind::AllReduce && Executor::works_in_output(call) && ranks > 2 &&
         ranks <= 128 && placement.hosts.size() == static_cast<size_t>(ranks) &&
         call.count * size_of(call.dtype) >= kLeastBytes;
}

int LateCalls::groups_of(const CollectiveCall& call) const {
  const int ranks = links_.placement().ranks();
  const uint64_t piece = kPiece * static_cast<uint64_t>(doublings(ranks));
  const uint64_t groups = call.count * size_of(call.dtype) / (piece * static_cast<uint64_t>(ranks - 1));
  return static_cast<int>(std::clamp<uint64_t>(groups, 1, kMostGroups));
}

uint64_t LateCalls::hash(const CollectiveCall& call) const {
  return (uint64_t{0x1a7e} << 48 | static_cast<uint64_t>(groups_of(call)) << 1) | 1;
}

std::shared_ptr<const Plan> LateCalls::plan(const Key& key) {
  auto& made = made_[key];
  if (!made) made = make(key);
  return made;
}

std::shared_ptr<const Plan> LateCalls::make(const Key& key) const {
  const bool before = key.cut < 0;
  BuildRequest request;
  request.ranks = links_.placement().ranks();
  request.params = {{"late", join(key.late)},
                    {"phase", before ? "before" : "after"},
                    {"groups", std::to_string(key.groups)},
                    {"cut", std::to_string(before ? key.groups : key.cut)}};
  auto schedule = std::make_shared<Schedule>(build("late_rank", request));
  verify(*schedule);
  if (before) {
    // Streams must carry one group after the other: it is by groups that the gate opens.
    const int pieces = schedule->pieces() / key.groups;
    const int rounds = schedule->rounds();
    for (Transfer& transfer : schedule->transfers) transfer.round += transfer.piece / pieces * rounds;
  }
  return make_plan(std::move(schedule), links_.rank());
}

void LateCalls::wait_for_word(shm::Operation& operation) {
  const auto ready = [&] {
    if (exchange_.heard(operation.sequence)) roll_.differ(operation.sequence);
    return roll_.began() || roll_.decided();
  };
  while (!ready()) {
    const int awaited = roll_.awaited();
    // The clerk waits for one missing rank, then for the next.
    const auto changed = [&] { return ready() || roll_.awaited() != awaited; };
    if (awaited == links_.rank()) break;
    group_.wait_elsewhere(operation, awaited, changed);
  }
}

bool LateCalls::run(const CollectiveCall& call, const shm::CallHeader& header, uint32_t hints,
                    shm::Operation& operation, std::span<uint64_t> log, double seconds_per_tick,
                    Arrivals::Met& met) {
  const uint64_t sequence = operation.sequence;
  const int groups = groups_of(call);
  const size_t bytes = call.count * size_of(call.dtype);
  // So long may a call take longer for nobody being late.
  constexpr double kShare = 0.01;
  constexpr std::chrono::microseconds kLeast{500};
  const std::chrono::duration<double> patience(kShare * gain_.usual(bytes));
  roll_.arrive(
      header, hints, groups,
      std::max<SteadyClock::duration>(kLeast, std::chrono::duration_cast<SteadyClock::duration>(patience)),
      last_);
  executor_.load_output(call);
  wait_for_word(operation);

  RollCall::State state = roll_.state(sequence);
  const auto begun = SteadyClock::now();
  if (state.began) {
    const bool late = std::find(state.late.begin(), state.late.end(), links_.rank()) != state.late.end();
    if (!late) {
      int first = 0;
      while (std::find(state.late.begin(), state.late.end(), first) != state.late.end()) ++first;
      const std::shared_ptr<const Plan> early = plan({state.late, groups, -1});
      EarlyGate gate(roll_, sequence, *early, groups, links_.rank() == first);
      executor_.run_loaded(*early, call, &gate);
    } else {
      while (!roll_.decided())
        group_.wait_elsewhere(operation, roll_.awaited(), [&] { return roll_.decided(); });
    }
    state = roll_.state(sequence);
  }
  if (state.differs) return false;
  const auto decided = SteadyClock::now();
  finish(call, state, groups);
  const auto ended = SteadyClock::now();
  const bool early = state.began && state.open > 0;
  around_ = state.around ? state.late[0] : -1;
  gain_.note(bytes, ended - decided, early && !state.around);
  // Only of calls for which nobody was late is it known what they took, from the clerk's word to the end.
  const std::chrono::duration<float> took = ended - begun;
  last_ = {};
  if (!early || state.around) last_.seconds = took.count();
  if (!early && took.count() > 0)
    last_.stuck = std::chrono::duration<float>(executor_.stuck()).count() / took.count();

  met = {.last = 0, .seen = 0, .hints = state.hints, .signature = signature_of(header)};
  const uint64_t now = ticks();
  const auto since = std::chrono::nanoseconds(SteadyClock::now() - state.told).count();
  for (size_t rank = 0; rank < log.size(); ++rank) {
    const double ago = static_cast<double>(state.ago_ns[rank] + since) * 1e-9;
    log[rank] = now - static_cast<uint64_t>(seconds_per_tick > 0 ? ago / seconds_per_tick : 0);
    met.last = std::max(met.last, log[rank]);
  }
  return true;
}

void LateCalls::finish(const CollectiveCall& call, const RollCall::State& state, int groups) {
  if (state.began && state.open > 0) {
    executor_.run_loaded(*plan({state.late, groups, state.open}), call);
    return;
  }
  const Way way = default_way(call.kind, call.count * size_of(call.dtype), links_.placement());
  executor_.run_loaded(*plans_.plan_for(call.kind, way.algorithm, way.pieces, call.root), call);
}

}  // namespace pycoll
