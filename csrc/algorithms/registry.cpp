#include "algorithms/registry.h"

#include <algorithm>

#include "algorithms/list.h"
#include "core/error.h"
#include "topology/topology.h"

namespace pycoll {

namespace {

bool does(const Algorithm& algorithm, CollectiveKind kind) {
  return std::ranges::find(algorithm.collectives, kind) != algorithm.collectives.end();
}

template <typename Accept>
std::string names_where(Accept accept) {
  std::string names;
  for (const Algorithm& algorithm : algorithms())
    if (accept(algorithm)) names += (names.empty() ? "" : ", ") + std::string(algorithm.name);
  return names;
}

}  // namespace

std::span<const Algorithm> algorithms() {
  static const std::vector<Algorithm> all = {
      ring(),
      direct(),
      direct_two_shot(),
      binary_tree(),
      double_binary_tree(),
      binomial_tree(),
      recursive_doubling(),
      recursive_halving_doubling(),
      bruck(),
      pairwise(),
      hierarchical(),
      torus_ring(),
      packed_trees(),
      late_rank_allreduce(),
      stragglar(),
  };
  return all;
}

const Algorithm& find_algorithm(std::string_view name) {
  const auto found = std::ranges::find(algorithms(), name, &Algorithm::name);
  if (found != algorithms().end()) return *found;
  throw InvalidArgument("there is no algorithm '" + std::string(name) +
                        "'; there are: " + names_where([](const Algorithm&) { return true; }));
}

Schedule build(std::string_view name, const BuildRequest& request) {
  const Algorithm& algorithm = find_algorithm(name);
  if (!does(algorithm, request.kind))
    throw Unsupported(
        "algorithm '" + std::string(name) + "' does not do " + std::string(name_of(request.kind)) +
        "; these do: " + names_where([&](const Algorithm& other) { return does(other, request.kind); }));
  if (request.pieces < 0)
    throw InvalidArgument("algorithm '" + std::string(name) +
                          "': pieces must be positive, or 0 for the algorithm's default, not " +
                          std::to_string(request.pieces));
  // A number of ranks that no algorithm takes is the collective's error to report.
  if (request.ranks >= 1 && !algorithm.accepts(request.ranks))
    throw Unsupported("algorithm '" + std::string(name) + "' does not run on " +
                      std::to_string(request.ranks) +
                      " ranks; it takes: " + std::string(algorithm.valid_ranks));
  if (request.topology && request.topology->rank_count() != request.ranks)
    throw InvalidArgument("algorithm '" + std::string(name) + "': the topology '" + request.topology->name +
                          "' has " + std::to_string(request.topology->rank_count()) +
                          " ranks, the schedule " + std::to_string(request.ranks));
  return algorithm.build(request);
}

}  // namespace pycoll
