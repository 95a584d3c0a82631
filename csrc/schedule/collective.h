// What a collective promises: for (rank, piece), the contributions held before and owed after. That is all
// `verify` needs, and where each piece lies in a rank's input and output is all execution needs.
//
// The logical buffer is cut in `pieces` contiguous parts; of N logical elements, piece p is [p*N/K,
// (p+1)*N/K).
//   all_reduce, reduce, broadcast   N = count                       input and output: the whole logical
//   buffer reduce_scatter                  N = ranks*count, K % ranks = 0  input: all; output: shard r
//   (K/ranks pieces) all_gather                      likewise                        input: shard r; output:
//   all gather / scatter                likewise                        output only at the root / input only
//   at the root all_to_all                      N = ranks*ranks*count, K % ranks^2 = 0; block (src, dst) is
//   block src*ranks+dst;
//                                   input: blocks (r, *); output: blocks (*, r)
//   barrier                         N = 0, K = 1
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

namespace pycoll {

enum class CollectiveKind : uint8_t {
  AllReduce,
  ReduceScatter,
  AllGather,
  Broadcast,
  Reduce,
  Gather,
  Scatter,
  AllToAll,
  Barrier,
};

// "allreduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "gather", "scatter", "all_to_all",
// "barrier"
std::string_view name_of(CollectiveKind kind);
std::optional<CollectiveKind> collective_from_name(std::string_view name);
bool is_reduction(CollectiveKind kind);  // takes an op
bool is_rooted(CollectiveKind kind);     // takes a root

struct Collective {
  CollectiveKind kind = CollectiveKind::AllReduce;
  int ranks = 1;
  int pieces = 1;
  int root = 0;

  bool operator==(const Collective&) const = default;

  void check() const;           // InvalidArgument unless ranks, pieces, root fit the kind
  void check_ranks() const;     // the first part of check; pieces_multiple() rests on it
  int pieces_multiple() const;  // pieces must be a multiple of this: 1, ranks or ranks^2

  // Logical elements for `count`, the element count of the caller's call: the whole buffer for allreduce,
  // reduce and broadcast, one shard or block for the others.
  uint64_t logical_elements(uint64_t count) const;
  uint64_t piece_begin(int piece, uint64_t logical_elements) const;

  // The one rank whose contribution the piece is, and the one rank that is owed it; kEveryRank where all do
  // or are.
  static constexpr int kEveryRank = -1;
  int sole_contributor(int piece) const;
  int sole_recipient(int piece) const;

  // Which ranks contribute to a complete piece: every rank for reductions and barrier, the piece's one owner
  // otherwise.
  bool contributes(int rank, int piece) const;
  bool holds_before(int rank, int piece) const;  // the rank's input has it
  bool owed_after(int rank, int piece) const;    // the rank's output must have it complete

  // Index of the piece among those of the rank's input / output buffer, in buffer order, e.g. for all_gather
  // the input of rank r begins with piece r*K/ranks, whose input index is 0. -1 when not there.
  int input_index(int rank, int piece) const;
  int output_index(int rank, int piece) const;
};

}  // namespace pycoll
