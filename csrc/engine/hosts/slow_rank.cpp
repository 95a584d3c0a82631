#include "engine/hosts/slow_rank.h"

#include <bit>
#include <vector>

namespace pycoll {
namespace {

constexpr double kSlower = 1.6;  // than usual, to be looked into
constexpr int kInARow = 2;
constexpr double kGain = 0.95;  // of the time as usual that going around must not exceed
constexpr int kLookAgain = 16;  // calls after which one goes as usual: has the link recovered?
constexpr int kPause = 64;      // calls after an attempt that won nothing

// In a ring that a slow link holds up, the ranks before it are full and those behind it empty. Two neighbours
// that are stuck: the second one receives and sends slowly. One alone: it sends slowly.
int culprit(std::span<const float> stuck) {
  constexpr float kStuck = 0.4F, kFree = 0.25F;
  std::vector<size_t> full;
  for (size_t rank = 0; rank < stuck.size(); ++rank) {
    if (stuck[rank] >= kStuck)
      full.push_back(rank);
    else if (stuck[rank] > kFree || stuck[rank] < 0)
      return -1;
  }
  const size_t ranks = stuck.size();
  if (full.size() == 1) return static_cast<int>(full[0]);
  if (full.size() != 2) return -1;
  if ((full[0] + 1) % ranks == full[1]) return static_cast<int>(full[1]);
  if ((full[1] + 1) % ranks == full[0]) return static_cast<int>(full[0]);
  return -1;
}

}  // namespace

int SlowRank::choose(size_t bytes, std::span<const float> stuck, double seconds) {
  if (seconds > 0 && last_bytes_ != 0) learn(seconds, stuck);
  if (pause_ > 0) --pause_;
  last_bytes_ = bytes;
  went_ = rank_ >= 0 && ++calls_ % kLookAgain != 0 ? rank_ : -1;
  return went_;
}

void SlowRank::learn(double seconds, std::span<const float> stuck) {
  const double rate = seconds / static_cast<double>(last_bytes_);
  double& usual = usual_[std::bit_width(last_bytes_) % usual_.size()];
  if (went_ >= 0) {
    around_ = around_ == 0 ? rate : 0.7 * around_ + 0.3 * rate;
    if (around_ <= kGain * plain_) return;
    rank_ = -1;
    pause_ = kPause;
  } else if (rank_ >= 0) {
    plain_ = rate;
    if (around_ <= kGain * plain_) return;
    rank_ = -1;  // it has recovered
    usual = rate;
  } else if (usual == 0 || rate <= kSlower * usual) {
    usual = usual == 0 ? rate : 0.8 * usual + 0.2 * rate;
    slow_calls_ = 0;
  } else if (++slow_calls_ >= kInARow && pause_ == 0) {
    rank_ = culprit(stuck);
    plain_ = rate;
    around_ = 0;
    calls_ = 0;
    slow_calls_ = 0;
  }
}

}  // namespace pycoll
