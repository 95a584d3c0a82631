#include "engine/selection.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "core/clock.h"

namespace pycoll {
namespace {

constexpr int kEnough = 24;          // calls by which those out of line must outnumber the others
constexpr double kLasting = 0.1;     // seconds for which they must: less is an interruption
constexpr int kFewLong = 4;          // likewise, of calls so long that so few of them
constexpr double kLong = 0.5;        // take so many seconds together
constexpr double kLongCall = 20e-3;  // a trial of calls that take longer than this has fewer rounds
constexpr size_t kFewTrials = 2;
constexpr double kUnnoticed = 2e-6;  // seconds: what a prediction includes of the caller's own overhead
constexpr double kBetter = 0.9;      // of the choice's time that another way must take to replace it
constexpr double kLongestPause = 3600;
// A cache line's way plus the waiting loop's: 40 to 90 ns under a shared cache, 220 ns and more without.
constexpr double kFarAbove = 140e-9;
constexpr double kAwake = 2e-6;  // who saw it later than this had been asleep
constexpr int kSure = 3;         // by how many looks one opinion must outnumber the other
constexpr uint32_t kFades = 4;

std::string in_words(double seconds) {
  char text[32];
  if (seconds < 1e-3)
    std::snprintf(text, sizeof text, "%.3g us", seconds * 1e6);
  else
    std::snprintf(text, sizeof text, "%.3g ms", seconds * 1e3);
  return text;
}

std::string in_words(const Decision& row) {
  std::string text(name_of(row.kind));
  text += " of " + std::to_string(row.begin);
  return row.end == UINT64_MAX ? text + " bytes and more"
                               : text + " to " + std::to_string(row.end) + " bytes";
}

double median(std::array<double, Selection::kTrials> values, size_t count) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(count / 2);
  std::nth_element(values.begin(), middle, values.begin() + static_cast<std::ptrdiff_t>(count));
  return *middle;
}

// The same on all ranks: what a row predicts is in step.
size_t trials_of(const Selection::Row& row) {
  const double least = row.decision.predicted(std::max<uint64_t>(row.decision.begin, 1));
  return least > kLongCall ? kFewTrials : Selection::kTrials;
}

}  // namespace

Selection::Selection(std::string group, int ranks, MakePlan make_plan)
    : group_(std::move(group)), ranks_(ranks), make_plan_(std::move(make_plan)) {}

Selection::Prepared Selection::prepare(DecisionTable table) const {
  Prepared prepared;
  for (Decision& decision : table.rows) {
    Row row;
    for (const Way& way : decision.ways) {
      row.is_fast_path[row.plans.size()] = way.is_fast_path();
      auto& plans = row.plans.emplace_back(is_rooted(decision.kind) ? static_cast<size_t>(ranks_) : 1);
      const int root = way.schedule ? way.schedule->collective.root : 0;
      if (!way.is_fast_path()) plans[static_cast<size_t>(root)] = make_plan_(decision.kind, way, root);
    }
    row.watched = decision.ways.size() > 1;
    row.decision = std::move(decision);
    prepared.rows.push_back(std::move(row));
  }
  table.rows.clear();
  prepared.table = std::move(table);
  return prepared;
}

void Selection::adopt(Prepared prepared) {
  const std::lock_guard lock(mutex_);
  rows_ = std::move(prepared.rows);
  factor_ = prepared.table.factor;
  hash_ = prepared.table.hash;
  index_ = {};
  for (Row& row : rows_)
    for (size_t c = 0; c < kDTypeClasses; ++c)
      for (size_t d = 0; d < kDistances; ++d)
        if (row.decision.dtypes[c] && row.decision.distances[d])
          index_[static_cast<size_t>(row.decision.kind)][c][d].push_back(
              {row.decision.begin, row.decision.end, &row});
  for (auto& classes : index_)
    for (auto& distances : classes)
      for (Entries& entries : distances) std::ranges::sort(entries, {}, &Entry::begin);
}

const Plan* Selection::plan(Row& row, int root) {
  const size_t now = row.way_now();
  if (row.is_fast_path[now]) return nullptr;
  const Way& way = row.decision.ways[now];
  auto& plans = row.plans[now];
  auto& plan = plans[plans.size() > 1 ? static_cast<size_t>(root) : 0];
  if (!plan && !way.schedule) plan = make_plan_(row.decision.kind, way, root);
  return plan.get();  // a schedule of its own has one root; the others go the fast path
}

bool Selection::timed(Row& row, uint64_t bytes, double seconds, double seconds_per_tick) {
  if (!row.on_trial) {
    watch(row, bytes, seconds, seconds_per_tick);
    return false;
  }
  const size_t ways = row.decision.ways.size();
  const size_t round = row.trial_calls / ways;
  if (round > 0) row.ratios[row.trial_calls % ways][round - 1] = seconds / row.decision.predicted(bytes);
  return ++row.trial_calls == ways * (trials_of(row) + 1);
}

void Selection::watch(Row& row, uint64_t bytes, double seconds, double seconds_per_tick) {
  const double predicted = row.decision.predicted(bytes);
  if (!(predicted > 0) || !(factor_ > 1)) return;
  const double ratio = seconds / predicted;
  const std::atomic_ref typical(row.typical);  // other threads may be reading it
  const double before = typical.load(std::memory_order_relaxed);
  typical.store(before == 0 ? ratio : before + (std::min(ratio, 2 * before) - before) / 16,
                std::memory_order_relaxed);
  const bool slow = ratio > factor_ && seconds - predicted > kUnnoticed;
  const bool fast = ratio * factor_ < 1 && predicted - seconds > kUnnoticed;
  const bool was_well = row.slow == 0 && row.fast == 0;
  row.slow = std::max(row.slow + (slow ? 1 : -1), 0);
  row.fast = std::max(row.fast + (fast ? 1 : -1), 0);
  const uint64_t now = ticks();
  if (was_well) row.ill_since = now;
  const int outnumbered = std::max(row.slow, row.fast);
  const double lasted = static_cast<double>(now - row.ill_since) * seconds_per_tick;
  const bool ill =
      (outnumbered >= kEnough && lasted > kLasting) || (outnumbered >= kFewLong && lasted > kLong);
  // A change is looked at again even if all is well: what made the table's choice slow may be over.
  if ((ill || row.chosen != 0) && now >= row.not_before) row.asks = true;
}

void Selection::feel_distance(double seconds) {
  if (seconds < kAwake) {
    opinion_ = std::clamp(opinion_ + (seconds > kFarAbove ? 1 : -1), -kSure - 1, kSure + 1);
  } else if (opinion_ != 0 && ++unfelt_ % kFades == 0) {
    opinion_ += opinion_ > 0 ? -1 : 1;  // what was felt long ago must not outvote the others
  }
}

uint32_t Selection::hints(const Row& row) const {
  return (row.asks ? Arrivals::kAsksForTrial : 0U) | (opinion_ >= kSure ? Arrivals::kThinksFar : 0U) |
         (opinion_ <= -kSure ? Arrivals::kThinksNear : 0U);
}

void Selection::heed(Row& row, uint32_t hints) {
  const bool near = (hints & Arrivals::kThinksNear) != 0;
  const bool far = (hints & Arrivals::kThinksFar) != 0;
  if (near != far) distance_.store(far ? Distance::Far : Distance::Near, std::memory_order_relaxed);
  if ((hints & Arrivals::kAsksForTrial) == 0 || row.on_trial || !row.watched) return;
  row.on_trial = true;
  row.trial_calls = 0;
  row.asks = false;
}

std::vector<double> Selection::scores(const Row& row) const {
  std::vector<double> scores;
  for (size_t way = 0; way < row.decision.ways.size(); ++way)
    scores.push_back(median(row.ratios[way], trials_of(row)));
  return scores;
}

void Selection::tell(const Row& row, size_t best, std::span<const double> scores, uint64_t sequence) {
  const double predicted = row.decision.predicted(std::max<uint64_t>(row.decision.begin, 1));
  std::string text = "group '" + group_ + "': " + in_words(row.decision) + " by " +
                     row.decision.ways[row.chosen].name() + " left its prediction (" + in_words(predicted) +
                     " for the least of these sizes). Tried in turns:";
  for (size_t way = 0; way < scores.size(); ++way)
    text += (way == 0 ? " " : ", ") + row.decision.ways[way].name() + " " + in_words(predicted * scores[way]);
  text += ". From collective #" + std::to_string(sequence + 1) + " on " + row.decision.ways[best].name() +
          " is used";
  add_news(std::move(text));
}

void Selection::add_news(std::string text) {
  const std::lock_guard lock(mutex_);
  news_.push_back(std::move(text));
  has_news_.store(true, std::memory_order_relaxed);
}

void Selection::settle(Row& row, std::span<const double> scores, uint64_t sequence, double seconds_per_tick) {
  const auto best = static_cast<size_t>(std::ranges::min_element(scores) - scores.begin());
  const size_t before = row.chosen;
  const bool change = best != before && scores[best] < kBetter * scores[before];
  if (change) tell(row, best, scores, sequence);

  const std::lock_guard lock(mutex_);
  const size_t now = change ? best : before;
  row.chosen = now;
  row.decision.alpha *= scores[now];
  row.decision.beta *= scores[now];
  row.on_trial = row.asks = false;
  row.slow = row.fast = 0;
  row.typical = 0;
  row.not_before = ticks() + static_cast<uint64_t>(row.pause / seconds_per_tick);
  row.pause = std::min(2 * row.pause, kLongestPause);
  if (change)
    hash_ = (hash_ ^ (static_cast<uint64_t>(&row - rows_.data()) << 8 | now)) * 0x100000001b3ULL | 1;
}

std::vector<DecisionState> Selection::states() const {
  const std::lock_guard lock(mutex_);
  std::vector<DecisionState> states;
  for (const Row& row : rows_) {
    DecisionState state{row.decision, std::atomic_ref(const_cast<double&>(row.typical)).load()};
    std::swap(state.decision.ways[0], state.decision.ways[row.chosen]);
    states.push_back(std::move(state));
  }
  return states;
}

std::string Selection::choice(CollectiveKind kind, DType dtype, uint64_t bytes) const {
  const std::lock_guard lock(mutex_);
  for (const Entry& entry : entries(kind, dtype, distance_.load(std::memory_order_relaxed)))
    if (bytes >= entry.begin && bytes < entry.end)
      return entry.row->decision.ways[entry.row->chosen].algorithm;
  return "direct";
}

std::vector<std::string> Selection::take_news() {
  const std::lock_guard lock(mutex_);
  has_news_.store(false, std::memory_order_relaxed);
  return std::exchange(news_, {});
}

}  // namespace pycoll
