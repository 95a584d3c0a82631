#include "engine/courier.h"

#include <sched.h>

#include <algorithm>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "transport/shm/futex.h"

namespace pycoll {

using std::chrono::microseconds;

namespace {
constexpr microseconds kFirstNap{1000};  // a death right now is seen within a millisecond or two
constexpr microseconds kLongestNap{20'000};
constexpr auto kCheckEvery = std::chrono::milliseconds(1);
constexpr auto kKeeperLingers = std::chrono::seconds(1);  // with nothing to do
constexpr int kKeeperYields = 50;                         // after a message, before it sleeps
}  // namespace

Courier::Courier(const shm::Group& group)
    : group_(group), rings_(group_), outbox_(group_, rings_, works_), inbox_(group_, rings_, works_) {}

void Courier::locked(FunctionRef<void()> action) {
  MessageWorks::Endings endings;
  {
    const std::lock_guard lock(mutex_);
    action();
    endings = works_.take_endings();
  }
  run_endings(endings);
}

void Courier::run_endings(const MessageWorks::Endings& endings) {
  if (!endings.any()) return;
  shm::ring(group_.mine());  // threads of this rank may sleep until one of these works ends
  endings.run();
}

std::shared_ptr<Work> Courier::post(const MessageRequest& request, const shm::HeapRange& shared) {
  const auto complain = [&](const std::string& what) {
    throw InvalidArgument("group '" + group_.name() + "', rank " + std::to_string(group_.rank()) + ": " +
                          (request.sends ? "send" : "recv") + what);
  };
  if (request.data == nullptr && request.bytes != 0)
    complain(" of " + std::to_string(request.bytes) + " bytes needs a buffer");
  if (group_.ranks() == 1) complain(" needs another rank, and this one is alone in its group");
  auto work = std::make_shared<MessageWork>(shared_from_this(), request);
  locked([&] {
    works_.add(work);
    if (stopped_) return works_.end(*work, stopped_);
    progress();  // what came before this is matched before it
    if (request.sends)
      outbox_.post(work, shared);
    else
      inbox_.post(work);
    if (!work->ended()) require_keeper();
  });
  if (!work->ended() && waiting_.load() == 0) expect_news();
  return work;
}

bool Courier::progress() {
  if (stopped_) return false;
  bool moved = rings_.flush_answers();
  for (int source = 0; source < group_.ranks(); ++source) {
    if (source == group_.rank()) continue;
    while (const shm::Message* message = rings_.first(source)) {
      switch (message->kind) {
        case shm::MessageKind::Wanted:
          outbox_.wanted(shm::place_of(*message).id);
          break;
        case shm::MessageKind::Taken:
          outbox_.taken(shm::place_of(*message).id);
          break;
        case shm::MessageKind::Granted:
          inbox_.granted(source, *message);
          break;
        default:
          inbox_.arrived(source, *message);
      }
      rings_.pop(source);
      moved = true;
    }
  }
  // No short circuit: both move.
  moved |= inbox_.progress();
  moved |= outbox_.progress();
  return moved;
}

void Courier::try_progress() {
  MessageWorks::Endings endings;
  {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return;
    progress();
    endings = works_.take_endings();
  }
  run_endings(endings);
}

// Waiting

void Courier::wait(MessageWork& work, std::optional<Nanoseconds> timeout) {
  std::optional<SteadyClock::time_point> deadline;
  if (timeout) deadline = SteadyClock::now() + *timeout;
  waiting_.fetch_add(1);
  group_.mine().message_keeper.armed.store(0);  // this thread moves messages now; nobody need wake the keeper
  microseconds nap = kFirstNap;
  for (bool moved = true; !work.ended();) {
    if (moved) watch(work);
    const auto now = SteadyClock::now();
    const auto until = std::min(work.deadline(), deadline.value_or(work.deadline()));
    const auto left = std::chrono::duration_cast<microseconds>(until - now) + microseconds{1};
    moved = !work.ended() && sleep(group_.mine().message_waiters, std::clamp(left, microseconds{1}, nap),
                                   [&] { return work.ended(); });
    nap = moved ? kFirstNap : std::min(nap * 2, kLongestNap);
    locked([&] {
      if (SteadyClock::now() - checked_ >= kCheckEvery) check();
      if (deadline && SteadyClock::now() >= *deadline && !work.ended())
        end_late(work,
                 "was not complete when a wait() for it timed out after " + shm::format_seconds(*timeout));
    });
  }
  if (waiting_.fetch_sub(1) == 1 && works_.count() != 0) expect_news();
}

// Spins, then yields, while nothing else needs this processor.
void Courier::watch(const MessageWork& work) {
  const shm::Patience& patience = group_.patience();
  for (int i = 0; i < patience.spins + patience.yields && !work.ended(); ++i) {
    if (i < patience.spins)
      shm::pause_processor();
    else
      ::sched_yield();
    try_progress();
  }
}

// True: there was something to move, and it did not sleep.
bool Courier::sleep(shm::Doorbell& bell, microseconds at_most, FunctionRef<bool()> awake) {
  const uint32_t word = bell.word.load(std::memory_order_acquire);
  bell.armed.store(1);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  bool moved = false;
  locked([&] { moved = progress(); });
  if (!moved && !awake()) shm::futex_wait(bell.word, word, at_most);
  return moved;
}

// Nobody waits any more, or yet: whoever has news for this rank is to wake the keeper.
void Courier::expect_news() {
  shm::Doorbell& bell = group_.mine().message_keeper;
  bell.armed.store(1);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  locked([&] { progress(); });  // what came before anyone knew
  if (works_.count() == 0) bell.armed.store(0);
}

// The keeper

void Courier::require_keeper() {
  if (keeping_) return;
  keeping_ = true;
  try {
    std::thread([self = shared_from_this()] { self->keep(); }).detach();
  } catch (const std::system_error&) {
    keeping_ = false;  // no thread to be had: waits still move messages, and the next operation tries again
  }
}

void Courier::keep() {
  shm::Doorbell& bell = group_.mine().message_keeper;
  auto busy = SteadyClock::now();
  for (int idle = 0;;) {
    const uint32_t word = bell.word.load(std::memory_order_acquire);
    const bool others = waiting_.load() != 0;  // they move messages; this thread looks after deadlines
    const bool expects = works_.count() != 0;
    if (expects && !others && idle >= kKeeperYields) bell.armed.store(1);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    bool moved = false;
    bool over = false;
    locked([&] {
      moved = progress();
      const auto now = SteadyClock::now();
      if (now - checked_ >= kCheckEvery) check();
      if (works_.count() != 0 || moved) busy = now;
      over = stopped_ || now - busy > kKeeperLingers;
      if (!over) return;
      if (!stopped_) outbox_.trim();
      keeping_ = false;
      kept_.notify_all();
    });
    if (over) return;
    idle = moved ? 0 : idle + 1;
    if (moved && !others) continue;
    if (idle <= kKeeperYields && !others && expects)
      ::sched_yield();
    else
      shm::futex_wait(bell.word, word, kLongestNap);
  }
}

void Courier::stop(std::exception_ptr error) {
  // First: a receiver that finds what it copied from a lent buffer after this must not believe it.
  group_.mine().messages_closed.store(1);
  locked([&] {
    if (!stopped_) stopped_ = error;
    end_all(error);
  });
  group_.mine().message_keeper.word.fetch_add(1);
  shm::futex_wake(group_.mine().message_keeper.word);
  // Not for ever: it may be in a callback that waits for this caller, or be this caller.
  std::unique_lock lock(mutex_);
  kept_.wait_for(lock, std::chrono::milliseconds(200), [&] { return !keeping_; });
}

// What ends works but messages

void Courier::check() {
  checked_ = SteadyClock::now();
  if (works_.count() == 0) return;
  if (group_.failed()) {
    try {
      group_.throw_failure();
    } catch (...) {
      return end_all(std::current_exception());
    }
  }
  std::vector<bool> involved(static_cast<size_t>(group_.ranks()));
  for (const auto& work : works_.all()) {
    if (checked_ >= work->deadline())
      return end_late(*work, "timed out after " + shm::format_seconds(checked_ - work->posted));
    const int peer = inbox_.source_of(*work);
    for (int rank = 0; rank < group_.ranks(); ++rank)
      if (peer < 0 || peer == rank) involved[static_cast<size_t>(rank)] = true;
  }
  for (int rank = 0; rank < group_.ranks(); ++rank)
    if (rank != group_.rank() && involved[static_cast<size_t>(rank)] && group_.gone(rank)) check_peer(rank);
}

// Ends the works that cannot end without this rank, which is gone.
void Courier::check_peer(int peer) {
  progress();  // what it finished before it went still counts
  bool all_gone = true;
  for (int rank = 0; rank < group_.ranks(); ++rank)
    all_gone = all_gone && (rank == group_.rank() || group_.gone(rank));
  const bool left = group_.control(peer).state.load(std::memory_order_acquire) == shm::RankState::Left;
  for (const auto& work : works_.all()) {
    const int needed = inbox_.source_of(*work);
    if (needed != peer && !(needed < 0 && all_gone)) continue;
    if (inbox_.safe(*work)) continue;
    std::string text = describe(*work) + ": ";
    if (needed < 0)
      text += "all other ranks have left the group or died";
    else
      text += "rank " + std::to_string(peer) + " (pid " + std::to_string(group_.control(peer).pid) + ") " +
              (left ? "has left the group" : "is gone: its process exited or was killed");
    text += ", noticed " + shm::format_seconds(checked_ - work->posted) +
            " after the call. Look at that rank's own output for the cause.";
    inbox_.forget(*work);
    works_.end(*work, std::make_exception_ptr(PeerLost(text)));
  }
  outbox_.forget(peer);
}

void Courier::end_late(MessageWork& work, const std::string& what) {
  const int peer = inbox_.source_of(work);
  std::string text = describe(work) + " " + what + "; ";
  if (peer < 0)
    text += "no rank has sent such a message";
  else
    text += "rank " + std::to_string(peer) + " (pid " + std::to_string(group_.control(peer).pid) +
            ") has not " + (work.request.sends ? "received" : "sent") + " all of it";
  group_.fail(
      shm::FailureKind::Timeout,
      text + ". The group is no longer usable; if that rank is merely slow, a longer timeout will do.");
  try {
    group_.throw_failure();
  } catch (...) {
    end_all(std::current_exception());
  }
}

void Courier::end_all(std::exception_ptr error) {
  for (const auto& work : works_.all()) works_.end(*work, error);
  inbox_.forget_all();
  outbox_.forget_all();
}

std::string Courier::describe(const MessageWork& work) const {
  const MessageRequest& request = work.request;
  shm::Operation operation;
  operation.name = request.sends ? "send" : "recv";
  operation.bytes = request.bytes;
  const std::string peer = request.peer < 0 ? "any rank" : "rank " + std::to_string(request.peer);
  return group_.describe(operation) + (request.sends ? " to " : " from ") + peer + ", tag " +
         std::to_string(request.tag);
}

}  // namespace pycoll
