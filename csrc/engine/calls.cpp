#include "engine/calls.h"

#include "core/error.h"

namespace pycoll {

Extents extents_of(const CollectiveCall& call, int ranks) {
  const size_t share = call.count * size_of(call.dtype);
  const size_t all = share * static_cast<size_t>(ranks);
  switch (call.kind) {
    case CollectiveKind::AllGather:
    case CollectiveKind::Gather:
      return {share, all};
    case CollectiveKind::ReduceScatter:
    case CollectiveKind::Scatter:
      return {all, share};
    case CollectiveKind::AllToAll:
      return {all, all};
    default:
      return {share, share};
  }
}

uint64_t table_bytes(const CollectiveCall& call, int ranks) {
  const uint64_t share = call.count * size_of(call.dtype);
  switch (call.kind) {
    case CollectiveKind::AllReduce:
    case CollectiveKind::Reduce:
    case CollectiveKind::Broadcast:
      return share;
    case CollectiveKind::Barrier:
      return 0;
    default:
      return share * static_cast<uint64_t>(ranks);
  }
}

namespace {

bool overlap(const CollectiveCall& call, int ranks) {
  if (call.input == nullptr || call.output == nullptr) return false;
  const auto input = reinterpret_cast<uintptr_t>(call.input);
  const auto output = reinterpret_cast<uintptr_t>(call.output);
  const Extents bytes = extents_of(call, ranks);
  return input < output + bytes.output && output < input + bytes.input;
}

// In place: the same buffer, or where one side is a share, the rank's own share of the other.
bool in_place(const CollectiveCall& call, int ranks, int rank) {
  const Extents bytes = extents_of(call, ranks);
  const auto* input = static_cast<const std::byte*>(call.input);
  const auto* output = static_cast<const std::byte*>(call.output);
  const auto me = static_cast<size_t>(rank);
  if (bytes.input < bytes.output) return input == output + me * bytes.input;
  if (bytes.output < bytes.input) return output == input + me * bytes.output;
  return input == output;
}

// Whether the call moves data into or out of this rank, hence needs the pointer.
bool needs_input(const CollectiveCall& call, int rank) {
  if (call.count == 0 || call.kind == CollectiveKind::Barrier) return false;
  return rank == call.root ||
         (call.kind != CollectiveKind::Broadcast && call.kind != CollectiveKind::Scatter);
}

bool needs_output(const CollectiveCall& call, int rank) {
  if (call.count == 0 || call.kind == CollectiveKind::Barrier) return false;
  return rank == call.root || (call.kind != CollectiveKind::Reduce && call.kind != CollectiveKind::Gather);
}

}  // namespace

void check_call(const CollectiveCall& call, int rank, int ranks, const std::string& group) {
  const auto complain = [&](const std::string& what) {
    throw InvalidArgument("group '" + group + "', rank " + std::to_string(rank) + ": " +
                          std::string(name_of(call.kind)) + " " + what);
  };
  if (is_rooted(call.kind) && (call.root < 0 || call.root >= ranks))
    complain("with root " + std::to_string(call.root) + "; the group has ranks 0 to " +
             std::to_string(ranks - 1));
  if (call.input == nullptr && needs_input(call, rank)) complain("needs an input buffer on this rank");
  if (call.output == nullptr && needs_output(call, rank)) complain("needs an output buffer on this rank");
  if (overlap(call, ranks) && !in_place(call, ranks, rank))
    complain("with an input and an output that overlap, other than in place; give it a copy of the input");
  if (call.dtype == DType::Int128) complain("has no dtype int128");
  if (is_reduction(call.kind)) {
    require_supported(call.dtype, call.op);
    if (call.op == Op::PremulSum) require_factor(call.dtype, call.factor);
  }
}

}  // namespace pycoll
