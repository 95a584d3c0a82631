// A schedule as tables that a kernel reads: for each rank a list of instructions, each of which waits for
// flags, does one thing to one piece, and raises flags at peers. The kernel knows nothing else; all of the
// dataflow is here.
//
// Ranks *pull*: the receiver of a transfer loads the piece out of the sender's memory. So a transfer needs
// two flags: `ready`, from the sender, when the piece has the value to be sent, and `read`, from the
// receiver, before which the sender may not overwrite it. Transfers of one round read the state before it: a
// piece that its rank sends and receives in one round is copied aside first (Snapshot), but for the commonest
// case, two ranks that reduce one piece into each other: one of them loads both values and stores the result
// in both places (Swap).
//
// Nothing waits in a circle: within a round come first the snapshots and what offers a piece for a swap, then
// receives and swaps, then what awaits a swap of another rank; each kind waits only for kinds before it and
// for earlier rounds.
#pragma once
#include <cstdint>
#include <vector>

#include "schedule/schedule.h"

namespace pycoll::cuda {

enum class Kind : int32_t {
  Load,      // the piece's working memory from the user's input
  Snapshot,  // aside, where the transfers of this round read it
  Copy,      // from the one source
  Reduce,    // the sources, the piece itself among them, in their order, into the piece
  Swap,      // the piece and the other source, into both
  Pass,      // only waits and raises flags
  Store,     // the user's output from the piece's working memory
};

struct Instruction {
  Kind kind;
  int32_t piece;
  int32_t user_block;    // Load and Store: which of the equal blocks of the user's buffer the piece lies in
  int32_t first_wait;    // flags [first_wait, first_signal) are waited for,
  int32_t first_signal;  // [first_signal, end_signal) are raised
  int32_t end_signal;
  int32_t first_source;
  int32_t sources;
};

// A flag as a rank of the table sees it: which peer raises it (or has it raised), and which of that pair's
// flags it is.
constexpr int kSlotBits = 22;
constexpr uint32_t kMostSlots = 1u << kSlotBits;
constexpr int kMostRanks = 1 << (32 - kSlotBits);
constexpr uint32_t flag_of(int peer, uint32_t slot) {
  return static_cast<uint32_t>(peer) << kSlotBits | slot;
}

// A source is a rank; with this bit, its snapshot of the piece.
constexpr int32_t kFromSnapshot = 1 << 30;

struct Table {
  std::vector<Instruction> instructions;
  std::vector<uint32_t> flags;
  std::vector<int32_t> sources;
};

struct Tables {
  Collective collective;
  std::vector<Table> by_rank;
  int slots = 0;           // the most flags of any pair
  bool snapshots = false;  // a second working memory is needed
};

// Of a verified schedule. Unsupported for a part of one, and where ranks or transfers are more than a flag
// can say.
Tables make_tables(const Schedule& schedule);

}  // namespace pycoll::cuda
