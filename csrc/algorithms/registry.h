// Every algorithm is one file that builds a schedule, entered here once.
#pragma once
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "schedule/schedule.h"

namespace pycoll {

struct Topology;

struct BuildRequest {
  CollectiveKind kind = CollectiveKind::AllReduce;
  int ranks = 1;
  int pieces = 0;  // 0: the algorithm's own default
  int root = 0;
  std::map<std::string, std::string> params;  // an algorithm's own; an unknown one is InvalidArgument
  // The machine, for algorithms that fit themselves to one; its ranks are the schedule's. Null: a flat
  // switch.
  const Topology* topology = nullptr;
};

struct Algorithm {
  std::string_view name;
  std::string_view description;  // a line of prose
  std::string_view source;       // paper, section
  std::vector<CollectiveKind> collectives;
  std::string_view valid_ranks;  // for people: "any", "powers of two"
  bool (*accepts)(int ranks);
  Schedule (*build)(const BuildRequest& request);
  bool for_late_ranks = false;  // pays only where a rank comes late: no candidate where all come on time
};

std::span<const Algorithm> algorithms();
const Algorithm& find_algorithm(std::string_view name);  // InvalidArgument that lists the names there are

// Checks the request against the algorithm's entry (Unsupported, InvalidArgument), then builds.
Schedule build(std::string_view algorithm, const BuildRequest& request);

}  // namespace pycoll
