#include "engine/executor.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>

#include "core/clock.h"

namespace pycoll {
namespace {

constexpr std::chrono::milliseconds kLookRound{50};

// Large enough to amortise a publication, small enough that the next hop starts while this one still runs.
constexpr size_t kCutThrough = 32 << 10;
constexpr size_t kScratch = 768 << 10;

struct Span {
  size_t begin;
  size_t length;
};

// Elements of `piece` that fall into the window, as an offset into the piece's own elements.
Span part_of_piece(const Collective& collective, uint64_t elements, int piece, size_t window_begin,
                   size_t window_length) {
  const uint64_t begin = collective.piece_begin(piece, elements);
  const uint64_t length = collective.piece_begin(piece + 1, elements) - begin;
  const size_t from = std::min<uint64_t>(window_begin, length);
  return {from, std::min<uint64_t>(window_begin + window_length, length) - from};
}

// The offset, in elements, of the piece with this index in a rank's own input or output buffer. Shares are
// equally long and their pieces contiguous, so the buffer's first pieces are as long as the logical buffer's.
size_t buffer_offset(const Collective& collective, uint64_t elements, int index) {
  return collective.piece_begin(index, elements);
}

bool output_is_everything(CollectiveKind kind) {
  return kind == CollectiveKind::AllReduce || kind == CollectiveKind::AllGather ||
         kind == CollectiveKind::Broadcast;
}

}  // namespace

bool Executor::works_in_output(const CollectiveCall& call) {
  const bool as_it_is = !is_reduction(call.kind) || wire_op(call.op) == call.op;
  return output_is_everything(call.kind) && as_it_is;
}

void Executor::run(const Plan& plan, const CollectiveCall& call) {
  if (!works_in_output(call)) return run_in_scratch(plan, call);
  load_output(call);
  run_loaded(plan, call);
}

// The output holds the whole logical buffer, so it serves as working storage: no scratch, no windows.
void Executor::load_output(const CollectiveCall& call) {
  if (call.input == nullptr) return;
  const size_t share = call.count * size_of(call.dtype);
  const auto rank = static_cast<size_t>(transport_.rank());
  std::byte* target =
      static_cast<std::byte*>(call.output) + (call.kind == CollectiveKind::AllGather ? rank * share : 0);
  if (target != call.input) copy_bytes(target, call.input, share);
}

void Executor::run_loaded(const Plan& plan, const CollectiveCall& call, Gate* gate) {
  const Collective& collective = plan.schedule->collective;
  const uint64_t elements = collective.logical_elements(call.count);
  const size_t size = size_of(call.dtype);
  auto* const output = static_cast<std::byte*>(call.output);
  extents_.clear();
  for (const int32_t piece : plan.program.pieces) {
    const uint64_t begin = collective.piece_begin(piece, elements);
    extents_.push_back({output + begin * size, (collective.piece_begin(piece + 1, elements) - begin) * size});
  }
  move(plan.program, call.dtype, is_reduction(call.kind) ? call.op : Op::Sum, gate);
}

// Everything else works in a bounded scratch, window by window: where a rank must hold partial results that
// its output has no place for (reduce_scatter, gather, ...), and where the op travels in a wider dtype.
void Executor::run_in_scratch(const Plan& plan, const CollectiveCall& call) {
  const Collective& collective = plan.schedule->collective;
  const bool reduces = is_reduction(call.kind);
  const DType wire = reduces ? wire_dtype(call.dtype, call.op) : call.dtype;
  const size_t size = size_of(wire);
  const uint64_t elements = collective.logical_elements(call.count);
  const auto pieces = static_cast<uint64_t>(collective.pieces);
  const uint64_t longest = (elements + pieces - 1) / pieces;
  const size_t slots = std::max<size_t>(plan.most_pieces, 1);
  const size_t window = std::max<size_t>(std::min<size_t>(longest, kScratch / slots / size), 1);
  const size_t slot_bytes = window * size;
  if (scratch_.size() < slot_bytes * slots) scratch_.resize(slot_bytes * slots);

  for (size_t begin = 0; begin < longest; begin += window) {
    extents_.clear();
    for (size_t i = 0; i < plan.program.pieces.size(); ++i) {
      const Span part = part_of_piece(collective, elements, plan.program.pieces[i], begin, window);
      extents_.push_back({scratch_.data() + i * slot_bytes, part.length * size});
    }
    load(plan, call, {begin, window});
    move(plan.program, wire, reduces ? wire_op(call.op) : Op::Sum);
    store(plan, call, {begin, window});
  }
}

void Executor::load(const Plan& plan, const CollectiveCall& call, Window window) {
  const Collective& collective = plan.schedule->collective;
  const uint64_t elements = collective.logical_elements(call.count);
  const size_t size = size_of(call.dtype);
  for (size_t i = 0; i < plan.program.pieces.size(); ++i) {
    const int piece = plan.program.pieces[i];
    const int index = collective.input_index(transport_.rank(), piece);
    if (index < 0) continue;
    const Span part = part_of_piece(collective, elements, piece, window.begin, window.length);
    const auto* from = static_cast<const std::byte*>(call.input) +
                       (buffer_offset(collective, elements, index) + part.begin) * size;
    if (is_reduction(call.kind) && wire_op(call.op) != call.op)
      widen(call.dtype, call.op, from, extents_[i].begin, part.length, call.factor, transport_.ranks());
    else
      copy_bytes(extents_[i].begin, from, part.length * size);
  }
}

void Executor::store(const Plan& plan, const CollectiveCall& call, Window window) {
  const Collective& collective = plan.schedule->collective;
  const uint64_t elements = collective.logical_elements(call.count);
  const size_t size = size_of(call.dtype);
  for (size_t i = 0; i < plan.program.pieces.size(); ++i) {
    const int piece = plan.program.pieces[i];
    const int index = collective.output_index(transport_.rank(), piece);
    if (index < 0) continue;
    const Span part = part_of_piece(collective, elements, piece, window.begin, window.length);
    auto* to = static_cast<std::byte*>(call.output) +
               (buffer_offset(collective, elements, index) + part.begin) * size;
    if (is_reduction(call.kind) && wire_op(call.op) != call.op)
      narrow(call.dtype, call.op, extents_[i].begin, to, part.length, transport_.ranks());
    else
      copy_bytes(to, extents_[i].begin, part.length * size);
  }
}

void Executor::move(const Program& program, DType dtype, Op op, Gate* gate) {
  done_.assign(program.steps.size(), 0);
  next_send_.assign(program.sends.size(), 0);
  next_receive_.assign(program.receives.size(), 0);
  constexpr int kAll = std::numeric_limits<int>::max();
  stuck_for_ = {};
  is_stuck_ = false;
  auto last = SteadyClock::now();
  for (;;) {
    // In this order: closed means that it opens no further.
    const bool closed = gate == nullptr || gate->closed();
    const int end = gate == nullptr ? kAll : gate->open();
    const int awaited = awaited_peer(program, end);
    if (awaited < 0 && closed) return;
    // What a gate waits for comes with a message, which is looked at between the looks at progress.
    const auto has_changed = [&] {
      return gate != nullptr && (gate->open() != end || gate->closed() != closed);
    };
    const auto look_round = last + kLookRound;
    transport_.wait(
        [&] {
          const auto now = SteadyClock::now();
          if (is_stuck_) stuck_for_ += now - last;
          last = now;
          is_stuck_ = false;
          return progress(program, dtype, op, gate) || has_changed() || now >= look_round;
        },
        [&] { return awaited < 0 ? gate->keeper() : awaited; });
    // The wait watches one peer. Another one's death may be why that one has nothing to give: two ranks that
    // wait for each other, and each for the dead one besides, would do so until the deadline.
    if (last >= look_round)
      for (const int32_t peer : program.peers)
        if (has_business_with(program, peer, end)) transport_.look_after(peer);
  }
}

bool Executor::progress(const Program& program, DType dtype, Op op, Gate* gate) {
  const int end = gate == nullptr ? std::numeric_limits<int>::max() : gate->open();
  bool moved = false;
  // Steps of length zero complete at once: nothing of them is in any stream.
  const auto advance = [&](const std::vector<int32_t>& list, size_t& next, auto&& some) {
    while (next < list.size()) {
      const auto index = static_cast<size_t>(list[next]);
      const Step& step = program.steps[index];
      if (program.pieces[static_cast<size_t>(step.piece)] >= end) return;
      const size_t bytes = extents_[static_cast<size_t>(step.piece)].bytes;
      if (done_[index] < bytes) {
        if (!some(step, index)) return;
        moved = true;
        if (done_[index] < bytes) return;
      }
      if (bytes != 0) step.sends ? transport_.align_send(step.peer) : transport_.align_receive(step.peer);
      ++next;
      moved = true;
      if (gate != nullptr) gate->moved(program.pieces[static_cast<size_t>(step.piece)]);
    }
  };
  for (const int32_t index : program.peers) {
    const auto peer = static_cast<size_t>(index);
    advance(program.receives[peer], next_receive_[peer],
            [&](const Step& step, size_t index) { return receive_some(step, index, dtype, op); });
    advance(program.sends[peer], next_send_[peer],
            [&](const Step& step, size_t index) { return send_some(step, index); });
  }
  return moved;
}

bool Executor::send_some(const Step& step, size_t index) {
  const Extent& extent = extents_[static_cast<size_t>(step.piece)];
  const size_t limit = step.after_write < 0 ? extent.bytes : done_[static_cast<size_t>(step.after_write)];
  if (limit <= done_[index]) return false;
  const size_t bytes =
      transport_.send(step.peer, {extent.begin + done_[index], std::min(limit - done_[index], kCutThrough)});
  done_[index] += bytes;
  if (bytes == 0) is_stuck_ = true;
  return bytes != 0;
}

bool Executor::receive_some(const Step& step, size_t index, DType dtype, Op op) {
  const Extent& extent = extents_[static_cast<size_t>(step.piece)];
  size_t limit = step.after_write < 0 ? extent.bytes : done_[static_cast<size_t>(step.after_write)];
  for (const int32_t send : step.after_sends) limit = std::min(limit, done_[static_cast<size_t>(send)]);
  if (limit <= done_[index]) return false;
  const std::span<const std::byte> data = transport_.arrived(step.peer);
  const size_t size = size_of(dtype);
  const size_t bytes = std::min({limit - done_[index], data.size(), kCutThrough}) / size * size;
  if (bytes == 0) return false;
  std::byte* const target = extent.begin + done_[index];
  if (step.action == Action::Copy) {
    copy_bytes(target, data.data(), bytes);
  } else {
    const std::array<const void*, 2> sources{target, data.data()};
    const std::array<void*, 1> destinations{target};
    reduce_many(dtype, op, sources, destinations, bytes / size);
  }
  transport_.received(step.peer, bytes);
  done_[index] += bytes;
  return true;
}

// A peer with which this rank has something to do yet, with pieces before `end`; -1: none.
int Executor::awaited_peer(const Program& program, int end) const {
  for (const int32_t index : program.peers) {
    const auto peer = static_cast<size_t>(index);
    if (unfinished(program, program.receives[peer], next_receive_[peer], end)) return index;
  }
  for (const int32_t index : program.peers) {
    const auto peer = static_cast<size_t>(index);
    if (unfinished(program, program.sends[peer], next_send_[peer], end)) return index;
  }
  return -1;
}

bool Executor::has_business_with(const Program& program, int index, int end) const {
  const auto peer = static_cast<size_t>(index);
  return unfinished(program, program.receives[peer], next_receive_[peer], end) ||
         unfinished(program, program.sends[peer], next_send_[peer], end);
}

bool Executor::unfinished(const Program& program, const std::vector<int32_t>& list, size_t next, int end) {
  return next < list.size() &&
         program.pieces[static_cast<size_t>(program.steps[static_cast<size_t>(list[next])].piece)] < end;
}

}  // namespace pycoll
