// A group's decision table at work: finds the plan of a call, watches how long calls take, and when they
// leave their prediction tries the row's other ways on the calls that follow.
//
// Everything but what other threads may call happens with the group's turn held, in the order of sequence
// numbers. What depends on one rank's clock stays on that rank, until it asks for a trial in its arrival
// line, which all ranks see at the same call, and until the ranks have agreed on the trial's times. So at
// every sequence number all ranks have the same choices.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "engine/arrivals.h"
#include "engine/communicator.h"
#include "engine/decisions.h"
#include "engine/program.h"

namespace pycoll {

class Selection {
 public:
  static constexpr size_t kTrials = 5;  // times that a trial runs each way, after once to warm up

  struct Row {
    // What every call looks at.
    size_t chosen = 0;                           // of the ways
    std::array<bool, kMostWays> is_fast_path{};  // by way
    bool watched = false;                        // there is another way to go
    bool asks = false;                           // for a trial, in the next call
    bool on_trial = false;                       // in step on all ranks
    uint32_t calls = 0;

    Decision decision;
    std::vector<std::vector<std::shared_ptr<const Plan>>> plans;  // by way, by root; null: not made yet

    // This rank's own watch over the choice.
    int slow = 0;  // calls that left the prediction, less those that did not
    int fast = 0;
    uint64_t ill_since = 0;   // ticks at which the first of them did
    double typical = 0;       // time / prediction, following its median
    double pause = 1;         // seconds until the next trial after this one
    uint64_t not_before = 0;  // ticks
    // The trial, in step on all ranks.
    size_t trial_calls = 0;
    std::array<std::array<double, kTrials>, kMostWays> ratios{};

    size_t way_now() const { return on_trial ? trial_calls % decision.ways.size() : chosen; }
  };
  // The plan of a way that is not the fast path. Throws what building or verifying the schedule throws.
  using MakePlan = std::function<std::shared_ptr<const Plan>(CollectiveKind kind, const Way& way, int root)>;
  // A table with its plans made: what can go wrong has gone wrong.
  struct Prepared {
    DecisionTable table;
    std::vector<Row> rows;
  };

  Selection(std::string group, int ranks, MakePlan make_plan);

  Prepared prepare(DecisionTable table) const;
  void adopt(Prepared prepared);
  uint64_t hash() const { return hash_; }

  // The row for a call that names no algorithm; null: the fast path. Allocates nothing, takes nanoseconds.
  Row* find(CollectiveKind kind, DType dtype, uint64_t bytes) {
    if (rows_.empty()) return nullptr;
    for (const Entry& entry : entries(kind, dtype, distance_.load(std::memory_order_relaxed)))
      if (bytes < entry.end) return bytes >= entry.begin ? entry.row : nullptr;
    return nullptr;
  }
  // What to run now: the choice, or what a trial tries. Null: the fast path.
  const Plan* plan(Row& row, int root);

  // Whether to look at the clock after this call: at every call that takes long, else at every 64th.
  static bool is_timed(Row& row, uint64_t bytes) {
    return row.watched && (row.calls++ % 64 == 0 || bytes >= kAlwaysTimed || row.on_trial);
  }
  // The time from the last rank's arrival to this rank's end of the call. True when a trial is over: the
  // ranks must then agree on the greatest of their scores, and settle.
  bool timed(Row& row, uint64_t bytes, double seconds, double seconds_per_tick);
  // How long the last rank's arrival took to be seen on this rank, which was waiting for it; NaN: it was not.
  void feel_distance(double seconds);
  // What this rank tells the others with a call of the row; and what all have told, the same on all ranks.
  uint32_t hints(const Row& row) const;
  void heed(Row& row, uint32_t hints);
  // This rank's times of the row's ways in the trial, as multiples of the prediction.
  std::vector<double> scores(const Row& row) const;
  void settle(Row& row, std::span<const double> scores, uint64_t sequence, double seconds_per_tick);

  // From any thread.
  std::vector<DecisionState> states() const;
  std::string choice(CollectiveKind kind, DType dtype, uint64_t bytes) const;  // a registry name
  void add_news(std::string text);  // for tell_news(), of what the group has decided otherwise
  bool has_news() const { return has_news_.load(std::memory_order_relaxed); }
  std::vector<std::string> take_news();

 private:
  struct Entry {
    uint64_t begin;
    uint64_t end;
    Row* row;
  };
  using Entries = std::vector<Entry>;
  static constexpr size_t kKinds = static_cast<size_t>(CollectiveKind::Barrier) + 1;
  static constexpr uint64_t kAlwaysTimed = 16 << 10;  // bytes
  void watch(Row& row, uint64_t bytes, double seconds, double seconds_per_tick);
  const Entries& entries(CollectiveKind kind, DType dtype, Distance distance) const {
    return index_[static_cast<size_t>(kind)][static_cast<size_t>(class_of(dtype))]
                 [static_cast<size_t>(distance)];
  }
  void tell(const Row& row, size_t best, std::span<const double> scores, uint64_t sequence);

  std::string group_;
  int ranks_;
  MakePlan make_plan_;
  std::vector<Row> rows_;
  std::array<std::array<std::array<Entries, kDistances>, kDTypeClasses>, kKinds> index_;
  std::atomic<Distance> distance_{Distance::Near};  // as all ranks have agreed
  uint32_t unfelt_ = 0;
  int opinion_ = 0;  // this rank's: far above kSure, near below -kSure
  double factor_ = 0;
  uint64_t hash_ = 0;
  mutable std::mutex mutex_;  // of what other threads look at: the rows' choices, the news
  std::vector<std::string> news_;
  std::atomic<bool> has_news_{false};
};

}  // namespace pycoll
