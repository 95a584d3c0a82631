// One rank's view of its group in shared memory: wake-ups, waiting, who is alive, how the group failed.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "core/clock.h"
#include "core/function_ref.h"
#include "transport/shm/segment.h"

namespace pycoll::shm {

// What is being waited for, so that an error can say who, what and since when. One a running operation.
struct Operation {
  std::string_view name;  // "allreduce"
  uint64_t sequence = 0;
  uint64_t bytes = 0;
  bool in_background =
      false;  // no caller waits for it: sleep soon, the processor is better used by who computes
  const std::function<void()>* interrupted = nullptr;  // may throw, see CommunicatorOptions
  std::chrono::nanoseconds timeout{};
  std::optional<SteadyClock::time_point> started;  // set by the first wait that is not over at once
  std::optional<SteadyClock::time_point>
      deadline;  // an earlier one than started + timeout, of a caller of wait()
};

// What a rank must attend to beyond its host while it waits: the connections to ranks of other hosts. Ranks
// are numbered as in the whole group here.
class Outside {
 public:
  virtual ~Outside() = default;
  // Moves what can move, and fails the group when another host's rank says that it has failed.
  virtual void look() = 0;
  // The same for threads that are in no collective, at any time; leaves it to those who are in one.
  virtual void look_aside() = 0;
  // Until look() has something to do, ring() wakes it, or the time is over.
  virtual void sleep(std::chrono::microseconds at_most) = 0;
  // Fails the group when the rank is lost.
  virtual void check(const Operation& operation, int rank) = 0;
  // Names who holds up a wait for that rank, following the chain of waits from host to host, and why.
  virtual std::string blame(int rank) = 0;
  // The group has failed: tells the other hosts, once.
  virtual void spread() = 0;
};

// How long a rank waits in which way before it sleeps. Spinning wins while every rank has a core of its own;
// with more ranks than cores it keeps the awaited rank from running, and yielding wins; sleeping is kind to
// everyone else.
struct Patience {
  int spins;
  int yields;
  static Patience for_ranks(int ranks, int processors);
};

inline void pause_processor() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

std::string format_seconds(std::chrono::nanoseconds duration);  // "2.5 s"

class Group {
 public:
  // Ranks are those of one host, 0..ranks-1. `numbers`: which ranks of the whole group they are; empty: the
  // same.
  Group(std::shared_ptr<Segment> segment, int rank, int ranks, std::string name, Patience patience,
        std::vector<int> numbers = {});
  void attend(Outside* outside) { outside_ = outside; }  // from now on, while waiting

  void look_aside() const {
    if (outside_ != nullptr) outside_->look_aside();
  }

  int number(int rank) const { return numbers_[static_cast<size_t>(rank)]; }

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  const std::string& name() const { return name_; }
  const Patience& patience() const { return patience_; }
  bool more_ranks_than_processors() const { return patience_.spins == 0; }
  Segment& segment() const { return *segment_; }
  RankControl& control(int rank) const { return *controls_[static_cast<size_t>(rank)]; }
  RankControl& mine() const { return control(rank_); }
  std::byte* small_slot(int rank, uint64_t sequence) const {
    return segment_->area(rank) + segment_->layout().small_at + (sequence & 1) * kSmallSlot;
  }
  std::byte* gathered(int rank) const { return segment_->area(rank) + segment_->layout().gathered_at; }
  std::byte* staging(int rank) const { return segment_->area(rank) + segment_->layout().staging_at; }

  // Makes what was stored before visible and wakes those who may sleep waiting for it.
  void publish(std::atomic<uint64_t>& counter, uint64_t value) {
    counter.store(value, std::memory_order_release);
    wake_sleepers();
  }
  void wake_sleepers() {
    // Orders the store above before the load below; pairs with the fence a sleeper takes before its last
    // look.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (segment_->group().sleepers.load(std::memory_order_relaxed) != 0) ring_those_who_wait_for_me();
  }
  // All arrivals have been seen: wakes those who sleep until then. Called by every rank, but of ranks that
  // arrive one after the other only the last finds anybody asleep: waking them at each arrival would cost
  // every rank a wake-up an arrival. The fence stands here and not at this rank's own announcement, where it
  // would hold up the look at the others' until the announcement has reached them.
  void all_have_arrived() {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (segment_->group().sleepers.load(std::memory_order_relaxed) != 0) ring_those_who_wait_for_everyone();
  }

  // Returns once ready() is true. `peer`: the rank waited for, -1: any of them. Throws PeerLost when that
  // rank is gone and ready() stays false, Timeout at the operation's deadline, or what ended the group.
  // `wakes`: whose publications can make ready() true (kAnyone, kEveryone's arrival); by default the peer's.
  template <class Ready>
  void wait(Operation& operation, int peer, Ready&& ready, int32_t wakes = kNobody) {
    for (int i = operation.in_background ? patience_.spins - patience_.spins / 10 : 0; i < patience_.spins;
         ++i) {
      if (ready()) return;
      if (outside_ != nullptr)
        outside_->look();
      else
        pause_processor();
    }
    wait_slowly(operation, peer, ready, wakes != kNobody ? wakes : peer < 0 ? kAnyone : peer + 1);
  }
  // The same, for a rank of another host.
  template <class Ready>
  void wait_elsewhere(Operation& operation, int number, Ready&& ready) {
    wait(operation, rank_, ready, kElsewhere - number);
  }

  // The rank's life in the group; both on the same thread, which must live as long as the group does.
  void enter();
  void leave();
  bool gone(int rank);  // left or dead

  // The first failure of a group stays its failure, on every rank. `reporter`: the number of the rank that
  // saw it; -1: this one.
  void fail(FailureKind kind, const std::string& text, int reporter = -1);
  int awaited() const;  // the number of the rank that this one waits for now; -1: none, or nobody knows whom
  const GroupControl& failure() const { return segment_->group(); }
  bool failed() const {
    return segment_->group().failure.load(std::memory_order_acquire) == FailureState::Set;
  }
  void throw_if_failed() const;
  [[noreturn]] void throw_failure() const;

  // "group 'default', rank 0: allreduce #12 of 4096 bytes"
  std::string describe(const Operation& operation) const;

 private:
  void wait_slowly(Operation& operation, int peer, FunctionRef<bool()> ready, int32_t wakes);
  bool yield(FunctionRef<bool()> ready);
  bool sleep(FunctionRef<bool()> ready, std::chrono::microseconds at_most);
  template <class Whom>
  void ring_doorbells(Whom&& whom);
  void ring_those_who_wait_for_me();
  void ring_those_who_wait_for_everyone();
  [[noreturn]] void fail_lost(const Operation& operation, int peer);
  [[noreturn]] void fail_timeout(const Operation& operation, int peer, std::chrono::nanoseconds waited);
  void look_for_interruption(const Operation& operation);
  int culprit(int peer) const;
  std::string blame(int peer) const;

  std::shared_ptr<Segment> segment_;
  int rank_;
  int ranks_;
  std::string name_;
  Patience patience_;
  std::vector<int> numbers_;
  Outside* outside_ = nullptr;
  int crowded_ = 0;  // waits for which yielding is not worth trying
  std::vector<RankControl*> controls_;
};

}  // namespace pycoll::shm
