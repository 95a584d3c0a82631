#include "engine/arrivals.h"

#include <algorithm>

#include "engine/call_header.h"

namespace pycoll {

void Arrivals::announce(uint64_t sequence, uint32_t hints) {
  shm::ArrivalLine& line = group_.mine().arrival[sequence & 1];
  line.signature = signature_of(header(sequence));
  line.ticks = (ticks() & ~kHints) | hints;
  line.sequence.store(sequence, std::memory_order_release);
}

Arrivals::Met Arrivals::meet(shm::Operation& operation, std::span<uint64_t> log, bool look_at_clock) {
  const uint64_t sequence = operation.sequence;
  const uint64_t mine = group_.mine().arrival[sequence & 1].signature;
  int next = 0;
  const auto all_here = [&] {
    while (next < group_.ranks() &&
           group_.control(next).arrival[sequence & 1].sequence.load(std::memory_order_acquire) >= sequence)
      ++next;
    return next == group_.ranks();
  };
  const bool waits = look_at_clock && !all_here();
  group_.wait(operation, -1, all_here, shm::kEveryone);
  Met met{.last = 0, .seen = waits ? ticks() : 0, .hints = 0, .signature = mine};
  group_.all_have_arrived();
  for (int rank = 0; rank < group_.ranks(); ++rank) {
    const shm::ArrivalLine& line = group_.control(rank).arrival[sequence & 1];
    log[static_cast<size_t>(rank)] = line.ticks;
    met.last = std::max(met.last, line.ticks);
    met.hints |= static_cast<uint32_t>(line.ticks & kHints);
    if (line.signature != mine) met.signature = kDiffer;
  }
  return met;
}

std::vector<shm::CallHeader> Arrivals::headers(uint64_t sequence) const {
  std::vector<shm::CallHeader> all;
  for (int rank = 0; rank < group_.ranks(); ++rank) all.push_back(header(rank, sequence));
  return all;
}

}  // namespace pycoll
