#include "engine/program.h"

#include <algorithm>
#include <set>

namespace pycoll {
namespace {

std::vector<Transfer> in_stream_order(const Schedule& schedule) {
  std::vector<Transfer> transfers = schedule.transfers;
  std::stable_sort(transfers.begin(), transfers.end(), [](const Transfer& a, const Transfer& b) {
    return a.round != b.round ? a.round < b.round : a.piece < b.piece;
  });
  return transfers;
}

// Pieces a rank sends, receives, starts with or ends with.
std::vector<std::vector<int32_t>> touched_pieces(const Schedule& schedule) {
  const Collective& collective = schedule.collective;
  std::vector<std::set<int32_t>> touched(static_cast<size_t>(collective.ranks));
  for (const Transfer& t : schedule.transfers) {
    touched[static_cast<size_t>(t.src)].insert(t.piece);
    touched[static_cast<size_t>(t.dst)].insert(t.piece);
  }
  std::vector<std::vector<int32_t>> result;
  for (int rank = 0; rank < collective.ranks; ++rank) {
    auto& pieces = touched[static_cast<size_t>(rank)];
    for (int piece = 0; piece < collective.pieces; ++piece)
      if (collective.owed_after(rank, piece)) pieces.insert(piece);
    result.emplace_back(pieces.begin(), pieces.end());
  }
  return result;
}

struct PieceState {
  int32_t last_write = -1;
  std::vector<int32_t> sends;  // since the last write
};

}  // namespace

Program make_program(const Schedule& schedule, int rank) {
  Program program;
  program.pieces = touched_pieces(schedule)[static_cast<size_t>(rank)];
  program.sends.resize(static_cast<size_t>(schedule.ranks()));
  program.receives.resize(static_cast<size_t>(schedule.ranks()));
  std::vector<PieceState> states(program.pieces.size());
  const auto local = [&](int32_t piece) {
    return static_cast<int32_t>(std::lower_bound(program.pieces.begin(), program.pieces.end(), piece) -
                                program.pieces.begin());
  };

  const std::vector<Transfer> transfers = in_stream_order(schedule);
  for (size_t begin = 0; begin < transfers.size();) {
    size_t end = begin;
    while (end < transfers.size() && transfers[end].round == transfers[begin].round &&
           transfers[end].piece == transfers[begin].piece)
      ++end;
    // All sends of one round and piece first: they read the state before the round, which the writes then
    // change.
    for (const bool sends : {true, false}) {
      for (size_t i = begin; i < end; ++i) {
        const Transfer& t = transfers[i];
        if ((sends ? t.src : t.dst) != rank) continue;
        const auto index = static_cast<int32_t>(program.steps.size());
        const int32_t peer = sends ? t.dst : t.src;
        Step step{.peer = peer,
                  .piece = local(t.piece),
                  .sends = sends,
                  .action = t.action,
                  .after_write = -1,
                  .after_sends = {}};
        PieceState& state = states[static_cast<size_t>(step.piece)];
        step.after_write = state.last_write;
        if (sends) {
          state.sends.push_back(index);
          program.sends[static_cast<size_t>(peer)].push_back(index);
        } else {
          step.after_sends = std::move(state.sends);
          state.sends.clear();
          state.last_write = index;
          program.receives[static_cast<size_t>(peer)].push_back(index);
        }
        program.steps.push_back(std::move(step));
      }
    }
    begin = end;
  }
  for (size_t peer = 0; peer < program.sends.size(); ++peer)
    if (!program.sends[peer].empty() || !program.receives[peer].empty())
      program.peers.push_back(static_cast<int32_t>(peer));
  return program;
}

std::shared_ptr<const Plan> make_plan(std::shared_ptr<const Schedule> schedule, int rank) {
  auto plan = std::make_shared<Plan>();
  plan->program = make_program(*schedule, rank);
  plan->hash = schedule->hash() | 1;  // 0 means the direct path
  for (const auto& pieces : touched_pieces(*schedule))
    plan->most_pieces = std::max(plan->most_pieces, pieces.size());
  plan->schedule = std::move(schedule);
  return plan;
}

}  // namespace pycoll
