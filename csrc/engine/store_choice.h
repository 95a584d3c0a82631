// Plain or non-temporal stores into the staging ring? Where the processors share a cache, plain ones win
// about twice; where they do not, a plain store to a line that the other side has just read waits for it to
// come across, and non-temporal ones win up to six times. A virtual machine moves between the two within
// seconds, so the choice is measured, all the time: mostly the better one is used, now and then the other is
// tried.
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "reduce/reduce.h"
#include "schedule/collective.h"

namespace pycoll {

class StoreChoice {
 public:
  // For the next operation that stages `bytes`.
  Stores choose(CollectiveKind kind, size_t bytes) {
    SizeClass& entry = class_of(kind, bytes);
    const uint32_t turn = entry.turn++ % kPeriod;
    if (turn >= 2 * kTrial) return entry.best();
    // The first operation after a change also pays for what the one before left in the caches: see `record`.
    entry.settled = turn % kTrial != 0;
    return turn < kTrial ? Stores::Plain : Stores::NonTemporal;
  }

  void record(CollectiveKind kind, size_t bytes, Stores stores, uint64_t ticks) {
    SizeClass& entry = class_of(kind, bytes);
    if (!entry.settled) {
      entry.settled = true;
      return;
    }
    entry.samples[static_cast<size_t>(stores)].add(static_cast<double>(ticks) / static_cast<double>(bytes));
  }

 private:
  static constexpr uint32_t kPeriod = 96;
  static constexpr uint32_t kTrial = 3;  // operations in a row, of which the first is not counted

  struct Samples {  // the least of the last few: noise only ever adds
    std::array<double, 4> last{kNone, kNone, kNone, kNone};
    uint32_t next = 0;
    static constexpr double kNone = std::numeric_limits<double>::infinity();
    void add(double value) { last[next++ % last.size()] = value; }
    double least() const { return *std::min_element(last.begin(), last.end()); }
  };
  struct SizeClass {
    uint32_t turn = 0;
    bool settled = true;
    std::array<Samples, 2> samples;
    Stores best() const {
      return samples[1].least() < samples[0].least() ? Stores::NonTemporal : Stores::Plain;
    }
  };
  SizeClass& class_of(CollectiveKind kind, size_t bytes) {
    auto& classes = classes_[static_cast<size_t>(kind)];
    return classes[std::min<size_t>(std::bit_width(bytes), classes.size() - 1)];
  }

  std::array<std::array<SizeClass, 36>, static_cast<size_t>(CollectiveKind::Barrier)> classes_;
};

}  // namespace pycoll
