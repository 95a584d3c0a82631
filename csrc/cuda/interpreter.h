// The kernel that runs any schedule. Each block has its own slice of every piece, its own flags and its own
// counter of calls, so blocks meet only the same block of other ranks and never each other; each walks the
// rank's table from top to bottom (see table.h for why nobody waits in a circle).
//
// Further needs of a Context, beside slices.h's:
//   sync()                        all threads of the block
//   all(bool)                     sync, and whether every thread said true
//   raise(uint64_t*, value)       release: who sees the flag sees what the block did before its last sync
//   await(const uint64_t*, value) acquire, until the flag is `value` or more; false: the group was aborted
//   add(uint64_t*, value)         at any rank; returns what was there
// and, of packets.h's, post() and receive().
#pragma once
#include "cuda/agreement.h"
#include "cuda/layout.h"
#include "cuda/slices.h"
#include "cuda/table.h"

namespace pycoll::cuda {

// A Table in the memory that the kernel reads.
struct TableView {
  const Instruction* instructions;
  const uint32_t* flags;
  const int32_t* sources;
  int32_t count;
};

struct ScheduleCall {
  Layout layout;
  char* const* heaps;       // by rank, as mapped here
  char* const* work;        // by rank: working memory, aligned to 16; staging, or users' registered buffers
  uint64_t snapshots;       // where a rank's second working memory begins, from its first
  const TableView* tables;  // by rank of the schedule where the late rank is found at run time, else one
  int rank;
  int pieces;
  int pieces_per_block;  // of the user's buffer
  bool finds_late;
  uint64_t elements;        // of the logical buffer in this call
  uint64_t block_elements;  // of a block of it
  uint64_t block_stride;    // elements from one block of working memory to the next
  const char* input;
  char* output;
  uint64_t input_stride;  // elements from one block of the user's input to the next
  uint64_t output_stride;
  Offer offer;  // ranks work in their outputs where all are in pools that peers have mapped; else in `work`
  OpParams params;
};

// Who is late: the ranks draw tickets, and the drawer of the last but one knows by the sum of all drawn so
// far who is missing. A rank learns it without waiting for the late one; the late one learns it from its
// ticket. Returns -1 when the group was aborted.
template <class Context>
PYCOLL_BOTH int find_late(Context& context, const ScheduleCall& call) {
  const size_t late_word = call.layout.late(context.block());
  auto* const mine = reinterpret_cast<uint64_t*>(call.heaps[call.rank] + late_word);
  auto* const counter = reinterpret_cast<uint64_t*>(call.heaps[call.rank] + late_word + 8);
  const uint64_t calls = *counter;
  // 12 bits of the word say who, the others which call.
  const uint64_t stamp = (calls + 1) << 12;
  if (context.thread() == 0) {
    // The tickets' word has the number of those drawn and, above it, the sum of who drew them.
    const auto ranks = static_cast<uint64_t>(call.layout.ranks);
    const uint64_t sum = ranks * (ranks - 1) / 2;
    auto* const tickets = reinterpret_cast<uint64_t*>(call.heaps[0] + call.layout.ticket(context.block()));
    const uint64_t drawn =
        context.add(tickets, 1 | static_cast<uint64_t>(call.rank) << 32) - calls * (ranks | sum << 32);
    const uint64_t ticket = drawn & 0xffffffffu, others = drawn >> 32;
    if (ticket == ranks - 1) context.raise(mine, stamp | static_cast<uint64_t>(call.rank));
    if (ticket == ranks - 2) {
      const uint64_t late = sum - others - static_cast<uint64_t>(call.rank);
      for (uint64_t rank = 0; rank < ranks; ++rank)
        if (rank != late)
          context.raise(reinterpret_cast<uint64_t*>(call.heaps[rank] + late_word), stamp | late);
    }
  }
  if (!context.all(context.await(mine, stamp))) return -1;
  if (context.thread() == 0) *counter = calls + 1;
  return static_cast<int>(*mine & 0xfffu);
}

template <class R, class Context>
PYCOLL_BOTH void load_piece(Context& context, const ScheduleCall& call, char* work, const Slice& slice,
                            int64_t shift) {
  using Storage = typename R::Storage;
  using Wire = typename R::Wire::Storage;
  const auto* const from = reinterpret_cast<const Storage*>(call.input) + shift;
  if constexpr (R::kAsTheyAre) {
    const char* const bytes = reinterpret_cast<const char*>(from);
    if (bytes == work) return;
    if (reinterpret_cast<uintptr_t>(bytes) % 16 == 0) return copy_slice(context, work, bytes, slice);
  }
  auto* const to = reinterpret_cast<Wire*>(work);
  for_each_element(context, slice, sizeof(Wire), [&](uint64_t i) {
    if constexpr (R::kAsTheyAre) {
      to[i] = from[i];
    } else {
      to[i] = R::Wire::encode(R::term(from[i], call.params, call.params.factor));
    }
  });
}

template <class R, class Context>
PYCOLL_BOTH void store_piece(Context& context, const ScheduleCall& call, const char* work, const Slice& slice,
                             int64_t shift) {
  using Storage = typename R::Storage;
  using Wire = typename R::Wire::Storage;
  auto* const to = reinterpret_cast<Storage*>(call.output) + shift;
  if constexpr (R::kAsTheyAre) {
    char* const bytes = reinterpret_cast<char*>(to);
    if (bytes == work) return;
    if (reinterpret_cast<uintptr_t>(bytes) % 16 == 0) return copy_slice(context, bytes, work, slice);
  }
  const auto* const from = reinterpret_cast<const Wire*>(work);
  for_each_element(context, slice, sizeof(Wire), [&](uint64_t i) {
    if constexpr (R::kAsTheyAre) {
      to[i] = from[i];
    } else {
      to[i] = R::finish(R::Wire::decode(from[i]), call.params);
    }
  });
}

// Runs the call on one block of one rank. False: the group was aborted, and the output holds anything.
template <class R, class Context>
PYCOLL_BOTH bool run_schedule(Context& context, const ScheduleCall& call) {
  using Wire = typename R::Wire::Storage;
  const Layout& layout = call.layout;
  char* const heap = call.heaps[call.rank];
  auto* const calls = reinterpret_cast<uint64_t*>(heap + layout.schedule_calls(context.block()));
  const uint64_t epoch = *calls + 1;

  // The schedule's last rank is the late one; without one to be found, ranks are as they are numbered.
  const int last = layout.ranks - 1;
  int late = last;
  if (call.finds_late) {
    late = find_late(context, call);
    if (late < 0) return false;
  }
  const auto real = [&](int rank) { return rank == last ? late : rank < late ? rank : rank + 1; };
  const int acting = call.rank == late ? last : call.rank < late ? call.rank : call.rank - 1;
  const TableView table = call.tables[call.finds_late ? acting : 0];
  char* const* memories = call.work;
  if (call.offer.asks) {
    memories = agreed_memories(context, layout, call.heaps, call.rank, call.offer, memories);
    if (memories == nullptr) return false;
  }
  char* const work = memories[call.rank];

  for (int32_t index = 0; index < table.count; ++index) {
    const Instruction instruction = table.instructions[index];
    bool fine = true;
    for (int32_t w = instruction.first_wait + context.thread(); w < instruction.first_signal;
         w += context.threads()) {
      const uint32_t flag = table.flags[w];
      const int from = real(static_cast<int>(flag >> kSlotBits));
      const int slot = static_cast<int>(flag & (kMostSlots - 1));
      fine = context.await(reinterpret_cast<uint64_t*>(heap + layout.flag(context.block(), from, slot)),
                           epoch) &&
             fine;
    }
    if (!context.all(fine)) return false;

    const int block = instruction.piece / call.pieces_per_block;
    const Range part =
        part_of(call.block_elements, static_cast<uint64_t>(instruction.piece - block * call.pieces_per_block),
                static_cast<uint64_t>(call.pieces_per_block));
    const uint64_t before = static_cast<uint64_t>(block) * call.block_stride;
    const Slice slice = slice_of({(before + part.begin) * sizeof(Wire), (before + part.end) * sizeof(Wire)},
                                 context.block(), context.blocks());
    const auto source = [&](int s) -> const char* {
      const int32_t code = table.sources[instruction.first_source + s];
      const char* const base = memories[real(code & ~kFromSnapshot)];
      return (code & kFromSnapshot) != 0 ? base + call.snapshots : base;
    };
    // From an element of working memory to that of the user's buffer.
    const auto shift = [&](uint64_t stride) {
      return static_cast<int64_t>(static_cast<uint64_t>(instruction.user_block) * stride) -
             static_cast<int64_t>(before);
    };
    switch (instruction.kind) {
      case Kind::Load:
        load_piece<R>(context, call, work, slice, shift(call.input_stride));
        break;
      case Kind::Snapshot:
        copy_slice(context, work + call.snapshots, work, slice);
        break;
      case Kind::Copy:
        copy_slice(context, work, source(0), slice);
        break;
      case Kind::Reduce:
        reduce_slice<R>(context, work, nullptr, instruction.sources, source, slice);
        break;
      case Kind::Swap: {
        char* const other = const_cast<char*>(source(1));
        reduce_slice<R>(context, work, other, 2, source, slice);
        break;
      }
      case Kind::Store:
        store_piece<R>(context, call, work, slice, shift(call.output_stride));
        break;
      case Kind::Pass:
        break;
    }

    if (instruction.first_signal == instruction.end_signal) continue;
    context.sync();
    for (int32_t s = instruction.first_signal + context.thread(); s < instruction.end_signal;
         s += context.threads()) {
      const uint32_t flag = table.flags[s];
      char* const peer = call.heaps[real(static_cast<int>(flag >> kSlotBits))];
      const int slot = static_cast<int>(flag & (kMostSlots - 1));
      context.raise(reinterpret_cast<uint64_t*>(peer + layout.flag(context.block(), call.rank, slot)), epoch);
    }
  }
  context.sync();
  if (context.thread() == 0) *calls = epoch;
  return true;
}

}  // namespace pycoll::cuda
