#include "engine/direct.h"

#include <algorithm>
#include <array>
#include <numeric>

namespace pycoll {
namespace {

using shm::kInlinePayload;
using shm::kSmallSlot;
using shm::kStagingRing;

constexpr size_t kLine = shm::kCacheLine;
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

Direct::Direct(shm::Group& group, Arrivals& arrivals, EarlyGain& gain, bool fixed_order)
    : group_(group),
      arrivals_(arrivals),
      reader_(group.rank(), group.ranks()),
      outputs_(static_cast<size_t>(group.ranks())),
      sources_(static_cast<size_t>(group.ranks())),
      destinations_(static_cast<size_t>(group.ranks())),
      everybody_(static_cast<size_t>(group.ranks())),
      gain_(gain),
      fixed_order_(fixed_order) {
  std::iota(everybody_.begin(), everybody_.end(), 0);
}

bool Direct::fits_payload(const CollectiveCall& call, const Role& role) const {
  const size_t bytes = share_bytes(call);
  if (!role.personalised) return bytes <= kSmallSlot;
  return bytes <= kSmallSlot / static_cast<size_t>(group_.ranks()) &&
         round_up(bytes) * static_cast<size_t>(group_.ranks()) <= kSmallSlot;
}

Stage Direct::whole(const CollectiveCall& call, const Role& role) const {
  const size_t bytes = share_bytes(call);
  const bool in_line =
      bytes * (role.personalised ? static_cast<size_t>(group_.ranks()) : 1) <= kInlinePayload;
  return {.offset = 0, .bytes = bytes, .stride = in_line ? bytes : round_up(bytes)};
}

std::byte* Direct::payload_of(int rank, uint64_t sequence, const CollectiveCall& call,
                              const Role& role) const {
  const size_t bytes = share_bytes(call) * (role.personalised ? static_cast<size_t>(group_.ranks()) : 1);
  return bytes <= kInlinePayload ? arrivals_.payload(rank, sequence) : group_.small_slot(rank, sequence);
}

void Direct::prepare(const CollectiveCall& call, uint64_t sequence) {
  const Role role = role_of(call, group_.rank());
  if (call.kind == CollectiveKind::Barrier || call.count == 0) return;
  if (!fits_payload(call, role)) return;
  stores_ = Stores::Plain;
  if (role.stages)
    stage(call, role, whole(call, role), group_.rank(), group_.ranks(),
          payload_of(group_.rank(), sequence, call, role), stores_);
}

void Direct::finish(const CollectiveCall& call, shm::Operation& operation) {
  if (call.kind == CollectiveKind::Barrier || call.count == 0) return;
  const Role role = role_of(call, group_.rank());
  if (role.reduces && call.op == Op::PremulSum)
    for (int rank = 0; rank < group_.ranks(); ++rank)
      reader_.factors[static_cast<size_t>(rank)] = arrivals_.header(rank, operation.sequence).factor;
  if (fits_payload(call, role)) {
    if (!role.reads) return;
    for (int rank = 0; rank < group_.ranks(); ++rank)
      reader_.slots[static_cast<size_t>(rank)] = payload_of(rank, operation.sequence, call, role);
    reader_.read(call, role, whole(call, role));
    return;
  }
  if (zero_copy(call, role, operation)) return;
  // Two ranks exchange everything, with one flag a chunk; from here on moving half as much twice is quicker.
  constexpr size_t kTwoShotFrom = 4 << 20;
  if (call.kind == CollectiveKind::AllReduce && (group_.ranks() > 2 || share_bytes(call) >= kTwoShotFrom))
    pipeline_two_shot(call, operation, everybody_, 0, chunks_of(call), [](size_t) { return true; });
  else
    pipeline(call, role, operation);
  choice_.end_chunk();
}

// A chunk never wraps: the rest of the ring is skipped, by all ranks alike.
uint64_t Direct::advance(size_t bytes) {
  if (position_ % kStagingRing + bytes > kStagingRing)
    position_ = (position_ / kStagingRing + 1) * kStagingRing;
  const uint64_t begin = position_;
  position_ += bytes;
  return begin;
}

// `members`: who reads this rank's ring; empty: all.
uint64_t Direct::reserve(size_t bytes, shm::Operation& operation, std::span<const int> members) {
  const uint64_t begin = advance(bytes);
  const uint64_t needed = position_ > kStagingRing ? position_ - kStagingRing : 0;
  if (all_consumed_ < needed) {
    uint64_t least = UINT64_MAX;
    for (const int rank : everybody_) {
      if (rank == group_.rank()) continue;
      // Who is not there yet may still be reading what came before.
      const bool reads = members.empty() || std::find(members.begin(), members.end(), rank) != members.end();
      const uint64_t until = reads ? needed : std::min(needed, since_);
      const auto& counter = group_.control(rank).consumed.value;
      group_.wait(operation, rank, [&] { return counter.load(std::memory_order_acquire) >= until; });
      const uint64_t consumed = counter.load(std::memory_order_acquire);
      if (reads || consumed < since_) least = std::min(least, consumed);
    }
    all_consumed_ = least;
  }
  return begin;
}

void Direct::consume_until(uint64_t position) {
  group_.publish(group_.mine().consumed.value, position);
}

void Direct::pipeline(const CollectiveCall& call, const Role& role, shm::Operation& operation) {
  const auto fan = static_cast<size_t>(role.personalised ? group_.ranks() : 1);
  const size_t share = share_bytes(call);
  const size_t chunk = std::max<size_t>((chunk_bytes()) / fan / kLine, 1) * kLine;
  const size_t chunks = (share + chunk - 1) / chunk;
  const auto part = [&](size_t c) {
    const size_t bytes = std::min(chunk, share - c * chunk);
    return Stage{.offset = c * chunk, .bytes = bytes, .stride = round_up(bytes)};
  };
  std::array<uint64_t, 2> begins{};
  choice_.begin_operation(chunk * fan);
  for (size_t c = 0; c <= chunks; ++c) {
    if (c < chunks) {
      const Stage p = part(c);
      const uint64_t begin = begins[c & 1] = reserve(p.stride * fan, operation);
      stores_ = choice_.begin_chunk(p.bytes);
      if (role.stages) {
        stage(call, role, p, group_.rank(), group_.ranks(),
              group_.staging(group_.rank()) + begin % kStagingRing, stores_);
        group_.publish(group_.mine().published.value, begin + p.stride * fan);
      }
    }
    if (c == 0) continue;
    const Stage p = part(c - 1);
    const uint64_t begin = begins[(c - 1) & 1];
    const uint64_t end = begin + p.stride * fan;
    if (role.reads) {
      for (int rank = 0; rank < group_.ranks(); ++rank) {
        if (rank == group_.rank() || (role.from_root && rank != call.root)) continue;
        const auto& published = group_.control(rank).published.value;
        group_.wait(operation, rank, [&] { return published.load(std::memory_order_acquire) >= end; });
        reader_.slots[static_cast<size_t>(rank)] = group_.staging(rank) + begin % kStagingRing;
      }
      reader_.read(call, role, p);
    }
    consume_until(end);
  }
}

// Reduce-scatter and all-gather inside every chunk: each rank reduces its slice from all rings, puts the
// result where its own raw slice would have been (nobody else reads that), and all copy the slices together.
size_t Direct::pipeline_two_shot(const CollectiveCall& call, shm::Operation& operation,
                                 std::span<const int> members, size_t first, size_t end,
                                 FunctionRef<bool(size_t)> may_stage) {
  const auto me =
      static_cast<size_t>(std::find(members.begin(), members.end(), group_.rank()) - members.begin());
  const size_t ranks = members.size();
  const size_t total = share_bytes(call);
  const size_t chunk = chunk_bytes();
  static_assert(kStagingRing >= 4 * (512 << 10),
                "three chunks are in flight, and one more may be skipped at the ring's end");
  std::array<uint64_t, 3> begins{};
  choice_.begin_operation(chunk);
  struct Slice {
    size_t begin, bytes;
  };
  const auto bytes_of = [&](size_t c) { return std::min(chunk, total - c * chunk); };
  const auto slice = [&](size_t c, size_t member) {
    const size_t bytes = bytes_of(c);
    const size_t lines = round_up(bytes) / kLine;
    const size_t begin = std::min(bytes, lines * member / ranks * kLine);
    return Slice{begin, std::min(bytes, lines * (member + 1) / ranks * kLine) - begin};
  };
  const auto slot = [&](size_t member, size_t c) {
    return group_.staging(members[member]) + begins[c % 3] % kStagingRing;
  };
  const auto control = [&](size_t member) -> shm::RankControl& { return group_.control(members[member]); };
  std::span<const void*> sources = std::span(sources_).first(ranks);
  const double* factors = call.op == Op::PremulSum ? reader_.factors.data() : nullptr;

  for (size_t step = first; step < end + 2; ++step) {
    if (step < end && !may_stage(step)) end = step;
    if (step < end) {
      const size_t c = step;
      const size_t bytes = bytes_of(c);
      begins[c % 3] = reserve(round_up(bytes), operation, members);
      stores_ = choice_.begin_chunk(bytes);
      const Slice own = slice(c, me);
      const size_t after = own.begin + own.bytes;
      copy_bytes(slot(me, c), at(call.input, c * chunk), own.begin, stores_);
      copy_bytes(slot(me, c) + after, at(call.input, c * chunk + after), bytes - after, stores_);
      group_.publish(group_.mine().published.value, begins[c % 3] + round_up(bytes));
    }
    if (step >= first + 1 && step - 1 < end) {
      const size_t c = step - 1;
      const uint64_t until = begins[c % 3] + round_up(bytes_of(c));
      const Slice own = slice(c, me);
      for (size_t member = 0; member < ranks; ++member) {
        if (member != me) {
          const auto& published = control(member).published.value;
          group_.wait(operation, members[member],
                      [&] { return published.load(std::memory_order_acquire) >= until; });
        }
        sources[member] = member == me ? at(call.input, c * chunk + own.begin) : slot(member, c) + own.begin;
      }
      std::byte* const result = at(call.output, c * chunk + own.begin);
      const std::array<void*, 2> destinations{result, slot(me, c) + own.begin};
      const bool both = stores_ == Stores::Plain;  // the output itself should stay in the cache
      reduce_many(call.dtype, call.op, sources, std::span(destinations).first(both ? 2 : 1),
                  own.bytes / size_of(call.dtype), factors, 0);
      if (!both) copy_bytes(destinations[1], result, own.bytes, stores_);
      group_.publish(group_.mine().reduced.value, until);
    }
    if (step >= first + 2 && step - 2 < end) {
      const size_t c = step - 2;
      const uint64_t until = begins[c % 3] + round_up(bytes_of(c));
      for (size_t i = 1; i < ranks; ++i) {
        const size_t member = (me + i) % ranks;  // not all from the same ring at once
        const auto& reduced = control(member).reduced.value;
        group_.wait(operation, members[member],
                    [&] { return reduced.load(std::memory_order_acquire) >= until; });
        const Slice theirs = slice(c, member);
        copy_bytes(at(call.output, c * chunk + theirs.begin), slot(member, c) + theirs.begin, theirs.bytes);
      }
      consume_until(until);
    }
  }
  return end - first;
}

}  // namespace pycoll
