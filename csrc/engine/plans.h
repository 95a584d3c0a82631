// The plans of a group: schedules built, verified and made ready once, however often they are called for.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "engine/communicator.h"
#include "engine/decisions.h"
#include "engine/program.h"
#include "topology/topology.h"

namespace pycoll {

class Plans {
 public:
  // `topology`: what algorithms that fit themselves to a machine see; null: a flat switch.
  Plans(std::string group, int rank, int ranks, std::shared_ptr<const Topology> topology)
      : group_(std::move(group)), rank_(rank), ranks_(ranks), topology_(std::move(topology)) {}

  // Of a call that names a schedule or an algorithm. Throws what building and verifying throw.
  std::shared_ptr<const Plan> plan_for(const CollectiveCall& call);
  // Of a row of a decision table, not kept here.
  std::shared_ptr<const Plan> plan_for(CollectiveKind kind, const Way& way, int root) const {
    if (way.schedule) return own_plan(way.schedule, kind);
    return build_plan(kind, way.algorithm, way.pieces, root,
                      (way.topology ? way.topology : topology()).get());
  }
  // What algorithms fit themselves to from here on, unless a row's table says it.
  void fit_to(std::shared_ptr<const Topology> topology);
  // Kept, like those of calls.
  std::shared_ptr<const Plan> plan_for(CollectiveKind kind, std::string_view algorithm, int pieces, int root);

 private:
  struct Key {
    CollectiveKind kind;
    std::string algorithm;
    int pieces;
    int root;
    auto operator<=>(const Key&) const = default;
  };
  std::shared_ptr<const Plan> kept(CollectiveKind kind, std::string_view algorithm, int pieces, int root);
  std::shared_ptr<const Topology> topology() const {
    const std::lock_guard lock(topology_mutex_);
    return topology_;
  }
  void require_fit(const Schedule& schedule, CollectiveKind kind) const;
  std::shared_ptr<const Plan> own_plan(const std::shared_ptr<const Schedule>& schedule,
                                       CollectiveKind kind) const;
  std::shared_ptr<const Plan> build_plan(CollectiveKind kind, std::string_view algorithm, int pieces,
                                         int root, const Topology* topology) const;

  std::string group_;
  int rank_;
  int ranks_;
  mutable std::mutex topology_mutex_;
  std::shared_ptr<const Topology> topology_;
  std::mutex mutex_;
  std::map<Key, std::shared_ptr<const Plan>> plans_;
  std::map<const Schedule*, std::shared_ptr<const Plan>> own_plans_;  // of schedules that callers brought
};

}  // namespace pycoll
