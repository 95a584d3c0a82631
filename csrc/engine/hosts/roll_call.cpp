#include "engine/hosts/roll_call.h"

#include <algorithm>
#include <cstring>

#include "engine/call_header.h"
#include "engine/hosts/notes.h"

namespace pycoll {
namespace {

constexpr int kClerk = 0;

enum class RollWord : uint8_t { Here, Reduced, Otherwise, State };

struct RollNote {
  NoteKind kind = NoteKind::Roll;
  RollWord word = RollWord::Here;
  uint8_t reserved[2] = {};
  int32_t value = 0;  // Reduced: groups
  uint64_t sequence = 0;
};

struct HereNote {
  RollNote head;
  shm::CallHeader header;
  int64_t patience_ns = 0;
  uint32_t hints = 0;
  int32_t groups = 0;
  RollCall::Experience last;
};

// What the clerk says; the late ranks' numbers and, once decided, all ages follow.
struct StateNote {
  RollNote head;
  int32_t open = 0;
  uint32_t hints = 0;
  int32_t late = 0;
  uint8_t began = 0;
  uint8_t decided = 0;
  uint8_t differs = 0;
  uint8_t around = 0;
};

template <class Value>
void append(std::vector<std::byte>& note, const std::vector<Value>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  note.insert(note.end(), bytes.begin(), bytes.end());
}

}  // namespace

RollCall::RollCall(HostLinks& links) : links_(links) {
  links.handle(NoteKind::Roll, [this](int source, std::span<const std::byte> note) { heed(source, note); });
}

void RollCall::arrive(const shm::CallHeader& header, uint32_t hints, int groups,
                      SteadyClock::duration patience, const Experience& last) {
  {
    const std::lock_guard lock(links_.mutex());
    if (state_.sequence != header.sequence) {  // the clerk may have spoken of it already
      state_ = State{};
      state_.sequence = header.sequence;
      open_.store(0);
      began_.store(false);
      decided_.store(false);
    }
  }
  if (links_.rank() == kClerk) return enroll(kClerk, header, hints, groups, patience, last);
  HereNote note;
  note.head.sequence = header.sequence;
  note.header = header;
  note.patience_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(patience).count();
  note.hints = hints;
  note.groups = groups;
  note.last = last;
  links_.post(kClerk, bytes_of(note));
  links_.look();
}

RollCall::State RollCall::state(uint64_t sequence) const {
  const std::lock_guard lock(links_.mutex());
  if (state_.sequence == sequence) return state_;
  State nothing;
  nothing.sequence = sequence;
  return nothing;
}

void RollCall::report(uint64_t sequence, int groups) {
  RollNote note;
  note.word = RollWord::Reduced;
  note.value = groups;
  note.sequence = sequence;
  if (links_.rank() == kClerk)
    heed(kClerk, bytes_of(note));
  else
    links_.post(kClerk, bytes_of(note));
}

void RollCall::differ(uint64_t sequence) {
  RollNote note;
  note.word = RollWord::Otherwise;
  note.sequence = sequence;
  if (links_.rank() == kClerk)
    heed(kClerk, bytes_of(note));
  else
    links_.post(kClerk, bytes_of(note));
}

int RollCall::awaited() const {
  if (links_.rank() != kClerk) return kClerk;
  const std::lock_guard lock(links_.mutex());
  const auto missing = std::find(roll_.here.begin(), roll_.here.end(), 0);
  return missing == roll_.here.end() ? kClerk : static_cast<int>(missing - roll_.here.begin());
}

void RollCall::heed(int source, std::span<const std::byte> bytes) {
  RollNote head;
  if (!read_note(bytes, head)) return;
  const std::lock_guard lock(links_.mutex());
  switch (head.word) {
    case RollWord::Here:
      if (HereNote note; read_note(bytes, note))
        enroll(source, note.header, note.hints, note.groups, std::chrono::nanoseconds(note.patience_ns),
               note.last);
      break;
    case RollWord::Reduced:
      if (head.sequence == roll_.sequence && roll_.began && !roll_.decided) open_more(head.value);
      break;
    case RollWord::Otherwise:
      if (head.sequence == roll_.sequence && !roll_.decided) decide(true);
      break;
    case RollWord::State:
      take(bytes);
  }
}

// The clerk's part

void RollCall::enroll(int rank, const shm::CallHeader& header, uint32_t hints, int groups,
                      SteadyClock::duration patience, const Experience& last) {
  const std::lock_guard lock(links_.mutex());
  if (header.sequence < roll_.sequence) return;
  if (header.sequence > roll_.sequence) {
    const auto ranks = static_cast<size_t>(links_.placement().ranks());
    roll_ = Roll{};
    roll_.sequence = header.sequence;
    roll_.here.resize(ranks);
    roll_.came.resize(ranks);
    roll_.signatures.resize(ranks);
    roll_.stuck.resize(ranks);
    roll_.bytes = header.count * size_of(header.dtype);
    roll_.groups = groups;
    roll_.patience = patience;
  }
  const auto r = static_cast<size_t>(rank);
  if (roll_.here[r] != 0 || roll_.decided) return;
  roll_.here[r] = 1;
  roll_.came[r] = roll_.last = SteadyClock::now();
  roll_.signatures[r] = signature_of(header);
  roll_.stuck[r] = last.stuck;
  if (rank == kClerk) roll_.seconds = last.seconds;
  roll_.hints |= hints;
  ++roll_.count;
  const int missing = links_.placement().ranks() - roll_.count;
  if (missing == 0) {
    const bool differ = std::any_of(roll_.signatures.begin(), roll_.signatures.end(),
                                    [&](uint64_t signature) { return signature != roll_.signatures[0]; });
    decide(differ);
  } else if (!roll_.began && missing <= kMostLate && roll_.count >= 2 && roll_.count > missing) {
    links_.set_alarm(roll_.last + roll_.patience, [this] { begin(); });
  }
}

// The last one has not come for a while.
void RollCall::begin() {
  const std::lock_guard lock(links_.mutex());
  if (roll_.began || roll_.decided || roll_.sequence == 0) return;
  for (size_t rank = 0; rank < roll_.here.size(); ++rank)
    if (roll_.here[rank] == 0) roll_.late.push_back(static_cast<int>(rank));
  for (size_t rank = 0, first = roll_.here.size(); rank < roll_.here.size(); ++rank) {
    if (roll_.here[rank] == 0) continue;
    first = std::min(first, rank);
    // Of calls that differ nothing may begin: all will hear of it once the last has come.
    if (roll_.signatures[rank] != roll_.signatures[first]) return;
  }
  roll_.began = true;
  roll_.open = 1;  // should the last one come just now, little of a ring's time is lost
  tell_all();
}

// Early ranks may be a group apart, and one more hides the way of the word that opens it.
void RollCall::open_more(int reduced) {
  const int open = std::min(reduced + kAhead, roll_.groups);
  if (open <= roll_.open) return;
  roll_.open = open;
  tell_all();
}

void RollCall::decide(bool differs) {
  roll_.decided = true;
  roll_.differs = differs;
  if (!differs && !roll_.began) {
    const int slow = slow_rank_.choose(roll_.bytes, roll_.stuck, roll_.seconds);
    if (slow >= 0) {
      roll_.began = roll_.around = true;
      roll_.late = {slow};
      roll_.open = roll_.groups;
    }
  }
  tell_all();
}

void RollCall::tell_all() {
  StateNote head;
  head.head.word = RollWord::State;
  head.head.sequence = roll_.sequence;
  head.open = roll_.began ? roll_.open : 0;
  head.hints = roll_.hints;
  head.late = roll_.began ? static_cast<int32_t>(roll_.late.size()) : 0;
  head.began = roll_.began;
  head.decided = roll_.decided;
  head.differs = roll_.differs;
  head.around = roll_.around;
  std::vector<std::byte> note(bytes_of(head).begin(), bytes_of(head).end());
  if (roll_.began) append(note, roll_.late);
  if (roll_.decided) {
    const auto now = SteadyClock::now();
    std::vector<int64_t> ages;
    for (const auto& came : roll_.came) ages.push_back(std::chrono::nanoseconds(now - came).count());
    append(note, ages);
  }
  for (int rank = 0; rank < links_.placement().ranks(); ++rank) {
    const bool concerned = roll_.decided || roll_.here[static_cast<size_t>(rank)] != 0;
    if (rank == links_.rank())
      take(note);
    else if (concerned)
      links_.post(rank, note);
  }
}

// Everybody's part

void RollCall::take(std::span<const std::byte> bytes) {
  StateNote head;
  if (!read_note(bytes, head) || head.head.sequence < state_.sequence) return;
  const auto late_bytes = static_cast<size_t>(std::max(0, head.late)) * sizeof(int);
  const auto rest = bytes.subspan(sizeof head);
  const auto ranks = static_cast<size_t>(links_.placement().ranks());
  if (rest.size() != late_bytes + (head.decided != 0 ? ranks * sizeof(int64_t) : 0)) return;
  State state;
  state.sequence = head.head.sequence;
  state.began = head.began != 0;
  state.decided = head.decided != 0;
  state.differs = head.differs != 0;
  state.around = head.around != 0;
  state.open = head.open;
  state.hints = head.hints;
  state.late.resize(static_cast<size_t>(std::max(0, head.late)));
  std::memcpy(state.late.data(), rest.data(), late_bytes);
  if (state.decided) {
    state.ago_ns.resize(ranks);
    std::memcpy(state.ago_ns.data(), rest.data() + late_bytes, ranks * sizeof(int64_t));
  }
  state.told = SteadyClock::now();
  state_ = std::move(state);
  open_.store(state_.open, std::memory_order_release);
  began_.store(state_.began, std::memory_order_release);
  decided_.store(state_.decided, std::memory_order_release);
}

}  // namespace pycoll
