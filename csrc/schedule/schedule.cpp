#include "schedule/schedule.h"

#include <algorithm>

namespace pycoll {

int rounds_of(const std::vector<Transfer>& transfers) {
  int rounds = 0;
  for (const Transfer& transfer : transfers) rounds = std::max(rounds, transfer.round + 1);
  return rounds;
}

int Schedule::rounds() const {
  return rounds_of(transfers);
}

// A multiply-xorshift chain over 64-bit words made of the values themselves, never of memory, so that padding
// and byte order do not enter.
uint64_t Schedule::hash() const {
  uint64_t state = 0x9e3779b97f4a7c15;
  const auto mix = [&state](int32_t high, int32_t low) {
    state ^= static_cast<uint64_t>(static_cast<uint32_t>(high)) << 32 | static_cast<uint32_t>(low);
    state *= 0xff51afd7ed558ccd;
    state ^= state >> 32;
  };
  mix(static_cast<int32_t>(collective.kind), collective.ranks);
  mix(collective.pieces, collective.root);
  const auto mix_all = [&mix](const std::vector<Transfer>& all) {
    for (const Transfer& transfer : all) {
      mix(transfer.round, transfer.piece);
      mix(transfer.src, transfer.dst);
      mix(0, static_cast<int32_t>(transfer.action));
    }
  };
  mix_all(transfers);
  for (const auto* elsewhere : {&preceding, &following}) {
    if (elsewhere->empty()) continue;
    mix(-1, elsewhere == &preceding);
    mix_all(*elsewhere);
  }
  return state;
}

}  // namespace pycoll
