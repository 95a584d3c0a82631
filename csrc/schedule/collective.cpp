#include "schedule/collective.h"

#include <algorithm>
#include <array>
#include <string>

#include "core/error.h"

namespace pycoll {

namespace {

struct Kind {
  CollectiveKind kind;
  std::string_view name;
  bool reduction;
  bool rooted;
};

constexpr std::array<Kind, 9> kKinds = {{
    {CollectiveKind::AllReduce, "allreduce", true, false},
    {CollectiveKind::ReduceScatter, "reduce_scatter", true, false},
    {CollectiveKind::AllGather, "all_gather", false, false},
    {CollectiveKind::Broadcast, "broadcast", false, true},
    {CollectiveKind::Reduce, "reduce", true, true},
    {CollectiveKind::Gather, "gather", false, true},
    {CollectiveKind::Scatter, "scatter", false, true},
    {CollectiveKind::AllToAll, "all_to_all", false, false},
    {CollectiveKind::Barrier, "barrier", false, false},
}};

const Kind& entry(CollectiveKind kind) {
  return kKinds[static_cast<size_t>(kind)];
}

// all_to_all numbers ranks * ranks blocks in an int32.
constexpr int kMaxRanks = 1 << 15;

// More than any use has; a schedule of as many transfers still fits memory. all_to_all may need more.
constexpr int kMaxPieces = 1 << 20;

}  // namespace

std::string_view name_of(CollectiveKind kind) {
  return entry(kind).name;
}

std::optional<CollectiveKind> collective_from_name(std::string_view name) {
  for (const Kind& known : kKinds)
    if (known.name == name) return known.kind;
  return std::nullopt;
}

bool is_reduction(CollectiveKind kind) {
  return entry(kind).reduction;
}
bool is_rooted(CollectiveKind kind) {
  return entry(kind).rooted;
}

int Collective::pieces_multiple() const {
  switch (kind) {
    case CollectiveKind::ReduceScatter:
    case CollectiveKind::AllGather:
    case CollectiveKind::Gather:
    case CollectiveKind::Scatter:
      return ranks;
    case CollectiveKind::AllToAll:
      return ranks * ranks;
    default:
      return 1;
  }
}

void Collective::check_ranks() const {
  if (ranks < 1 || ranks > kMaxRanks)
    throw InvalidArgument(std::string(name_of(kind)) + ": ranks must be between 1 and " +
                          std::to_string(kMaxRanks) + ", not " + std::to_string(ranks));
}

void Collective::check() const {
  check_ranks();
  const std::string name(name_of(kind));
  const int most = std::max(kMaxPieces, pieces_multiple());
  if (pieces < 1 || pieces > most)
    throw InvalidArgument(name + ": pieces must be between 1 and " + std::to_string(most) + ", not " +
                          std::to_string(pieces));
  if (kind == CollectiveKind::Barrier && pieces != 1)
    throw InvalidArgument("barrier: pieces must be 1, not " + std::to_string(pieces) +
                          ": a barrier carries no data");
  if (pieces % pieces_multiple() != 0)
    throw InvalidArgument(name + ": with " + std::to_string(ranks) + " ranks, pieces must be a multiple of " +
                          std::to_string(pieces_multiple()) + ", not " + std::to_string(pieces));
  if (!is_rooted(kind) && root != 0)
    throw InvalidArgument(name + ": takes no root, but root is " + std::to_string(root));
  if (root < 0 || root >= ranks)
    throw InvalidArgument(name + ": root must be between 0 and " + std::to_string(ranks - 1) + ", not " +
                          std::to_string(root));
}

uint64_t Collective::logical_elements(uint64_t count) const {
  if (kind == CollectiveKind::Barrier) return 0;
  return count * static_cast<uint64_t>(pieces_multiple());
}

uint64_t Collective::piece_begin(int piece, uint64_t logical_elements) const {
  // piece * N / K without overflow: N = quotient * K + remainder, and piece, remainder and K fit 32 bits.
  const uint64_t k = static_cast<uint64_t>(pieces), p = static_cast<uint64_t>(piece);
  return p * (logical_elements / k) + p * (logical_elements % k) / k;
}

int Collective::sole_contributor(int piece) const {
  switch (kind) {
    case CollectiveKind::AllGather:
    case CollectiveKind::Gather:
    case CollectiveKind::AllToAll:  // block (src, dst) is block src * ranks + dst
      return piece / (pieces / ranks);
    case CollectiveKind::Broadcast:
    case CollectiveKind::Scatter:
      return root;
    default:
      return kEveryRank;
  }
}

int Collective::sole_recipient(int piece) const {
  switch (kind) {
    case CollectiveKind::ReduceScatter:
    case CollectiveKind::Scatter:
      return piece / (pieces / ranks);
    case CollectiveKind::Reduce:
    case CollectiveKind::Gather:
      return root;
    case CollectiveKind::AllToAll:
      return piece / (pieces / (ranks * ranks)) % ranks;
    default:
      return kEveryRank;
  }
}

bool Collective::contributes(int rank, int piece) const {
  const int sole = sole_contributor(piece);
  return sole == kEveryRank || sole == rank;
}

bool Collective::holds_before(int rank, int piece) const {
  return contributes(rank, piece);
}

bool Collective::owed_after(int rank, int piece) const {
  const int sole = sole_recipient(piece);
  return sole == kEveryRank || sole == rank;
}

int Collective::input_index(int rank, int piece) const {
  if (!holds_before(rank, piece)) return -1;
  switch (kind) {
    case CollectiveKind::AllGather:
    case CollectiveKind::Gather:
    case CollectiveKind::AllToAll:
      return piece - rank * (pieces / ranks);
    default:
      return piece;
  }
}

int Collective::output_index(int rank, int piece) const {
  if (!owed_after(rank, piece)) return -1;
  switch (kind) {
    case CollectiveKind::ReduceScatter:
    case CollectiveKind::Scatter:
      return piece - rank * (pieces / ranks);
    case CollectiveKind::AllToAll: {
      const int in_block = pieces / (ranks * ranks);
      const int source = piece / in_block / ranks;
      return source * in_block + piece % in_block;
    }
    default:
      return piece;
  }
}

}  // namespace pycoll
