#include "transport/shm/group.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "core/error.h"
#include "transport/shm/bell.h"
#include "transport/shm/futex.h"

namespace pycoll::shm {
namespace {

using std::chrono::microseconds;

}  // namespace

std::string format_seconds(std::chrono::nanoseconds duration) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g s", std::chrono::duration<double>(duration).count());
  return text;
}

Patience Patience::for_ranks(int ranks, int processors) {
  if (ranks <= processors) return {.spins = 2000, .yields = 1000};
  return {.spins = 0, .yields = 400};
}

Group::Group(std::shared_ptr<Segment> segment, int rank, int ranks, std::string name, Patience patience,
             std::vector<int> numbers)
    : segment_(std::move(segment)),
      rank_(rank),
      ranks_(ranks),
      name_(std::move(name)),
      patience_(patience),
      numbers_(std::move(numbers)) {
  for (int r = 0; r < ranks; ++r) controls_.push_back(&segment_->control(r));
  for (int r = 0; numbers_.size() < controls_.size(); ++r) numbers_.push_back(r);
}

// Yielding is quicker than sleeping where only our own ranks share the processors. A yield that takes long
// gave the processor to somebody with other work to do; then sleeping is better, since the kernel favours who
// wakes up.
bool Group::yield(FunctionRef<bool()> ready) {
  constexpr auto kLong = microseconds{500};
  constexpr int kCrowdedFor = 100;
  if (crowded_ > 0) {
    --crowded_;
    return false;
  }
  auto before = SteadyClock::now();
  for (int i = 0; i < patience_.yields; ++i) {
    ::sched_yield();
    if (outside_ != nullptr) outside_->look();
    if (ready()) return true;
    const auto after = SteadyClock::now();
    if (patience_.spins == 0 && after - before > kLong) {
      crowded_ = kCrowdedFor;
      return false;
    }
    before = after;
  }
  return false;
}

void Group::wait_slowly(Operation& operation, int peer, FunctionRef<bool()> ready, int32_t wakes) {
  if (ready() || (!operation.in_background && yield(ready))) return;
  const auto now = SteadyClock::now();
  if (!operation.started) operation.started = now;
  auto deadline = *operation.started + operation.timeout;
  if (operation.deadline) deadline = std::min(deadline, *operation.deadline);

  struct Waiting {
    std::atomic<int32_t>& word;
    Waiting(std::atomic<int32_t>& word, int32_t whom) : word(word) {
      word.store(whom, std::memory_order_relaxed);
    }
    ~Waiting() { word.store(kNobody, std::memory_order_relaxed); }
  } waiting(mine().waiting_for, wakes);

  // Short sleeps first: a death right now is seen within a millisecond or two.
  for (microseconds nap{1000};; nap = std::min(nap * 2, microseconds{20'000})) {
    if (sleep(ready, nap) || ready()) return;
    throw_if_failed();
    if (outside_ != nullptr && wakes <= kElsewhere) outside_->check(operation, kElsewhere - wakes);
    look_for_interruption(operation);
    for (int rank = peer < 0 ? 0 : peer; rank < (peer < 0 ? ranks_ : peer + 1); ++rank) {
      if (rank == rank_ || !gone(rank)) continue;
      if (ready()) return;  // it finished its part before it went
      fail_lost(operation, rank);
    }
    const auto time = SteadyClock::now();
    if (time >= deadline) {
      if (ready()) return;
      fail_timeout(operation, peer, time - *operation.started);
    }
    nap = std::min(nap, std::chrono::duration_cast<microseconds>(deadline - time) + microseconds{1});
  }
}

void Group::look_for_interruption(const Operation& operation) {
  if (operation.in_background || operation.interrupted == nullptr || !*operation.interrupted) return;
  try {
    (*operation.interrupted)();
  } catch (...) {
    fail(FailureKind::Aborted,
         describe(operation) + ": interrupted by a signal. The group is no longer usable.");
    throw;
  }
}

bool Group::sleep(FunctionRef<bool()> ready, microseconds at_most) {
  RankControl& me = mine();
  auto& sleepers = segment_->group().sleepers;
  const uint32_t ring = me.doorbell.load(std::memory_order_relaxed);
  me.sleeping.store(outside_ != nullptr ? Sleep::InPoll : Sleep::OnDoorbell, std::memory_order_relaxed);
  sleepers.fetch_add(1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (outside_ != nullptr) outside_->look();
  // ready() may do work and say so once only: its first yes counts.
  const bool over = ready();
  if (!over && outside_ != nullptr) outside_->sleep(at_most);
  if (!over && outside_ == nullptr) futex_wait(me.doorbell, ring, at_most);
  sleepers.fetch_sub(1, std::memory_order_relaxed);
  me.sleeping.store(Sleep::Awake, std::memory_order_relaxed);
  if (!over && outside_ != nullptr) outside_->look();
  return over;
}

template <class Whom>
void Group::ring_doorbells(Whom&& whom) {
  for (int r = 0; r < ranks_; ++r) {
    RankControl& other = control(r);
    const Sleep sleeping = other.sleeping.load(std::memory_order_relaxed);
    if (r == rank_ || sleeping == Sleep::Awake) continue;
    if (!whom(other.waiting_for.load(std::memory_order_relaxed))) continue;
    if (sleeping == Sleep::InPoll) {
      ring_bell(other.bell);
      continue;
    }
    other.doorbell.fetch_add(1, std::memory_order_release);
    futex_wake(other.doorbell);
  }
}

void Group::ring_those_who_wait_for_me() {
  ring_doorbells([this](int32_t waits_for) {
    return waits_for == rank_ + 1 || waits_for == kAnyone || waits_for <= kElsewhere;
  });
}

void Group::ring_those_who_wait_for_everyone() {
  ring_doorbells([](int32_t waits_for) { return waits_for == kEveryone; });
}

void Group::enter() {
  pthread_mutexattr_t attributes;
  ::pthread_mutexattr_init(&attributes);
  ::pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  ::pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  RankControl& me = mine();
  ::pthread_mutex_init(&me.alive, &attributes);
  ::pthread_mutexattr_destroy(&attributes);
  ::pthread_mutex_lock(&me.alive);
  me.pid = ::getpid();
  me.state.store(RankState::Alive, std::memory_order_release);
}

void Group::leave() {
  mine().state.store(RankState::Left, std::memory_order_release);
  ::pthread_mutex_unlock(&mine().alive);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  ring_doorbells([](int32_t) { return true; });
}

bool Group::gone(int rank) {
  RankControl& other = control(rank);
  const RankState state = other.state.load(std::memory_order_acquire);
  if (state != RankState::Alive) return state != RankState::Absent;
  const int result = ::pthread_mutex_trylock(&other.alive);
  if (result == EBUSY) return false;
  if (result == EOWNERDEAD) {
    other.state.store(RankState::Dead, std::memory_order_release);
    ::pthread_mutex_consistent(&other.alive);
  }
  if (result == 0 || result == EOWNERDEAD) ::pthread_mutex_unlock(&other.alive);
  return other.state.load(std::memory_order_acquire) != RankState::Alive;
}

void Group::fail(FailureKind kind, const std::string& text, int reporter) {
  GroupControl& group = segment_->group();
  FailureState none = FailureState::None;
  if (group.failure.compare_exchange_strong(none, FailureState::Writing)) {
    group.failure_kind = kind;
    group.failure_reporter = reporter < 0 ? number(rank_) : reporter;
    std::snprintf(group.failure_text, sizeof group.failure_text, "%s", text.c_str());
    group.failure.store(FailureState::Set, std::memory_order_release);
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);
  ring_doorbells([](int32_t) { return true; });
}

void Group::throw_if_failed() const {
  if (segment_->group().failure.load(std::memory_order_acquire) == FailureState::Set) throw_failure();
}

void Group::throw_failure() const {
  if (outside_ != nullptr) outside_->spread();
  const GroupControl& group = segment_->group();
  // A reporter that died between the two stores leaves Writing for ever: do not read a half-written text.
  for (int i = 0; i < 1000 && group.failure.load(std::memory_order_acquire) == FailureState::Writing; ++i)
    ::sched_yield();
  std::string text = group.failure.load(std::memory_order_acquire) == FailureState::Set
                         ? group.failure_text
                         : "group '" + name_ + "' failed, and the rank that was to say why died";
  if (group.failure_reporter != number(rank_))
    text += " [seen by rank " + std::to_string(group.failure_reporter) + ", told to rank " +
            std::to_string(number(rank_)) + "]";
  switch (group.failure_kind) {
    case FailureKind::PeerLost:
      throw PeerLost(text);
    case FailureKind::Timeout:
      throw Timeout(text);
    case FailureKind::Aborted:
      break;
  }
  throw Aborted(text);
}

std::string Group::describe(const Operation& operation) const {
  std::string text =
      "group '" + name_ + "', rank " + std::to_string(number(rank_)) + ": " + std::string(operation.name);
  if (operation.sequence != 0) text += " #" + std::to_string(operation.sequence);
  return text + " of " + std::to_string(operation.bytes) + " bytes";
}

void Group::fail_lost(const Operation& operation, int peer) {
  const RankControl& other = control(peer);
  const bool left = other.state.load(std::memory_order_acquire) == RankState::Left;
  std::string text = describe(operation) + ": rank " + std::to_string(number(peer)) + " (pid " +
                     std::to_string(other.pid) + ") ";
  text += left ? "has left the group" : "is gone: its process exited or was killed";
  if (operation.started)
    text += ", noticed after waiting " + format_seconds(SteadyClock::now() - *operation.started);
  text += ". The group is no longer usable; look at that rank's own output for the cause.";
  fail(FailureKind::PeerLost, text);
  throw_failure();
}

int Group::culprit(int peer) const {
  // Follow the chain of waits to the rank that waits for nobody: the one that is late or stopped.
  int suspect = peer;
  for (int step = 0; step < ranks_ && suspect >= 0; ++step) {
    const int next = control(suspect).waiting_for.load(std::memory_order_relaxed) - 1;
    if (next < 0 || next == suspect) break;
    suspect = next;
  }
  return suspect == rank_ ? peer : suspect;
}

int Group::awaited() const {
  const int32_t whom = mine().waiting_for.load(std::memory_order_relaxed);
  if (whom <= kElsewhere) return kElsewhere - whom;
  if (whom > 0) return number(whom - 1);
  if (whom != kEveryone) return -1;
  const auto arrived = [](const RankControl& control) {
    return std::max(control.arrival[0].sequence.load(std::memory_order_relaxed),
                    control.arrival[1].sequence.load(std::memory_order_relaxed));
  };
  for (int r = 0; r < ranks_; ++r)
    if (arrived(control(r)) < arrived(mine())) return number(r);
  return -1;
}

std::string Group::blame(int peer) const {
  const int suspect = culprit(peer);
  const int at = suspect < 0 ? rank_ : suspect;
  // The chain may go on at another host.
  const int32_t waits_for = control(at).waiting_for.load(std::memory_order_relaxed);
  if (outside_ != nullptr && waits_for <= kElsewhere) return outside_->blame(kElsewhere - waits_for);
  if (suspect < 0 || suspect == rank_) return "";
  return "rank " + std::to_string(number(suspect)) + " (pid " + std::to_string(control(suspect).pid) +
         "), which made no progress (stopped, or starved of processor time)";
}

void Group::fail_timeout(const Operation& operation, int peer, std::chrono::nanoseconds waited) {
  std::string text = describe(operation) + ": timed out after " + format_seconds(waited);
  std::string missing;
  for (int r = 0; r < ranks_ && operation.sequence != 0; ++r) {
    const auto& line = control(r).arrival[operation.sequence & 1];
    if (line.sequence.load(std::memory_order_acquire) < operation.sequence)
      missing += (missing.empty() ? "" : ", ") + std::to_string(number(r));
  }
  if (!missing.empty())
    text += "; rank(s) " + missing + " never called it";
  else if (const std::string who = blame(peer); !who.empty())
    text += " waiting for " + who;
  text += ". The group is no longer usable; if that rank is merely slow, a longer timeout will do.";
  fail(FailureKind::Timeout, text);
  throw_failure();
}

}  // namespace pycoll::shm
