// A collective algorithm is data: a list of transfers. Everything else in pycoll reads this one object
// (verify, execute, draw; later simulate and select), and nothing else knows what "ring" means.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "schedule/collective.h"

namespace pycoll {

enum class Action : uint8_t {
  Copy,    // overwrite (dst, piece) with (src, piece)
  Reduce,  // add (src, piece) into (dst, piece)
};

// In `round`, rank `src` sends its value of `piece` to rank `dst`. Transfers of one round read the state
// before it. A round is an order, never a barrier: execution is dataflow.
struct Transfer {
  int32_t round;
  int32_t src;
  int32_t dst;
  int32_t piece;
  Action action;
  bool operator==(const Transfer&) const = default;
};

struct Schedule {
  Collective collective;  // kind, ranks, pieces, root
  std::vector<Transfer> transfers;
  std::string algorithm;                      // registry name, or the user's own
  std::map<std::string, std::string> params;  // what the builder was given, for people and for files

  // Of a part of a collective: what ran before it, and what is to run after it, each with rounds of its own
  // from 0. A part is verified in its place and can be simulated alone, but not executed: it does not do its
  // collective.
  std::vector<Transfer> preceding;
  std::vector<Transfer> following;

  bool is_part() const { return !preceding.empty() || !following.empty(); }
  int ranks() const { return collective.ranks; }
  int pieces() const { return collective.pieces; }
  int rounds() const;     // greatest round + 1; 0 without transfers
  uint64_t hash() const;  // of collective and all transfers, not of names; equal on every machine
};

int rounds_of(const std::vector<Transfer>& transfers);

}  // namespace pycoll
