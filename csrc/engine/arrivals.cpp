#include "engine/arrivals.h"

#include <algorithm>
#include <string>

namespace pycoll {
namespace {

constexpr uint64_t mix(uint64_t value) {  // the finalizer of SplitMix64
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

uint64_t signature(const shm::CallHeader& call) {
  const uint64_t kinds = static_cast<uint64_t>(call.kind) | static_cast<uint64_t>(call.dtype) << 8 |
                         static_cast<uint64_t>(call.op) << 16 |
                         static_cast<uint64_t>(static_cast<uint32_t>(call.root)) << 32;
  return mix(mix(call.count + 0x9e3779b97f4a7c15ULL) ^ kinds) ^ call.schedule_hash ^ mix(call.table);
}

std::string in_words(const shm::CallHeader& call) {
  std::string text(name_of(call.kind));
  if (call.kind == CollectiveKind::Barrier) return call.root == kInstall ? "install (of a table)" : text;
  text += "(" + std::to_string(call.count) + " x " + std::string(name_of(call.dtype));
  if (is_reduction(call.kind)) text += ", " + std::string(name_of(call.op));
  if (is_rooted(call.kind)) text += ", root " + std::to_string(call.root);
  return text + ", algorithm " + call.algorithm + ")";
}

}  // namespace

Arrivals::Arrivals(shm::Group& group)
    : group_(group), ticks_(kRecords * static_cast<size_t>(group.ranks())), sequences_(kRecords) {}

void Arrivals::announce(uint64_t sequence, uint32_t hints) {
  shm::ArrivalLine& line = group_.mine().arrival[sequence & 1];
  line.signature = signature(header(sequence));
  line.ticks = (ticks() & ~kHints) | hints;
  line.sequence.store(sequence, std::memory_order_release);
}

Arrivals::Met Arrivals::match(shm::Operation& operation, bool look_at_clock) {
  const uint64_t sequence = operation.sequence;
  const uint64_t mine = group_.mine().arrival[sequence & 1].signature;
  uint64_t* row = &ticks_[sequence % kRecords * static_cast<size_t>(group_.ranks())];
  sequences_[sequence % kRecords] = sequence;
  int next = 0;
  const auto all_here = [&] {
    while (next < group_.ranks() &&
           group_.control(next).arrival[sequence & 1].sequence.load(std::memory_order_acquire) >= sequence)
      ++next;
    return next == group_.ranks();
  };
  const bool waits = look_at_clock && !all_here();
  group_.wait(operation, -1, all_here, shm::kEveryone);
  Met met{.last = 0, .seen = waits ? ticks() : 0, .hints = 0};
  group_.all_have_arrived();
  bool equal = true;
  for (int rank = 0; rank < group_.ranks(); ++rank) {
    const shm::ArrivalLine& line = group_.control(rank).arrival[sequence & 1];
    row[rank] = line.ticks;
    met.last = std::max(met.last, line.ticks);
    met.hints |= static_cast<uint32_t>(line.ticks & kHints);
    equal &= line.signature == mine;
  }
  if (!equal) throw_mismatch(sequence);
  return met;
}

void Arrivals::throw_mismatch(uint64_t sequence) const {
  // One entry for each different call, with the ranks that made it.
  std::vector<std::pair<uint64_t, std::vector<int>>> calls;
  for (int rank = 0; rank < group_.ranks(); ++rank) {
    const uint64_t theirs = group_.control(rank).arrival[sequence & 1].signature;
    auto found =
        std::find_if(calls.begin(), calls.end(), [&](const auto& call) { return call.first == theirs; });
    if (found == calls.end()) found = calls.insert(calls.end(), {theirs, {}});
    found->second.push_back(rank);
  }
  bool tables_differ = false;
  std::string text = "group '" + group_.name() + "': the ranks' calls differ at collective #" +
                     std::to_string(sequence) + ": ";
  for (size_t i = 0; i < calls.size(); ++i) {
    const auto& ranks = calls[i].second;
    text += (i == 0 ? "rank " : "; rank ") + std::to_string(ranks[0]);
    for (size_t k = 1; k < std::min<size_t>(ranks.size(), 8); ++k) text += ", " + std::to_string(ranks[k]);
    if (ranks.size() > 8) text += " and " + std::to_string(ranks.size() - 8) + " more";
    text += " called " + in_words(header(ranks[0], sequence));
    tables_differ |= header(ranks[0], sequence).table != header(calls[0].second[0], sequence).table;
  }
  if (tables_differ) text += ". The ranks' decision tables differ: install the same one on all ranks";
  throw Mismatch(text +
                 ". No data was delivered; make all ranks call the same collectives in the same order.");
}

std::vector<ArrivalRecord> Arrivals::records() const {
  const double tick = scale_.seconds_per_tick();
  const auto ranks = static_cast<size_t>(group_.ranks());
  std::vector<ArrivalRecord> result;
  for (size_t row = 0; row < kRecords; ++row) {
    if (sequences_[row] == 0) continue;
    const uint64_t* arrived = &ticks_[row * ranks];
    const uint64_t first = *std::min_element(arrived, arrived + ranks);
    ArrivalRecord record{sequences_[row], {}};
    for (size_t rank = 0; rank < ranks; ++rank)
      record.lateness.push_back(static_cast<double>(arrived[rank] - first) * tick);
    result.push_back(std::move(record));
  }
  std::sort(result.begin(), result.end(),
            [](const auto& a, const auto& b) { return a.sequence < b.sequence; });
  return result;
}

}  // namespace pycoll
