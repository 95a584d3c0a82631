// Kernels for small buffers, where latency is all: data and flag travel in one 16-byte word, so there are no
// rounds of flags and no fences. Each block has packets of its own at every peer, for two calls in flight: a
// rank that begins call k+2 of a block has got packets of call k+1 from every peer (itself, or by way of who
// gathered them), and a peer sends those only after it has ended call k, whose packets are then overwritten.
//
// Further needs of a Context, beside slices.h's:
//   post(Packet*, data0, data1, flag)              two 8-byte stores
//   receive(const Packet*, flag, data0&, data1&)   until both flags are `flag`; false: the group was aborted
#pragma once
#include "cuda/layout.h"
#include "cuda/slices.h"

namespace pycoll::cuda {

struct PacketCall {
  Layout layout;
  char* const* heaps;  // by rank, as mapped here
  int rank;
  const char* input;
  char* output;
  uint64_t elements;  // one_shot: of the buffer. two_shot: of all shards. all_gather: of the rank's input
  bool gathers;       // two_shot: all ranks get all shards (allreduce); else each its own (reduce_scatter)
  OpParams params;
};

// The eight bytes of a packet, as elements; what is past the end of the buffer is zero and never stored.
template <class Storage>
struct PacketElements {
  static constexpr int kElements = 8 / static_cast<int>(sizeof(Storage));
  Storage elements[kElements];
};

template <class Storage>
PYCOLL_BOTH PacketElements<Storage> read_group(const Storage* from, uint64_t left) {
  PacketElements<Storage> group;
  PYCOLL_UNROLL
  for (int i = 0; i < PacketElements<Storage>::kElements; ++i)
    group.elements[i] = static_cast<uint64_t>(i) < left ? from[i] : Storage{};
  return group;
}

template <class Storage>
PYCOLL_BOTH void write_group(Storage* to, uint64_t left, const PacketElements<Storage>& group) {
  PYCOLL_UNROLL
  for (int i = 0; i < PacketElements<Storage>::kElements; ++i)
    if (static_cast<uint64_t>(i) < left) to[i] = group.elements[i];
}

// Calls are counted in 32 bits. No call is number 0, which memory says that was never written; 2 comes after
// the last, so that odd and even ones, which have packets of their own, still take turns.
PYCOLL_BOTH uint32_t next_call(uint32_t call) {
  return call + 1 != 0 ? call + 1 : 2;
}

// A block's view of a call: which packets are whose.
template <class R, class Context>
struct PacketBlock {
  using Storage = typename R::Storage;
  using Elements = PacketElements<Storage>;
  static constexpr int kElements = Elements::kElements;

  Context& context;
  const PacketCall& call;
  uint32_t epoch;

  PYCOLL_BOTH PacketBlock(Context& used, const PacketCall& made) : context(used), call(made) {
    epoch = next_call(*counter());
    if constexpr (R::kOperator == Op::PremulSum)
      if (context.thread() == 0) send_factor();
  }
  PYCOLL_BOTH uint32_t* counter() const {
    return reinterpret_cast<uint32_t*>(call.heaps[call.rank] + call.layout.packet_calls(context.block()));
  }
  PYCOLL_BOTH bool end(bool fine) const {
    fine = context.all(fine);
    if (context.thread() == 0) *counter() = epoch;
    return fine;
  }

  // The first packet of a sender is its factor's.
  PYCOLL_BOTH Packet* packet(int at, int from, uint64_t index) const {
    char* const begin = call.heaps[at] + call.layout.packet(context.block(), epoch, from);
    return reinterpret_cast<Packet*>(begin) + 1 + index;
  }
  PYCOLL_BOTH void send(int to, uint64_t index, const Elements& group) const {
    uint32_t words[2];
    memcpy(words, &group, 8);
    context.post(packet(to, call.rank, index), words[0], words[1], epoch);
  }
  PYCOLL_BOTH bool receive(int from, uint64_t index, Elements& group) const {
    uint32_t words[2];
    if (!context.receive(packet(call.rank, from, index), epoch, words[0], words[1])) return false;
    memcpy(&group, words, 8);
    return true;
  }
  PYCOLL_BOTH void send_factor() const {
    uint32_t words[2];
    memcpy(words, &call.params.factor, 8);
    for (int peer = 0; peer < call.layout.ranks; ++peer)
      if (peer != call.rank) context.post(packet(peer, call.rank, 0) - 1, words[0], words[1], epoch);
  }
  PYCOLL_BOTH bool factor_of(int rank, double& factor) const {
    factor = call.params.factor;
    if (R::kOperator != Op::PremulSum || rank == call.rank) return true;
    uint32_t words[2];
    if (!context.receive(packet(call.rank, rank, 0) - 1, epoch, words[0], words[1])) return false;
    memcpy(&factor, words, 8);
    return true;
  }

  // Everybody's elements of one packet, reduced in the order of ranks; this rank's own are `mine`.
  PYCOLL_BOTH bool reduce(uint64_t index, const Elements& mine, Elements& result) const {
    typename R::Acc sums[kElements] = {};
    for (int rank = 0; rank < call.layout.ranks; ++rank) {
      Elements group = mine;
      double factor;
      if (rank != call.rank && !receive(rank, index, group)) return false;
      if (!factor_of(rank, factor)) return false;
      PYCOLL_UNROLL
      for (int i = 0; i < kElements; ++i) {
        const auto term = R::term(group.elements[i], call.params, factor);
        sums[i] = rank == 0 ? term : R::combine(sums[i], term);
      }
    }
    PYCOLL_UNROLL
    for (int i = 0; i < kElements; ++i) result.elements[i] = R::finish(sums[i], call.params);
    return true;
  }

  // Peers beginning with the next rank, so that not all send to one first.
  PYCOLL_BOTH int peer(int i) const { return (call.rank + i) % call.layout.ranks; }
};

PYCOLL_BOTH uint64_t packets_for(uint64_t elements, int per_packet) {
  return (elements + static_cast<uint64_t>(per_packet) - 1) / static_cast<uint64_t>(per_packet);
}

// AllReduce: every rank sends its buffer to all, and reduces all buffers.
template <class R, class Context>
PYCOLL_BOTH bool run_one_shot(Context& context, const PacketCall& call) {
  using Block = PacketBlock<R, Context>;
  const Block block(context, call);
  const auto* const input = reinterpret_cast<const typename R::Storage*>(call.input);
  auto* const output = reinterpret_cast<typename R::Storage*>(call.output);
  const Range mine = part_of(packets_for(call.elements, Block::kElements),
                             static_cast<uint64_t>(context.block()), static_cast<uint64_t>(context.blocks()));
  const uint64_t first = mine.begin + static_cast<uint64_t>(context.thread());
  const auto step = static_cast<uint64_t>(context.threads());
  for (uint64_t p = first; p < mine.end; p += step) {
    const uint64_t at = p * Block::kElements;
    const auto group = read_group(input + at, call.elements - at);
    for (int i = 1; i < call.layout.ranks; ++i) block.send(block.peer(i), p - mine.begin, group);
  }
  bool fine = true;
  for (uint64_t p = first; fine && p < mine.end; p += step) {
    const uint64_t at = p * Block::kElements;
    typename Block::Elements result;
    fine = block.reduce(p - mine.begin, read_group(input + at, call.elements - at), result);
    if (fine) write_group(output + at, call.elements - at, result);
  }
  return block.end(fine);
}

// Every rank sends shard j to rank j, which reduces it; for an allreduce it then sends the result to all.
// A sender's packets are halved: contributions, then results.
template <class R, class Context>
PYCOLL_BOTH bool run_two_shot(Context& context, const PacketCall& call) {
  using Block = PacketBlock<R, Context>;
  const Block block(context, call);
  const auto ranks = static_cast<uint64_t>(call.layout.ranks);
  const auto* const input = reinterpret_cast<const typename R::Storage*>(call.input);
  auto* const output = reinterpret_cast<typename R::Storage*>(call.output);
  const uint64_t longest = (call.elements + ranks - 1) / ranks;
  const Range mine = part_of(packets_for(longest, Block::kElements), static_cast<uint64_t>(context.block()),
                             static_cast<uint64_t>(context.blocks()));
  const uint64_t second_half = static_cast<uint64_t>(call.layout.packets) / 2;
  // visit(packet within the block, first element, elements left in the shard) for the block's part of a
  // shard.
  const auto for_shard = [&](int owner, const auto& visit) {
    const Range shard = part_of(call.elements, static_cast<uint64_t>(owner), ranks);
    for (uint64_t p = mine.begin + static_cast<uint64_t>(context.thread()); p < mine.end;
         p += static_cast<uint64_t>(context.threads())) {
      const uint64_t at = shard.begin + p * Block::kElements;
      if (at >= shard.end) return true;
      if (!visit(p - mine.begin, at, shard.end - at)) return false;
    }
    return true;
  };

  for (int i = 1; i < call.layout.ranks; ++i)
    for_shard(block.peer(i), [&](uint64_t p, uint64_t at, uint64_t left) {
      block.send(block.peer(i), p, read_group(input + at, left));
      return true;
    });
  const uint64_t own = part_begin(call.elements, static_cast<uint64_t>(call.rank), ranks);
  bool fine = for_shard(call.rank, [&](uint64_t p, uint64_t at, uint64_t left) {
    typename Block::Elements result;
    if (!block.reduce(p, read_group(input + at, left), result)) return false;
    write_group(output + (call.gathers ? at : at - own), left, result);
    for (int i = 1; call.gathers && i < call.layout.ranks; ++i)
      block.send(block.peer(i), second_half + p, result);
    return true;
  });
  for (int i = 1; fine && call.gathers && i < call.layout.ranks; ++i)
    fine = for_shard(block.peer(i), [&](uint64_t p, uint64_t at, uint64_t left) {
      typename Block::Elements result;
      if (!block.receive(block.peer(i), second_half + p, result)) return false;
      write_group(output + at, left, result);
      return true;
    });
  return block.end(fine);
}

// Every rank sends its input to all.
template <class Context>
PYCOLL_BOTH bool run_all_gather(Context& context, const PacketCall& call) {
  using Block = PacketBlock<Reduction<Raw, Op::Sum>, Context>;
  const Block block(context, call);
  const auto* const input = reinterpret_cast<const uint8_t*>(call.input);
  auto* const output = reinterpret_cast<uint8_t*>(call.output);
  const Range mine = part_of(packets_for(call.elements, Block::kElements),
                             static_cast<uint64_t>(context.block()), static_cast<uint64_t>(context.blocks()));
  const uint64_t first = mine.begin + static_cast<uint64_t>(context.thread());
  const auto step = static_cast<uint64_t>(context.threads());
  for (uint64_t p = first; p < mine.end; p += step) {
    const uint64_t at = p * Block::kElements, left = call.elements - at;
    const auto group = read_group(input + at, left);
    for (int i = 1; i < call.layout.ranks; ++i) block.send(block.peer(i), p - mine.begin, group);
    write_group(output + static_cast<uint64_t>(call.rank) * call.elements + at, left, group);
  }
  bool fine = true;
  for (uint64_t p = first; fine && p < mine.end; p += step) {
    const uint64_t at = p * Block::kElements, left = call.elements - at;
    for (int i = 1; fine && i < call.layout.ranks; ++i) {
      typename Block::Elements group;
      fine = block.receive(block.peer(i), p - mine.begin, group);
      if (fine) write_group(output + static_cast<uint64_t>(block.peer(i)) * call.elements + at, left, group);
    }
  }
  return block.end(fine);
}

}  // namespace pycoll::cuda
