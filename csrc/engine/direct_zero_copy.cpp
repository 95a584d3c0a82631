// The direct path when the buffers themselves lie in shared memory: nothing is staged.
#include <algorithm>

#include "engine/direct.h"

namespace pycoll {
namespace {
constexpr size_t kLine = shm::kCacheLine;
constexpr size_t kPiece = 64 << 10;
}  // namespace

std::byte* Direct::shared_buffer(const shm::HeapRange& range) const {
  return group_.segment().map_heap(range.base, range.length) + range.offset;
}

bool Direct::zero_copy(const CollectiveCall& call, const Role& role, shm::Operation& operation) {
  const uint64_t sequence = operation.sequence;
  // The same for all ranks: each sees the headers of all.
  for (int rank = 0; rank < group_.ranks(); ++rank) {
    const shm::CallHeader& header = arrivals_.header(rank, sequence);
    const bool is_source = !role.from_root || rank == call.root;
    if (is_source && header.input.length == 0) return false;
    if (call.kind == CollectiveKind::AllReduce && header.output.length == 0) return false;
  }
  if (call.kind == CollectiveKind::AllReduce) {
    zero_copy_allreduce(call, operation);
    return true;
  }
  if (role.reads) {
    const size_t share = share_bytes(call);
    for (int rank = 0; rank < group_.ranks(); ++rank) {
      if (rank == group_.rank() || (role.from_root && rank != call.root)) continue;
      // `read` expects what is personalised at `stride` from reader to reader: in the buffers that is a
      // share.
      reader_.slots[static_cast<size_t>(rank)] = shared_buffer(arrivals_.header(rank, sequence).input);
    }
    reader_.read(call, role, {.offset = 0, .bytes = share, .stride = share});
  }
  // A source may change its buffer once everyone has read it.
  group_.publish(group_.mine().finished.value, sequence);
  for (int rank = 0; rank < group_.ranks(); ++rank) {
    const auto& finished = group_.control(rank).finished.value;
    group_.wait(operation, rank, [&] { return finished.load(std::memory_order_acquire) >= sequence; });
  }
  return true;
}

// Pieces are reduced from all inputs into all outputs. With a core for each rank the ranks take turns at
// pieces: near each other in memory and in time, which measures up to twice as quick as a long slice each.
// Otherwise whoever has a core claims the next piece, and a rank that is not running is waited for by nobody.
void Direct::zero_copy_allreduce(const CollectiveCall& call, shm::Operation& operation) {
  const uint64_t sequence = operation.sequence;
  const auto ranks = static_cast<size_t>(group_.ranks());
  const size_t element = size_of(call.dtype);
  const size_t total = share_bytes(call);
  const size_t lines = (total + kLine - 1) / kLine;
  const bool claim = group_.more_ranks_than_processors();
  const size_t pieces = std::max(ranks, (total + kPiece - 1) / kPiece);

  for (size_t rank = 0; rank < ranks; ++rank) {
    const shm::CallHeader& header = arrivals_.header(static_cast<int>(rank), sequence);
    reader_.slots[rank] = shared_buffer(header.input);
    outputs_[rank] = shared_buffer(header.output);
  }
  const auto reduce_piece = [&](size_t piece) {
    const size_t begin = std::min(total, lines * piece / pieces * kLine);
    const size_t end = std::min(total, lines * (piece + 1) / pieces * kLine);
    for (size_t rank = 0; rank < ranks; ++rank) {
      sources_[rank] = reader_.slots[rank] + begin;
      destinations_[rank] = outputs_[rank] + begin;
    }
    reduce_many(call.dtype, call.op, sources_, destinations_, (end - begin) / element,
                call.op == Op::PremulSum ? reader_.factors.data() : nullptr, 0);
  };

  if (!claim) {
    for (auto piece = static_cast<size_t>(group_.rank()); piece < pieces; piece += ranks) reduce_piece(piece);
    group_.publish(group_.mine().finished.value, sequence);
    for (int rank = 0; rank < group_.ranks(); ++rank) {
      const auto& finished = group_.control(rank).finished.value;
      group_.wait(operation, rank, [&] { return finished.load(std::memory_order_acquire) >= sequence; });
    }
    return;
  }
  // The counters hold sequence * 2^32 + pieces, so that they need no reset: whoever comes first with a newer
  // sequence number starts them anew.
  shm::RankControl& counters = group_.control(0);
  auto& claimed = counters.claimed[sequence & 1].value;
  auto& completed = counters.completed[sequence & 1].value;
  const uint64_t base = sequence << 32;
  const auto start = [base](std::atomic<uint64_t>& counter) {
    uint64_t value = counter.load(std::memory_order_relaxed);
    while (value < base && !counter.compare_exchange_weak(value, base, std::memory_order_relaxed)) {
    }
  };
  start(claimed);
  start(completed);
  for (;;) {
    const uint64_t piece = claimed.fetch_add(1, std::memory_order_relaxed) - base;
    if (piece >= pieces) break;
    reduce_piece(piece);
    completed.fetch_add(1, std::memory_order_acq_rel);
    group_.wake_sleepers();
  }
  group_.wait(operation, -1, [&] { return completed.load(std::memory_order_acquire) >= base + pieces; });
}

}  // namespace pycoll
