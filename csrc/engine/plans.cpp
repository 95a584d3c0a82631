#include "engine/plans.h"

#include "algorithms/registry.h"
#include "schedule/verify.h"

namespace pycoll {

std::shared_ptr<const Plan> Plans::plan_for(const CollectiveCall& call) {
  const std::lock_guard lock(mutex_);
  if (call.schedule) {
    require_fit(*call.schedule, call.kind);
    if (is_rooted(call.kind) && call.schedule->collective.root != call.root)
      throw InvalidArgument("group '" + group_ + "': the schedule is for root " +
                            std::to_string(call.schedule->collective.root) + "; the call has root " +
                            std::to_string(call.root));
    if (const auto known = own_plans_.find(call.schedule.get()); known != own_plans_.end())
      return known->second;
    auto plan = own_plan(call.schedule, call.kind);
    constexpr size_t kOwnPlans = 64;  // who makes a new schedule for each call must not fill the memory
    if (own_plans_.size() >= kOwnPlans) own_plans_.clear();
    own_plans_.emplace(call.schedule.get(),
                       plan);  // the plan keeps the schedule, so the address stays its own
    return plan;
  }
  return kept(call.kind, call.algorithm, call.pieces, call.root);
}

std::shared_ptr<const Plan> Plans::plan_for(CollectiveKind kind, std::string_view algorithm, int pieces,
                                            int root) {
  const std::lock_guard lock(mutex_);
  return kept(kind, algorithm, pieces, root);
}

std::shared_ptr<const Plan> Plans::kept(CollectiveKind kind, std::string_view algorithm, int pieces,
                                        int root) {
  const int rooted_at = is_rooted(kind) ? root : 0;
  auto& plan = plans_[{kind, std::string(algorithm), pieces, rooted_at}];
  if (!plan) plan = build_plan(kind, algorithm, pieces, rooted_at, topology().get());
  return plan;
}

void Plans::fit_to(std::shared_ptr<const Topology> topology) {
  const std::scoped_lock lock(mutex_, topology_mutex_);
  if (topology_ == topology) return;
  topology_ = std::move(topology);
  plans_.clear();
}

void Plans::require_fit(const Schedule& schedule, CollectiveKind kind) const {
  const Collective& collective = schedule.collective;
  if (collective.kind != kind || collective.ranks != ranks_)
    throw InvalidArgument("group '" + group_ + "': the schedule is for " +
                          std::string(name_of(collective.kind)) + " of " + std::to_string(collective.ranks) +
                          " ranks; the call is " + std::string(name_of(kind)) + " of " +
                          std::to_string(ranks_) + " ranks");
  if (schedule.is_part())
    throw InvalidArgument("group '" + group_ + "': the schedule is a part of '" + schedule.algorithm +
                          "', which does not do its collective alone; build the whole (phase=\"both\")");
}

std::shared_ptr<const Plan> Plans::own_plan(const std::shared_ptr<const Schedule>& schedule,
                                            CollectiveKind kind) const {
  require_fit(*schedule, kind);
  verify(*schedule);
  return make_plan(schedule, rank_);
}

std::shared_ptr<const Plan> Plans::build_plan(CollectiveKind kind, std::string_view algorithm, int pieces,
                                              int root, const Topology* topology) const {
  const BuildRequest request{
      .kind = kind, .ranks = ranks_, .pieces = pieces, .root = root, .params = {}, .topology = topology};
  auto schedule = std::make_shared<Schedule>(build(algorithm, request));
  verify(*schedule);
  return make_plan(std::move(schedule), rank_);
}

}  // namespace pycoll
