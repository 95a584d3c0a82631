// A rank whose link is slow makes a ring slow for all: everything passes it nearly twice. The late-rank
// schedule asks little more of the late rank than to send and to receive the buffer once, so a slow rank is
// best treated as if it were late. The clerk (roll_call.h) decides, call by call; this is how it makes up its
// mind.
#pragma once
#include <array>
#include <cstddef>
#include <span>

namespace pycoll {

class SlowRank {
 public:
  // For a call of so many bytes to which all have come in time. `stuck`, by rank: the share of its last
  // call's time in which a rank had something to send and no room for it; negative: not known. `seconds`:
  // what the last call took; 0: not known. Returns the rank to go around, -1: none, as usual.
  int choose(size_t bytes, std::span<const float> stuck, double seconds);

 private:
  void learn(double seconds, std::span<const float> stuck);

  int rank_ = -1;  // that is gone around at present
  int went_ = -1;  // that was in the last call
  size_t last_bytes_ = 0;
  std::array<double, 64> usual_{};  // seconds a byte of calls as usual, by the number of bits of their bytes
  double plain_ = 0;                // the same while the rank is slow
  double around_ = 0;               // and of calls around it
  int slow_calls_ = 0;              // in a row
  int calls_ = 0;                   // since a rank is gone around
  int pause_ = 0;                   // calls until the next attempt
};

}  // namespace pycoll
