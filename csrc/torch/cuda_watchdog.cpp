#include "torch/cuda_watchdog.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/error.h"
#include "torch/errors.h"

namespace pycoll::torch_adapter {
namespace {

constexpr uint64_t kWatchTag = uint64_t(1) << 61;  // torch's own tags have 32 bits
constexpr auto kForEver = std::chrono::hours(24 * 365);
constexpr auto kToSend = std::chrono::seconds(5);
constexpr auto kNap = std::chrono::milliseconds(10);          // works are under way
constexpr auto kShortNap = std::chrono::microseconds(100);    // and somebody waits for them
constexpr auto kIdleNap = std::chrono::milliseconds(50);      // nothing but other ranks' messages to look for
constexpr auto kToAnswer = std::chrono::milliseconds(1500);   // of a rank that is asked how far it is
constexpr auto kToEndAlone = std::chrono::milliseconds(500);  // kernels that a lost rank had served already

}  // namespace

CudaWatchdog::CudaWatchdog(std::shared_ptr<Communicator> communicator, Hooks hooks)
    : communicator_(std::move(communicator)),
      hooks_(std::move(hooks)),
      peers_(size_t(communicator_->ranks())),
      thread_([this] { run(); }) {}

CudaWatchdog::~CudaWatchdog() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = leaving_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void CudaWatchdog::watch(c10::intrusive_ptr<CudaWork> work) {
  const std::lock_guard lock(mutex_);
  if (failure_) work->set_error(failure_);
  for (const int peer : work->peers()) ++peers_[size_t(peer)].messages_called;
  if (work->peers().empty()) {
    ++called_;
    last_call_ = work->name();
    works_.push_back(std::move(work));
  } else {
    messages_.push_back(std::move(work));
  }
  changed_.notify_all();
}

void CudaWatchdog::require_usable(std::optional<int> peer) {
  std::string gone;
  {
    const std::lock_guard lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
    for (size_t r = 0; r < peers_.size(); ++r)
      if (peers_[r].lost && gone.empty() && peer.value_or(int(r)) == int(r))
        gone = "rank " + std::to_string(r) +
               (peers_[r].left ? " has left the group" : " is gone: its process exited or was killed");
  }
  if (gone.empty()) return;
  fail(gone + ". The group can do no more with CUDA tensors; look at that rank's own output for the cause.");
  require_usable();
}

// The CPU's group ends as well, which tells all ranks, also those that wait there.
void CudaWatchdog::fail(const std::string& reason) {
  set_failure("group '" + communicator_->options().group + "', rank " +
              std::to_string(communicator_->rank()) + ": " + reason);
  communicator_->abort(reason);
}

void CudaWatchdog::set_failure(const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    failure_ = std::make_exception_ptr(Aborted(reason));
    for (const auto& work : works_) work->set_error(failure_);
    for (const auto& work : messages_) work->set_error(failure_);
  }
  hooks_.stop_kernels();
  changed_.notify_all();
  if (communicator_->options().log) communicator_->options().log(reason);
}

template <class Condition>
bool CudaWatchdog::wait_until(std::optional<Nanoseconds> limit, const Condition& condition) {
  std::unique_lock lock(mutex_);
  ++waiting_;
  changed_.notify_all();
  const auto over = [&] { return condition() || failure_ || stop_; };
  if (limit)
    changed_.wait_for(lock, *limit, over);
  else
    changed_.wait(lock, over);
  --waiting_;
  const bool met = condition();
  if (!met && failure_) std::rethrow_exception(failure_);
  return met;
}

bool CudaWatchdog::wait_for_collectives(std::optional<Nanoseconds> limit) {
  return wait_until(limit, [this] { return works_.empty(); });
}

bool CudaWatchdog::wait_for_all(std::optional<Nanoseconds> limit) {
  return wait_until(limit, [this] { return works_.empty() && messages_.empty(); });
}

bool CudaWatchdog::wait_for(const CudaWork& work, std::optional<Nanoseconds> limit) {
  return wait_until(limit, [&] { return work.settled(); });
}

void CudaWatchdog::leave(Nanoseconds limit) {
  const auto deadline = Clock::now() + limit;
  const auto left = [&] { return std::max(Nanoseconds(1), Nanoseconds(deadline - Clock::now())); };
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(leaving_, true)) return;
  }
  try {
    if (!wait_for_all(left())) {
      std::string late;
      {
        const std::lock_guard lock(mutex_);
        if (!messages_.empty()) late = messages_.front()->name();
        if (!works_.empty()) late = works_.front()->name();
      }
      if (!late.empty())
        set_failure(c10::str("group '", communicator_->options().group, "', rank ", communicator_->rank(),
                             ": left the group while ", late, " was under way, for which leaving waits ",
                             std::chrono::duration<double>(limit).count(),
                             " s; what its tensors hold is rubbish. Synchronize with the device before."));
    } else {
      for (int r = 0; r < communicator_->ranks(); ++r)
        if (r != communicator_->rank()) send(r, Kind::Goodbye);
      wait_until(left(), [this] {
        for (size_t r = 0; r < peers_.size(); ++r)
          if (int(r) != communicator_->rank() && !peers_[r].lost &&
              (peers_[r].ended < ended_ || peers_[r].messages_ended_there < peers_[r].messages_called))
            return false;
        return true;
      });
    }
  } catch (const Error&) {  // the group failed: there is nothing to wait for
  }
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

// The thread

void CudaWatchdog::run() {
  try {
    watch_over();
  } catch (const std::exception& e) {  // nobody would end works that are late from here on
    set_failure(std::string("its CUDA tensors are not watched any more: ") + e.what());
  }
}

void CudaWatchdog::watch_over() {
  hooks_.begin();
  for (int r = 0; r < communicator_->ranks(); ++r)
    if (r != communicator_->rank()) listen(r);
  std::unique_lock lock(mutex_);
  while (!stop_) {
    lock.unlock();
    read_mail();
    look_for_complaints();
    const bool collectives_ended = let_go_of_ended(), messages_ended = let_go_of_messages();
    const bool some_ended = collectives_ended || messages_ended;
    if (some_ended) answer_leaving();
    judge();
    lock.lock();
    if (some_ended) changed_.notify_all();
    const auto none = [this] { return works_.empty() && messages_.empty(); };
    const Nanoseconds nap = waiting_ > 0 ? Nanoseconds(kShortNap)
                            : none()     ? Nanoseconds(kIdleNap)
                                         : Nanoseconds(kNap);
    const bool idle = none() && waiting_ == 0;
    changed_.wait_for(lock, nap, [&] { return stop_ || waiting_ > 0 || (idle && !none()); });
    if (waiting_ > 0 && !stop_) {  // not at once: what is waited for takes a while
      lock.unlock();
      std::this_thread::sleep_for(kShortNap);
      lock.lock();
    }
  }
}

// Asks for the peer's next message. Its receive ends with an error when the peer is gone.
void CudaWatchdog::listen(int peer) {
  auto note = std::make_shared<Note>();
  std::shared_ptr<pycoll::Work> receive;
  try {
    receive = communicator_->recv(note.get(), sizeof(Note), peer, kWatchTag, kForEver);
  } catch (const Error&) {
    return lose(peer, std::current_exception());
  }
  peers_[size_t(peer)].receive = receive;
  peers_[size_t(peer)].note = note;
  receive->on_done([mailbox = mailbox_, note, peer] {
    const std::lock_guard lock(mailbox->mutex);
    mailbox->arrived.push_back(peer);
  });
}

void CudaWatchdog::read_mail() {
  std::vector<int> arrived;
  {
    const std::lock_guard lock(mailbox_->mutex);
    arrived.swap(mailbox_->arrived);
  }
  for (const int peer : arrived) {
    if (auto error = peers_[size_t(peer)].receive->exception()) {
      lose(peer, error);
    } else {
      const Note note = *peers_[size_t(peer)].note;
      listen(peer);
      take(peer, note);
    }
  }
}

void CudaWatchdog::take(int peer, const Note& note) {
  bool answer = note.kind == Kind::Question;
  {
    const std::lock_guard lock(mutex_);
    Peer& from = peers_[size_t(peer)];
    from.called = note.called;
    from.ended = note.ended;
    from.messages_ended_there = note.received;
    from.last.assign(note.last_call, ::strnlen(note.last_call, sizeof(note.last_call)));
    if (note.kind == Kind::Answer) from.answered = true;
    if (note.kind == Kind::Goodbye) {
      from.left = true;
      from.waits_for = note.ended;
      from.waits_for_messages = note.sent;
      // Else it is told when that is so.
      answer = ended_ >= note.ended && from.messages_ended >= note.sent;
    }
  }
  changed_.notify_all();
  if (answer) send(peer, Kind::Answer);
}

void CudaWatchdog::lose(int peer, std::exception_ptr error) {
  {
    const std::lock_guard lock(mutex_);
    Peer& from = peers_[size_t(peer)];
    from.lost = true;
    from.lost_at = Clock::now();
    if (leaving_) error = nullptr;
  }
  changed_.notify_all();
  try {
    if (error) std::rethrow_exception(error);
  } catch (const PeerLost&) {         // of consequence only if it is needed
  } catch (const InvalidArgument&) {  // this rank has left the group
  } catch (const Error& e) {          // the CPU's group has failed, and told all ranks
    set_failure(e.what());
  }
}

void CudaWatchdog::send(int peer, Kind kind) {
  auto note = std::make_shared<Note>();
  note->kind = kind;
  {
    const std::lock_guard lock(mutex_);
    note->called = called_;
    note->ended = ended_;
    note->sent = peers_[size_t(peer)].messages_called;
    note->received = peers_[size_t(peer)].messages_ended;
    std::strncpy(note->last_call, last_call_.c_str(), sizeof(note->last_call) - 1);
  }
  try {
    communicator_->send(note.get(), sizeof(Note), peer, kWatchTag, kToSend)->on_done([note] {});
  } catch (const Error&) {  // it is gone, or the group is: its receive says so
  }
}

// Before works are said to have ended well.
void CudaWatchdog::look_for_complaints() {
  {
    const std::lock_guard lock(mutex_);
    if ((works_.empty() && messages_.empty()) || failure_) return;
  }
  const std::string complaint = hooks_.complaint();
  if (!complaint.empty()) fail(complaint);
}

// Also where the GPU has failed, which all that follows has as well.
bool CudaWatchdog::has_ended(const CudaWork& work) {
  try {
    if (!work.has_ended()) return false;
  } catch (const std::exception& e) {
    fail(std::string("the GPU failed in or before ") + work.name() + ": " + e.what());
  }
  look_for_complaints();
  return true;
}

bool CudaWatchdog::let_go_of_ended() {
  bool some_ended = false;
  for (;;) {
    c10::intrusive_ptr<CudaWork> first;
    {
      const std::lock_guard lock(mutex_);
      if (works_.empty()) break;
      first = works_.front();
    }
    if (!has_ended(*first)) break;
    {
      const std::lock_guard lock(mutex_);
      works_.pop_front();
      ++ended_;
      asked_.reset();
    }
    first->settle();  // without the lock: letting tensors go may take the GIL
    some_ended = true;
  }
  return some_ended;
}

bool CudaWatchdog::let_go_of_messages() {
  std::vector<c10::intrusive_ptr<CudaWork>> works, ended;
  {
    const std::lock_guard lock(mutex_);
    works = messages_;
  }
  for (auto& work : works)
    if (has_ended(*work)) ended.push_back(work);
  if (ended.empty()) return false;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& work : ended) {
      std::erase(messages_, work);
      for (const int peer : work->peers()) ++peers_[size_t(peer)].messages_ended;
    }
  }
  for (const auto& work : ended) work->settle();
  return true;
}

// Tells those who leave that this rank has come so far as they wait for.
void CudaWatchdog::answer_leaving() {
  std::vector<int> leaving;
  {
    const std::lock_guard lock(mutex_);
    for (size_t r = 0; r < peers_.size(); ++r) {
      Peer& peer = peers_[r];
      const bool waits = peer.waits_for != 0 || peer.waits_for_messages != 0;
      if (!peer.left || peer.lost || !waits || ended_ < peer.waits_for ||
          peer.messages_ended < peer.waits_for_messages)
        continue;
      peer.waits_for = peer.waits_for_messages = 0;
      leaving.push_back(int(r));
    }
  }
  for (const int peer : leaving) send(peer, Kind::Answer);
}

// Whether the works under way can end.
void CudaWatchdog::judge() {
  std::vector<int> to_ask;
  std::string reason;
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    reason = why_messages_cannot_end();
    if (reason.empty() && works_.empty()) return;
    const auto now = Clock::now();
    for (size_t r = 0; r < peers_.size() && reason.empty(); ++r)
      if (peers_[r].lost && now - peers_[r].lost_at > kToEndAlone)
        reason = std::string(works_.front()->name()) + why_gone(int(r));
    if (reason.empty() && now >= works_.front()->deadline()) {
      bool all_answered = true;
      for (size_t r = 0; r < peers_.size(); ++r) {
        if (int(r) == communicator_->rank() || peers_[r].lost) continue;
        if (!asked_) {
          peers_[r].answered = false;
          to_ask.push_back(int(r));
        }
        all_answered &= peers_[r].answered;
      }
      if (!asked_) asked_ = now;
      if (all_answered || now - *asked_ > kToAnswer) reason = verdict(*works_.front());
    }
  }
  for (const int peer : to_ask) send(peer, Kind::Question);
  if (!reason.empty()) fail(reason);
}

std::string CudaWatchdog::why_gone(int peer) const {
  return " cannot end: rank " + std::to_string(peer) +
         (peers_[size_t(peer)].left ? " has left the group" : " is gone, its process exited or was killed") +
         ". Look at that rank's own output for the cause.";
}

std::string CudaWatchdog::why_messages_cannot_end() const {
  const auto now = Clock::now();
  for (const auto& work : messages_) {
    std::string with;
    for (const int r : work->peers()) {
      if (peers_[size_t(r)].lost && now - peers_[size_t(r)].lost_at > kToEndAlone)
        return std::string(work->name()) + why_gone(r);
      with += (with.empty() ? "rank " : ", ") + std::to_string(r);
    }
    if (now >= work->deadline())
      return std::string(work->name()) + " of CUDA tensors timed out after " +
             c10::str(std::chrono::duration<double>(now - work->started()).count()) +
             " s: is there a call of " + with + " for it?";
  }
  return {};
}

std::string CudaWatchdog::verdict(const CudaWork& late) const {
  std::string text = std::string(late.name()) + " of CUDA tensors timed out after " +
                     c10::str(std::chrono::duration<double>(Clock::now() - late.started()).count()) + " s";
  std::string missing, silent;
  for (size_t r = 0; r < peers_.size(); ++r) {
    if (int(r) == communicator_->rank()) continue;
    const Peer& peer = peers_[r];
    if (!peer.answered)
      silent += (silent.empty() ? "" : ", ") + std::to_string(r);
    else if (peer.called <= ended_)
      missing += (missing.empty() ? "" : ", ") + ("rank " + std::to_string(r)) +
                 (peer.called == 0 ? " has called none yet" : " called last " + peer.last);
  }
  if (!silent.empty()) text += "; rank " + silent + " does not answer: is its process stopped?";
  if (!missing.empty())
    text += "; it is call " + std::to_string(ended_ + 1) +
            " of the group, to which others have not come: " + missing;
  if (silent.empty() && missing.empty())
    text +=
        "; all ranks have called it: do they agree on what they call, sizes and dtypes? Or is a GPU busy "
        "with something else?";
  return text + ". If it is merely slow, a longer timeout will do.";
}

}  // namespace pycoll::torch_adapter
