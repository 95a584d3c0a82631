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
// Of the keeper when there is nothing to move: a futex does not tell of other hosts' messages.
constexpr microseconds kNapAmongHosts{2000};
constexpr auto kCheckEvery = std::chrono::milliseconds(1);
constexpr auto kLeaveWithin = std::chrono::seconds(1);
constexpr auto kKeeperLingers = std::chrono::seconds(1);  // with nothing to do
constexpr int kKeeperYields = 50;                         // after a message, before it sleeps
}  // namespace

Courier::Courier(const shm::Group& group, std::optional<Placement> placement,
                 std::unique_ptr<Network> network)
    : group_(group),
      peers_(group_, std::move(placement)),
      rings_(group_),
      outbox_(group_, rings_, works_),
      inbox_(group_, peers_, rings_, works_),
      remote_(network ? std::make_unique<RemoteMessages>(group_, peers_, works_, inbox_, std::move(network))
                      : nullptr) {}

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

std::shared_ptr<Work> Courier::post(MessageRequest request, const shm::HeapRange& shared) {
  const auto complain = [&](const std::string& what) {
    throw InvalidArgument(peers_.self_in_words() + ": " + (request.sends ? "send" : "recv") + what);
  };
  if (request.data == nullptr && request.bytes != 0)
    complain(" of " + std::to_string(request.bytes) + " bytes needs a buffer");
  if (!remote_ && group_.ranks() == 1) complain(" needs another rank, and this one is alone in its group");
  if (request.peer >= 0) request.peer = peers_.of_number(request.peer);
  auto work = std::make_shared<MessageWork>(shared_from_this(), request);
  locked([&] {
    works_.add(work);
    if (stopped_) return works_.end(*work, stopped_);
    progress();  // what came before this is matched before it
    if (!request.sends)
      inbox_.post(work);
    else if (peers_.is_near(request.peer))
      outbox_.post(work, shared);
    else
      remote_->post(work);
    if (pending()) require_keeper();
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
  // No short circuit: all move.
  moved |= inbox_.progress();
  moved |= outbox_.progress();
  if (remote_) moved |= remote_->progress();
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
  if (waiting_.fetch_sub(1) != 1) return;
  bool pending = works_.count() != 0;
  if (remote_) {
    locked([&] {
      pending = this->pending();
      if (pending) require_keeper();
    });
    // It is to take the place of this thread, and sleeps where it hears nothing of other hosts.
    if (pending) wake_keeper();
  }
  if (pending) expect_news();
}

void Courier::wake_keeper() {
  shm::Doorbell& bell = group_.mine().message_keeper;
  bell.word.fetch_add(1);
  shm::futex_wake(bell.word);
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

// True: there was something to move, and it did not sleep. Where there are other hosts one thread sleeps on
// what comes from them, and any others sleep as ever: it moves what there is to move, and rings when a work
// has ended, whereupon another may take its place.
bool Courier::sleep(shm::Doorbell& bell, microseconds at_most, FunctionRef<bool()> awake) {
  const uint32_t word = bell.word.load(std::memory_order_acquire);
  const bool polls = remote_ && !polling_.exchange(true);
  bell.armed.fetch_or(polls ? shm::kInPoll : shm::kOnWord);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  bool moved = false;
  locked([&] { moved = progress() || (polls && !stopped_ && !remote_->arm()); });
  if (!moved && !awake()) polls ? remote_->sleep(at_most) : shm::futex_wait(bell.word, word, at_most);
  if (polls) polling_.store(false);
  return moved;
}

// Nobody waits any more, or yet: whoever has news for this rank is to wake the keeper.
void Courier::expect_news() {
  shm::Doorbell& bell = group_.mine().message_keeper;
  bell.armed.fetch_or(shm::kOnWord);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  locked([&] { progress(); });  // what came before anyone knew
  if (works_.count() == 0) bell.armed.store(0);
}

// The keeper

// Something is under way, if only to leave this host: what was sent is complete before it has gone.
bool Courier::pending() const {
  return works_.count() != 0 || (remote_ && !stopped_ && !remote_->flushed());
}

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
    bool expects = works_.count() != 0;
    if (expects && !others && idle >= kKeeperYields) bell.armed.fetch_or(shm::kOnWord);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    bool moved = false;
    bool over = false;
    locked([&] {
      moved = progress();
      const auto now = SteadyClock::now();
      if (now - checked_ >= kCheckEvery) check();
      expects = pending();
      if (expects || moved) busy = now;
      over = stopped_ || now - busy > kKeeperLingers;
      if (!over) return;
      if (!stopped_) outbox_.trim();
      keeping_ = false;
      kept_.notify_all();
    });
    if (over) return;
    idle = moved ? 0 : idle + 1;
    if (moved && !others) continue;
    const microseconds nap = remote_ && !others ? kNapAmongHosts : kLongestNap;
    if (idle <= kKeeperYields && !others && expects)
      ::sched_yield();
    else if (remote_ && !others && expects)
      sleep(bell, kLongestNap, [&] { return waiting_.load() != 0; });
    else
      shm::futex_wait(bell.word, word, nap);
  }
}

void Courier::stop(std::exception_ptr error) {
  // First: a receiver that finds what it copied from a lent buffer after this must not believe it.
  group_.mine().messages_closed.store(1);
  locked([&] {
    if (!stopped_) stopped_ = error;
    end_all(error);
  });
  wake_keeper();
  // Not for ever: it may be in a callback that waits for this caller, or be this caller.
  {
    std::unique_lock lock(mutex_);
    kept_.wait_for(lock, std::chrono::milliseconds(200), [&] { return !keeping_; });
  }
  if (remote_) leave();
}

// What was sent completely is to get away.
void Courier::leave() {
  const auto end = SteadyClock::now() + kLeaveWithin;
  locked([&] { remote_->leave(); });
  for (bool flushed = false; !flushed && SteadyClock::now() < end;) {
    locked([&] {
      remote_->poll_only();
      flushed = remote_->flushed();
    });
    if (!flushed) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  // Nobody may sleep on what is closed, nor ever again: the place is taken.
  bool taken = false;
  while (!(taken = !polling_.exchange(true)) && SteadyClock::now() < end) {
    remote_->ring();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (taken) locked([&] { remote_->close(); });
}

size_t Courier::private_bytes() {
  const std::lock_guard lock(mutex_);
  return remote_ ? remote_->bytes() : 0;
}

}  // namespace pycoll
