// Plain or non-temporal stores into the staging ring? Where the processors share a cache, plain ones win
// about twice; where they do not, a plain store to a line that the other side has just read waits for it to
// come across, and non-temporal ones win up to six times. A virtual machine moves between the two within
// seconds, so the choice is measured, all the time: mostly the better one is used, now and then both are
// tried for a few chunks. Each rank chooses for what it writes; all try at the same chunks.
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "core/clock.h"
#include "reduce/reduce.h"

namespace pycoll {

class StoreChoice {
 public:
  // An operation begins; its chunks are `chunk_bytes` long.
  void begin_operation(size_t chunk_bytes) {
    current_ = &classes_[std::min<size_t>(std::bit_width(chunk_bytes), classes_.size() - 1)];
    bytes_ = 0;
  }
  // A chunk begins: what passed since the last one began is how long that took.
  Stores begin_chunk(size_t bytes) {
    end_chunk();
    bytes_ = bytes;
    const uint32_t turn = current_->turn++ % kPeriod;
    const bool trial = turn < 2 * kTrial;
    // The first chunks after a change still pay for what the ones before left in the caches.
    counts_ = turn % kTrial >= kSettle || turn >= 2 * kTrial + kSettle;
    stores_ = !trial ? current_->best() : turn < kTrial ? Stores::Plain : Stores::NonTemporal;
    return stores_;
  }
  void end_chunk() {
    const uint64_t now = ticks();
    if (bytes_ != 0 && counts_)
      current_->samples[static_cast<size_t>(stores_)].add(static_cast<double>(now - began_) /
                                                          static_cast<double>(bytes_));
    bytes_ = 0;
    began_ = now;
  }

 private:
  static constexpr uint32_t kTrial = 6;
  static constexpr uint32_t kSettle = 3;
  static constexpr uint32_t kPeriod = 240;

  struct Samples {  // the least of the last few: noise only ever adds
    static constexpr double kNone = std::numeric_limits<double>::infinity();
    std::array<double, 4> last{kNone, kNone, kNone, kNone};
    uint32_t next = 0;
    void add(double value) { last[next++ % last.size()] = value; }
    double least() const { return *std::min_element(last.begin(), last.end()); }
  };
  struct SizeClass {
    uint32_t turn = 0;
    std::array<Samples, 2> samples;
    Stores best() const {
      return samples[1].least() < samples[0].least() ? Stores::NonTemporal : Stores::Plain;
    }
  };

  std::array<SizeClass, 36> classes_;
  SizeClass* current_ = nullptr;
  Stores stores_ = Stores::Plain;
  bool counts_ = false;
  size_t bytes_ = 0;  // of the chunk under way; 0: none
  uint64_t began_ = 0;
};

}  // namespace pycoll
