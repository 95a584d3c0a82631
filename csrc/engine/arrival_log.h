// When each rank reached the last collectives.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "core/clock.h"
#include "engine/communicator.h"

namespace pycoll {

class ArrivalLog {
 public:
  explicit ArrivalLog(int ranks);

  // To be filled with the ticks of each rank's arrival.
  std::span<uint64_t> begin(uint64_t sequence);
  std::vector<ArrivalRecord> records() const;
  double seconds_per_tick() const { return scale_.seconds_per_tick(); }

 private:
  static constexpr size_t kRecords = 1024;
  TickScale scale_;
  size_t ranks_;
  std::vector<uint64_t> ticks_;  // kRecords rows of ranks
  std::vector<uint64_t> sequences_;
};

}  // namespace pycoll
