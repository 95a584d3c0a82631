#include "engine/arrival_log.h"

#include <algorithm>

namespace pycoll {

ArrivalLog::ArrivalLog(int ranks)
    : ranks_(static_cast<size_t>(ranks)), ticks_(kRecords * ranks_), sequences_(kRecords) {}

std::span<uint64_t> ArrivalLog::begin(uint64_t sequence) {
  sequences_[sequence % kRecords] = sequence;
  return {&ticks_[sequence % kRecords * ranks_], ranks_};
}

std::vector<ArrivalRecord> ArrivalLog::records() const {
  const double tick = scale_.seconds_per_tick();
  std::vector<ArrivalRecord> result;
  for (size_t row = 0; row < kRecords; ++row) {
    if (sequences_[row] == 0) continue;
    const uint64_t* arrived = &ticks_[row * ranks_];
    const uint64_t first = *std::min_element(arrived, arrived + ranks_);
    ArrivalRecord record{sequences_[row], {}};
    for (size_t rank = 0; rank < ranks_; ++rank)
      record.lateness.push_back(static_cast<double>(arrived[rank] - first) * tick);
    result.push_back(std::move(record));
  }
  std::sort(result.begin(), result.end(),
            [](const auto& a, const auto& b) { return a.sequence < b.sequence; });
  return result;
}

}  // namespace pycoll
