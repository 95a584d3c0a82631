#include "engine/hosts/links.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "engine/hosts/notes.h"

namespace pycoll {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kAnswerWithin{300};
constexpr milliseconds kFlushWithin{300};
constexpr milliseconds kSettleWithin{10'000};  // peers that are lost meanwhile are no longer waited for
constexpr milliseconds kWatchAfter{
    50};  // of waiting: by then those who are there have connected by themselves
// In larger groups the news of a failure goes to one rank a host, which has the others' ear in shared memory.
constexpr int kTellAll = 64;

}  // namespace

HostLinks::HostLinks(shm::Group& group, const Placement& placement, int rank,
                     std::unique_ptr<Network> network)
    : group_(group), placement_(placement), rank_(rank), network_(std::move(network)) {
  std::strncpy(group.mine().bell, bell_.name().c_str(), shm::kBellName - 1);
  handle(NoteKind::Failure, [this](int, std::span<const std::byte> note) { heed_failure(note); });
  handle(NoteKind::Question, [this](int source, std::span<const std::byte> note) { answer(source, note); });
  handle(NoteKind::Answer, [this](int, std::span<const std::byte> bytes) {
    AnswerNote note;
    if (read_note(bytes, note) && note.number == question_) answer_ = note.waits_for;
  });
}

void HostLinks::post(int destination, std::span<const std::byte> note) {
  const std::lock_guard lock(mutex_);
  network_->post(destination, note);
}

size_t HostLinks::send(int destination, std::span<const std::byte> bytes) {
  const std::lock_guard lock(mutex_);
  return network_->send(destination, bytes);
}

std::span<const std::byte> HostLinks::arrived(int source) {
  const std::lock_guard lock(mutex_);
  return network_->arrived(source);
}

void HostLinks::received(int source, size_t bytes) {
  const std::lock_guard lock(mutex_);
  network_->received(source, bytes);
}

void HostLinks::look() {
  const std::lock_guard lock(mutex_);
  network_->poll([this](int source, std::span<const std::byte> note) {
    if (note.empty()) return;
    const auto kind = static_cast<size_t>(note[0]);
    if (kind < kNoteKinds && handlers_[kind]) handlers_[kind](source, note);
  });
  if (on_alarm_ && SteadyClock::now() >= alarm_) {
    alarm_ = SteadyClock::time_point::max();
    on_alarm_();
  }
}

void HostLinks::look_aside() {
  if (busy_.load()) return;
  look();
  // What was for the rank may have been heard here, just before it went to sleep.
  if (busy_.load()) shm::ring_bell(bell_.name().c_str());
}

void HostLinks::set_alarm(SteadyClock::time_point when, std::function<void()> ring) {
  const std::lock_guard lock(mutex_);
  alarm_ = when;
  on_alarm_ = std::move(ring);
}

void HostLinks::sleep(std::chrono::microseconds at_most) {
  std::array<pollfd, 2> wakers{{{network_->descriptor(), POLLIN, 0}, {bell_.descriptor(), POLLIN, 0}}};
  sleep_on(wakers, at_most);
  if ((wakers[1].revents & POLLIN) != 0) bell_.clear();
}

void HostLinks::sleep_on(std::span<pollfd> wakers, std::chrono::microseconds at_most) {
  {
    const std::lock_guard lock(mutex_);
    if (!network_->arm()) return;
    if (alarm_ != SteadyClock::time_point::max()) {
      const auto left = std::chrono::ceil<std::chrono::microseconds>(alarm_ - SteadyClock::now());
      at_most = std::clamp(left, std::chrono::microseconds{0}, at_most);
    }
  }
  const timespec limit{at_most.count() / 1'000'000, at_most.count() % 1'000'000 * 1000};
  ::ppoll(wakers.data(), wakers.size(), &limit, nullptr);
}

HostLinks::~HostLinks() {
  stopping_.store(true);
  {
    const std::lock_guard lock(idle_mutex_);
  }
  idle_.notify_one();
  if (attendant_.joinable()) attendant_.join();
}

void HostLinks::attend_always() {
  if (attended_) return;
  attended_ = true;
  attendant_ = std::thread([this] { attend(); });
}

void HostLinks::attend() {
  constexpr milliseconds kNap{20};
  while (!stopping_.load()) {
    {
      std::unique_lock lock(idle_mutex_);
      // Not for ever: Busy says that it is over without a lock.
      idle_.wait_for(lock, kNap, [this] { return stopping_.load() || !busy_.load(); });
    }
    if (stopping_.load() || busy_.load()) continue;
    // Not on the bell: what it says is for the rank itself.
    std::array<pollfd, 1> waker{{{network_->descriptor(), POLLIN, 0}}};
    sleep_on(waker, kNap);
    look_aside();
  }
}

std::string HostLinks::in_words(int rank) const {
  return "rank " + std::to_string(rank) + " on host '" + placement_.host(rank).name + "'";
}

void HostLinks::check(const shm::Operation& operation, int rank) {
  const std::lock_guard lock(mutex_);
  const auto waited =
      operation.started ? SteadyClock::now() - *operation.started : std::chrono::nanoseconds{};
  if (waited >= kWatchAfter) network_->watch(rank);
  const std::string* how = network_->lost(rank);
  if (how == nullptr && !network_->left(rank)) return;
  group_.fail(shm::FailureKind::PeerLost,
              group_.describe(operation) + ": " + in_words(rank) +
                  (how != nullptr ? " is lost: " + *how : std::string(" has left the group")) +
                  ", noticed after waiting " + shm::format_seconds(waited) +
                  ". The group is no longer usable; look at that rank's own output for the cause.");
}

void HostLinks::look_after(const shm::Operation& operation, int rank) {
  const std::lock_guard lock(mutex_);
  network_->watch(rank);
  // One that has left may have done its part.
  if (network_->lost(rank) != nullptr) check(operation, rank);
}

// Failures

void HostLinks::heed_failure(std::span<const std::byte> bytes) {
  FailureNote note;
  if (!read_note(bytes, note) || note.reporter < 0 || note.reporter >= placement_.ranks()) return;
  const auto text = bytes.subspan(sizeof note);
  group_.fail(static_cast<shm::FailureKind>(std::min<uint8_t>(note.failure, 2)),
              std::string(reinterpret_cast<const char*>(text.data()), text.size()), note.reporter);
}

void HostLinks::spread() {
  const shm::GroupControl& failure = group_.failure();
  if (failure.failure.load(std::memory_order_acquire) != shm::FailureState::Set) return;
  // Whoever saw it tells all, and who was told passes it on: two hosts may no longer hear each other.
  if (spread_.exchange(true)) return;
  FailureNote head;
  head.failure = static_cast<uint8_t>(failure.failure_kind);
  head.reporter = failure.failure_reporter;
  std::vector<std::byte> note(bytes_of(head).begin(), bytes_of(head).end());
  const auto text = std::as_bytes(std::span(failure.failure_text, std::strlen(failure.failure_text)));
  note.insert(note.end(), text.begin(), text.end());
  {
    const std::lock_guard lock(mutex_);
    for (int rank = 0; rank < placement_.ranks(); ++rank) {
      if (placement_.together(rank, rank_)) continue;
      if (placement_.ranks() <= kTellAll || placement_.local(rank) == 0) network_->post(rank, note);
    }
  }
  flush(kFlushWithin);
}

void HostLinks::flush(milliseconds at_most) {
  const auto end = SteadyClock::now() + at_most;
  while (SteadyClock::now() < end) {
    look();
    {
      const std::lock_guard lock(mutex_);
      if (network_->flushed()) return;
    }
    sleep(milliseconds(5));
  }
}

void HostLinks::settle() {
  {
    const std::lock_guard lock(mutex_);
    if (network_->flushed()) return;
  }
  flush(kSettleWithin);
}

void HostLinks::leave() {
  {
    const std::lock_guard lock(mutex_);
    network_->leave();
  }
  flush(kFlushWithin);
}

// Who is to blame

void HostLinks::answer(int source, std::span<const std::byte> bytes) {
  QuestionNote question;
  if (!read_note(bytes, question)) return;
  AnswerNote note;
  note.number = question.number;
  note.waits_for = group_.awaited();
  network_->post(source, bytes_of(note));
}

std::optional<int> HostLinks::ask(int rank) {
  QuestionNote note;
  {
    const std::lock_guard lock(mutex_);
    note.number = ++question_;
    answer_.reset();
    network_->post(rank, bytes_of(note));
  }
  const auto end = SteadyClock::now() + kAnswerWithin;
  while (!answer_ && SteadyClock::now() < end) {
    sleep(milliseconds(5));
    look();
    const std::lock_guard lock(mutex_);
    if (network_->lost(rank) != nullptr) break;
  }
  return answer_;
}

std::string HostLinks::blame(int rank) {
  std::set<int> asked;
  int suspect = rank;
  while (asked.insert(suspect).second) {
    const std::optional<int> waits_for = ask(suspect);
    if (!waits_for) {
      const std::lock_guard lock(mutex_);
      const std::string* how = network_->lost(suspect);
      return in_words(suspect) + (how != nullptr ? ", which is lost: " + *how
                                                 : ", which does not answer (stopped, cut off, or busy with "
                                                   "something else than this collective)");
    }
    if (*waits_for < 0 || *waits_for == rank_) break;
    suspect = *waits_for;
  }
  return in_words(suspect) + ", which is there but made no progress";
}

}  // namespace pycoll
