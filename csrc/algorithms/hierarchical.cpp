#include <algorithm>
#include <cmath>
#include <utility>

#include "algorithms/builder.h"
#include "algorithms/list.h"
#include "algorithms/params.h"
#include "core/error.h"
#include "topology/clusters.h"

namespace pycoll {

namespace {

size_t at(int index) {
  return static_cast<size_t>(index);
}

// Without a topology: groups of as many consecutive ranks as come nearest to the square root from below.
int default_group(int n) {
  int group = 1;
  for (int divisor = 1; divisor * divisor <= n; ++divisor)
    if (n % divisor == 0) group = divisor;
  return group;
}

std::vector<RankGroups> choose_levels(const BuildRequest& request) {
  const int n = request.ranks;
  const bool given = request.params.contains("group");
  if (request.topology && !given) return find_clusters(*request.topology);
  const int group = integer_param(request, "group", default_group(n), 1, std::max(n, 1));
  RankGroups groups;
  for (int rank = 0; rank < n; ++rank) {
    if (rank % group == 0) groups.emplace_back();
    groups.back().push_back(rank);
  }
  if (groups.size() == 1 || groups.size() == at(n)) return {};
  return {groups};
}

// A level: for each rank its group, and its place within it. The members of a group are the groups of the
// level below, ranks at the lowest.
struct Level {
  std::vector<int> group;                  // by rank
  std::vector<int> member;                 // by rank: which member of the group it is in
  std::vector<std::vector<int>> a_member;  // by group, by member: a rank of it
};

std::vector<Level> index_levels(const std::vector<RankGroups>& partitions, int n) {
  std::vector<RankGroups> all = partitions;
  all.emplace_back(1);
  for (int rank = 0; rank < n; ++rank) all.back().front().push_back(rank);
  std::vector<Level> levels;
  std::vector<int> below(at(n));  // group of each rank in the level below
  for (int rank = 0; rank < n; ++rank) below[at(rank)] = rank;
  for (const RankGroups& groups : all) {
    Level level{std::vector<int>(at(n)), std::vector<int>(at(n)), {}};
    for (size_t index = 0; index < groups.size(); ++index) {
      std::vector<int> seen;
      level.a_member.emplace_back();
      for (int rank : groups[index]) {
        auto found = std::ranges::find(seen, below[at(rank)]);
        if (found == seen.end()) {
          seen.push_back(below[at(rank)]);
          level.a_member.back().push_back(rank);
          found = seen.end() - 1;
        }
        level.group[at(rank)] = static_cast<int>(index);
        level.member[at(rank)] = static_cast<int>(found - seen.begin());
      }
    }
    below = level.group;
    levels.push_back(std::move(level));
  }
  return levels;
}

// What belongs to `owner` in the end is gathered, level by level, at the ranks that stand where the owner
// stands in groups of their own: rank i of one host to rank i of the next.
class Hierarchy {
 public:
  Hierarchy(const BuildRequest& request, ScheduleBuilder& schedule)
      : schedule_(schedule),
        levels_(index_levels(choose_levels(request), request.ranks)),
        around_(choice_param(request, "step", {"direct", "ring"}) == "ring"),
        gap_(integer_param(request, "gap", 2, 1, 1 << 16)) {}

  // Rounds from the first send of a reduction to its end.
  int height() const {
    int rounds = 0;
    for (size_t level = 0; level < levels_.size(); ++level) rounds += span(level);
    return rounds;
  }

  void reduce(int piece, int owner, int first_round) {
    for (size_t level = 0; level < levels_.size(); first_round += span(level++))
      for_each_step(level, owner, [&](int from, int to, int step) {
        schedule_.reduce(first_round + step, from, to, {piece, piece + 1});
      });
  }

  void broadcast(int piece, int owner, int first_round) {
    for (size_t level = levels_.size(); level-- > 0; first_round += span(level))
      for_each_step(level, owner, [&](int from, int to, int step) {
        const int last = steps(level) - 1;
        schedule_.copy(first_round + last - step, to, from, {piece, piece + 1});
      });
  }

 private:
  int members(size_t level) const {
    size_t most = 1;
    for (const auto& group : levels_[level].a_member) most = std::max(most, group.size());
    return static_cast<int>(most);
  }
  int steps(size_t level) const { return around_ ? std::max(members(level) - 1, 1) : 1; }
  int span(size_t level) const { return steps(level) - 1 + gap_; }

  // The rank that stands for the `level`-th level's group of `rank` in gathering the owner's pieces.
  int stand_in(int rank, int owner, int level) const {
    if (level < 0) return rank;
    const Level& here = levels_[at(level)];
    const auto& members = here.a_member[at(here.group[at(rank)])];
    // The owner's own place, or as near to it as a smaller group has.
    if (here.group[at(rank)] == here.group[at(owner)]) return stand_in(owner, owner, level - 1);
    const size_t place = at(here.member[at(owner)]) % members.size();
    return stand_in(members[place], owner, level - 1);
  }

  // visit(from, to, step): the reduction's transfers of one level, in every group.
  template <class Visit>
  void for_each_step(size_t level, int owner, Visit visit) const {
    const Level& here = levels_[level];
    for (const auto& members : here.a_member) {
      const int size = static_cast<int>(members.size());
      const int place = here.member[at(owner)] % size;
      const auto stand = [&](int member) {
        return stand_in(members[at(member % size)], owner, static_cast<int>(level) - 1);
      };
      const int to = stand(place);
      for (int distance = 1; distance < size; ++distance)
        if (around_)
          visit(stand(place + distance), stand(place + distance + 1), distance - 1);
        else
          visit(stand(place + distance), to, 0);
    }
  }

  ScheduleBuilder& schedule_;
  const std::vector<Level> levels_;
  const bool around_;
  const int gap_;
};

// Chunks follow each other, one round apart, so that all levels' links are busy at once.
Schedule build_hierarchical(const BuildRequest& request) {
  const int chunks = request.topology ? 4 : 1;
  ScheduleBuilder schedule("hierarchical", request, request.ranks * chunks, {"group", "step", "gap"});
  const int n = schedule.ranks();
  if (n == 1) return schedule.finish();
  Hierarchy hierarchy(request, schedule);
  const bool sharded = schedule.kind() != CollectiveKind::AllReduce;
  const int in_shard = schedule.pieces() / n;
  for (int piece = 0; piece < schedule.pieces(); ++piece) {
    const int owner = sharded ? piece / in_shard : piece % n;
    int round = sharded ? piece % in_shard : piece / n;
    if (schedule.kind() != CollectiveKind::AllGather) {
      hierarchy.reduce(piece, owner, round);
      round += hierarchy.height();
    }
    if (schedule.kind() != CollectiveKind::ReduceScatter) hierarchy.broadcast(piece, owner, round);
  }
  return schedule.finish();
}

}  // namespace

Algorithm hierarchical() {
  return {
      .name = "hierarchical",
      .description =
          "reduces within the nearest groups (hosts, racks, ...), then among the ranks that stand in the "
          "same "
          "place of each, level by level, and back; levels found from the topology and pipelined",
      .source =
          "Thakur and Gropp's and NCCL's two-level scheme, generalised: Cho et al., BlueConnect: Decomposing "
          "all-reduce for deep learning on heterogeneous network hierarchy, MLSys 2019",
      .collectives = {CollectiveKind::AllReduce, CollectiveKind::ReduceScatter, CollectiveKind::AllGather},
      .valid_ranks = "any",
      .accepts = any_ranks,
      .build = build_hierarchical,
  };
}

}  // namespace pycoll
