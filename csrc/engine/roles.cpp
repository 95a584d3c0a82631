#include "engine/roles.h"

namespace pycoll {
namespace {

std::byte* at(void* buffer, size_t offset) {
  return static_cast<std::byte*>(buffer) + offset;
}
const std::byte* at(const void* buffer, size_t offset) {
  return static_cast<const std::byte*>(buffer) + offset;
}

}  // namespace

Role role_of(const CollectiveCall& call, int rank) {
  const bool root = rank == call.root;
  switch (call.kind) {
    case CollectiveKind::AllReduce:
      return {.stages = true,
              .reads = true,
              .from_root = false,
              .personalised = false,
              .reduces = true,
              .gathers = false};
    case CollectiveKind::Reduce:
      return {.stages = !root,
              .reads = root,
              .from_root = false,
              .personalised = false,
              .reduces = true,
              .gathers = false};
    case CollectiveKind::ReduceScatter:
      return {.stages = true,
              .reads = true,
              .from_root = false,
              .personalised = true,
              .reduces = true,
              .gathers = false};
    case CollectiveKind::AllGather:
      return {.stages = true,
              .reads = true,
              .from_root = false,
              .personalised = false,
              .reduces = false,
              .gathers = true};
    case CollectiveKind::Gather:
      return {.stages = !root,
              .reads = root,
              .from_root = false,
              .personalised = false,
              .reduces = false,
              .gathers = true};
    case CollectiveKind::AllToAll:
      return {.stages = true,
              .reads = true,
              .from_root = false,
              .personalised = true,
              .reduces = false,
              .gathers = true};
    case CollectiveKind::Broadcast:
      return {.stages = root,
              .reads = true,
              .from_root = true,
              .personalised = false,
              .reduces = false,
              .gathers = false};
    case CollectiveKind::Scatter:
      return {.stages = root,
              .reads = true,
              .from_root = true,
              .personalised = true,
              .reduces = false,
              .gathers = false};
    case CollectiveKind::Barrier:
      break;
  }
  return {.stages = false,
          .reads = false,
          .from_root = false,
          .personalised = false,
          .reduces = false,
          .gathers = false};
}

void stage(const CollectiveCall& call, const Role& role, const Stage& part, int rank, int ranks,
           std::byte* slot, Stores stores) {
  if (!role.personalised) {
    copy_bytes(slot, at(call.input, part.offset), part.bytes, stores);
    return;
  }
  const size_t share = share_bytes(call);
  for (int reader = 0; reader < ranks; ++reader) {
    const auto r = static_cast<size_t>(reader);
    if (reader != rank)
      copy_bytes(slot + r * part.stride, at(call.input, r * share + part.offset), part.bytes, stores);
  }
}

Reader::Reader(int rank, int ranks)
    : slots(static_cast<size_t>(ranks)),
      factors(static_cast<size_t>(ranks)),
      rank_(rank),
      sources_(static_cast<size_t>(ranks)) {}

void Reader::read(const CollectiveCall& call, const Role& role, const Stage& part) {
  const auto me = static_cast<size_t>(rank_);
  const size_t ranks = slots.size();
  const size_t share = share_bytes(call);
  const size_t mine_in_slot = role.personalised ? me * part.stride : 0;
  const size_t mine_in_input = role.personalised ? me * share + part.offset : part.offset;
  const auto source = [&](size_t rank) {
    return rank == me ? at(call.input, mine_in_input) : slots[rank] + mine_in_slot;
  };
  if (role.reduces) {
    for (size_t rank = 0; rank < ranks; ++rank) sources_[rank] = source(rank);
    void* const destination = at(call.output, part.offset);
    reduce_many(call.dtype, call.op, sources_, {&destination, 1}, part.bytes / size_of(call.dtype),
                call.op == Op::PremulSum ? factors.data() : nullptr, 0);
  } else if (role.from_root) {
    std::byte* destination = at(call.output, part.offset);
    const std::byte* from = source(static_cast<size_t>(call.root));
    if (destination != from) copy_bytes(destination, from, part.bytes);
  } else {
    for (size_t rank = 0; rank < ranks; ++rank) {
      std::byte* destination = at(call.output, rank * share + part.offset);
      const std::byte* from = source(rank);
      if (destination != from) copy_bytes(destination, from, part.bytes);
    }
  }
}

}  // namespace pycoll
