// A large AllReduce on one host does not wait for its last rank: the others reduce among themselves, chunk by
// chunk, and once it comes only its own contribution has to be added, by all at once. This is StragglAR's
// idea (Devraj et al., arXiv 2505.23523) in shared memory, where every rank can read the late one's data
// directly, so that no schedule of swaps is needed. Whoever waits longest finds out who is late; a
// compare-and-swap decides between that and the late rank's own word that all are there.
#include <algorithm>
#include <array>
#include <chrono>

#include "engine/direct.h"

namespace pycoll {
namespace {

constexpr size_t kLine = shm::kCacheLine;
constexpr size_t kLeastBytes = 4 << 20;  // below, all is over before anyone would be called late
constexpr size_t kAhead = 4;             // chunks that early ranks may be ahead of their first one

constexpr size_t round_up(size_t bytes) {
  return (bytes + kLine - 1) / kLine * kLine;
}

std::byte* at(void* buffer, size_t offset) {
  return static_cast<std::byte*>(buffer) + offset;
}
const std::byte* at(const void* buffer, size_t offset) {
  return static_cast<const std::byte*>(buffer) + offset;
}

}  // namespace

bool Direct::may_begin_early(const CollectiveCall& call) const {
  return !fixed_order_ && call.kind == CollectiveKind::AllReduce && group_.ranks() > 2 &&
         call.op != Op::PremulSum && call.op != Op::Avg && share_bytes(call) >= kLeastBytes;
}

Arrivals::Met Direct::run_from_arrival(const CollectiveCall& call, shm::Operation& operation,
                                       std::span<uint64_t> log, bool look_at_clock) {
  const int late = late_rank(call, operation);
  size_t reduced = 0;
  if (late >= 0) {
    early_.clear();
    for (const int rank : everybody_)
      if (rank != late) early_.push_back(rank);
    reduced = reduce_early(call, operation, late);
  }
  const Arrivals::Met met = arrivals_.meet(operation, log, look_at_clock && late < 0);
  if (met.signature == Arrivals::kDiffer) return met;
  const auto begun = SteadyClock::now();
  if (late < 0) {
    finish(call, operation);
  } else {
    add_late(call, operation, late, reduced);
    pipeline_two_shot(call, operation, everybody_, reduced, chunks_of(call), [](size_t) { return true; });
    choice_.end_chunk();
  }
  gain_.note(share_bytes(call), SteadyClock::now() - begun, reduced != 0);
  return met;
}

// Waits until all ranks are there, or until one alone is missing and keeps the others waiting: that one, or
// -1.
int Direct::late_rank(const CollectiveCall& call, shm::Operation& operation) {
  shm::EarlyStart& words = group_.control(0).early[operation.sequence & 1];
  const uint64_t base = operation.sequence << shm::EarlyStart::kShift;
  const auto decided = [&] { return words.decision.load(std::memory_order_acquire) > base; };
  const auto decide = [&](uint64_t what) {
    uint64_t before = words.decision.load(std::memory_order_relaxed);
    if (before < base) words.decision.compare_exchange_strong(before, base + what);
    group_.all_have_arrived();
  };
  // A fiftieth of what the call takes anyhow.
  const std::chrono::duration<double> patience{std::max(1e-3, gain_.usual(share_bytes(call)) / 50)};
  // Who holds shared buffers waits: all may, and then nothing need be copied.
  const bool may_decide = arrivals_.header(operation.sequence).input.length == 0;
  SteadyClock::time_point alone{};  // since when one rank alone is missing
  const auto look = [&] {
    if (decided()) return true;
    int missing = -1;
    int count = 0;
    for (const int rank : everybody_) {
      const auto& line = group_.control(rank).arrival[operation.sequence & 1];
      if (line.sequence.load(std::memory_order_acquire) >= operation.sequence) continue;
      missing = rank;
      ++count;
    }
    if (count == 0) {
      decide(1);
    } else if (count == 1 && may_decide) {
      const auto now = SteadyClock::now();
      if (alone == SteadyClock::time_point{}) alone = now;
      if (now - alone >= patience) decide(2 + static_cast<uint64_t>(missing));
    }
    return decided();
  };
  group_.wait(operation, -1, look, shm::kEveryone);
  return static_cast<int>(words.decision.load(std::memory_order_acquire) - base) - 2;
}

// Early ranks: reduce chunks without the late rank until it comes. All: how many chunks that is.
size_t Direct::reduce_early(const CollectiveCall& call, shm::Operation& operation, int late) {
  shm::EarlyStart& words = group_.control(0).early[operation.sequence & 1];
  const uint64_t base = operation.sequence << shm::EarlyStart::kShift;
  const int leader = early_[0];
  const size_t chunks = chunks_of(call);
  const auto cut = [&] { return words.cut.load(std::memory_order_acquire); };
  const auto open = [&] { return words.open.load(std::memory_order_acquire); };
  const auto line = [&](int rank) -> const shm::ArrivalLine& {
    return group_.control(rank).arrival[operation.sequence & 1];
  };
  // Early ranks that see that their calls differ reduce nothing: all hear of it when the last has come.
  bool fit = true;
  for (const int rank : early_) fit = fit && line(rank).signature == line(early_[0]).signature;

  if (group_.rank() == leader) {
    uint64_t opened = base;
    const auto may_stage = [&](size_t chunk) {
      const bool come = line(late).sequence.load(std::memory_order_acquire) >= operation.sequence;
      if (come && cut() <= base) group_.publish(words.cut, opened + 1);
      if (cut() > base) return chunk < cut() - base - 1;
      opened = base + std::min(chunks, chunk + kAhead);
      group_.publish(words.open, opened);
      return true;
    };
    since_ = position_;
    if (fit) pipeline_two_shot(call, operation, early_, 0, chunks, may_stage);
    if (cut() <= base) group_.publish(words.cut, (fit ? base + chunks : base) + 1);
  } else if (group_.rank() != late && fit) {
    const auto may_stage = [&](size_t chunk) {
      group_.wait(operation, leader, [&] { return open() > base + chunk || cut() > base; });
      return cut() > base ? chunk < cut() - base - 1 : true;
    };
    since_ = position_;
    pipeline_two_shot(call, operation, early_, 0, chunks, may_stage);
  }
  group_.wait(operation, leader, [&] { return cut() > base; });
  const size_t reduced = cut() - base - 1;
  if (group_.rank() == late) skip_early(call, reduced);
  return reduced;
}

// The late rank: its place in the rings is that of the others, whose chunks it has not read.
void Direct::skip_early(const CollectiveCall& call, size_t chunks) {
  for (size_t c = 0; c < chunks; ++c)
    advance(round_up(std::min(chunk_bytes(), share_bytes(call) - c * chunk_bytes())));
  consume_until(position_);
}

// The late rank stages its data; each of the others adds its slice of that to what they have all reduced, and
// all copy the slices together.
void Direct::add_late(const CollectiveCall& call, shm::Operation& operation, int late, size_t chunks) {
  const size_t chunk = chunk_bytes();
  const size_t total = share_bytes(call);
  const size_t members = early_.size();
  const auto me =
      static_cast<size_t>(std::find(early_.begin(), early_.end(), group_.rank()) - early_.begin());
  const bool is_late = me == members;
  std::array<uint64_t, 2> begins{};
  const auto bytes_of = [&](size_t c) { return std::min(chunk, total - c * chunk); };
  const auto end_of = [&](size_t c) { return begins[c & 1] + round_up(bytes_of(c)); };
  const auto slot = [&](int rank, size_t c) {
    return group_.staging(rank) + begins[c & 1] % shm::kStagingRing;
  };
  const auto edge = [&](size_t c, size_t member) {
    return std::min(bytes_of(c), round_up(bytes_of(c)) / kLine * member / members * kLine);
  };
  const auto await = [&](const std::atomic<uint64_t>& counter, int rank, uint64_t value) {
    group_.wait(operation, rank, [&] { return counter.load(std::memory_order_acquire) >= value; });
  };
  choice_.begin_operation(chunk);

  for (size_t step = 0; step <= chunks && chunks != 0; ++step) {
    if (step < chunks) {
      const size_t c = step;
      begins[c & 1] = reserve(round_up(bytes_of(c)), operation);
      stores_ = choice_.begin_chunk(bytes_of(c));
      if (is_late) {
        copy_bytes(slot(late, c), at(call.input, c * chunk), bytes_of(c), stores_);
        group_.publish(group_.mine().published.value, end_of(c));
      } else {
        await(group_.control(late).published.value, late, end_of(c));
        const size_t begin = edge(c, me);
        const size_t bytes = edge(c, me + 1) - begin;
        std::byte* const result = at(call.output, c * chunk + begin);
        const std::array<const void*, 2> sources{result, slot(late, c) + begin};
        const std::array<void*, 2> destinations{result, slot(group_.rank(), c) + begin};
        reduce_many(call.dtype, call.op, sources, destinations, bytes / size_of(call.dtype), nullptr, 0);
        group_.publish(group_.mine().reduced.value, end_of(c));
      }
    }
    if (step == 0) continue;
    const size_t c = step - 1;
    for (size_t i = 1; i <= members; ++i) {
      const size_t member = (me + i) % members;  // not all from the same ring at once
      if (member == me) continue;
      await(group_.control(early_[member]).reduced.value, early_[member], end_of(c));
      const size_t begin = edge(c, member);
      copy_bytes(at(call.output, c * chunk + begin), slot(early_[member], c) + begin,
                 edge(c, member + 1) - begin);
    }
    consume_until(end_of(c));
  }
}

}  // namespace pycoll
