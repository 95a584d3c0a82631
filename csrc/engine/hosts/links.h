// One rank's connections to the ranks of other hosts: what comes over them, attended to whenever the rank
// waits.
#pragma once
#include <poll.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "engine/placement.h"
#include "transport/network.h"
#include "transport/shm/bell.h"
#include "transport/shm/group.h"

namespace pycoll {

// The first byte of every message of a group's network.
enum class NoteKind : uint8_t { Exchange, Failure, Question, Answer, Roll };
inline constexpr size_t kNoteKinds = 5;

class HostLinks final : public shm::Outside {
 public:
  using Handler = std::function<void(int source, std::span<const std::byte> note)>;

  HostLinks(shm::Group& group, const Placement& placement, int rank, std::unique_ptr<Network> network);
  ~HostLinks() override;

  const Placement& placement() const { return placement_; }
  int rank() const { return rank_; }
  const Network& network() const { return *network_; }
  size_t memory_bytes() const { return network_->memory_bytes(); }
  // Held while handlers run; what they share with other threads goes under it too.
  std::recursive_mutex& mutex() { return mutex_; }

  // What to do with notes of that kind; called while links are attended to, and may post.
  void handle(NoteKind kind, Handler handler) { handlers_[static_cast<size_t>(kind)] = std::move(handler); }
  void post(int destination, std::span<const std::byte> note);
  // Streams, as network.h has them.
  size_t send(int destination, std::span<const std::byte> bytes);
  std::span<const std::byte> arrived(int source);
  void received(int source, size_t bytes);

  void look() override;
  void look_aside() override;
  void sleep(std::chrono::microseconds at_most) override;
  void check(const shm::Operation& operation, int rank) override;
  std::string blame(int rank) override;
  // Like check(), of a rank that has something to do with this one yet, though it is not waited for just now.
  void look_after(const shm::Operation& operation, int rank);
  void spread() override;

  // Calls `ring` in look() once that time has come, and does not sleep beyond it.
  void set_alarm(SteadyClock::time_point when, std::function<void()> ring);

  // A thread that looks while this rank is in no collective, so that others' questions are answered at any
  // time.
  void attend_always();
  // This rank is in a collective: it looks for itself.
  class Busy {
   public:
    explicit Busy(HostLinks& links) : links_(links) { links_.busy_.store(true); }
    ~Busy() {
      links_.busy_.store(false);
      if (links_.attended_) links_.idle_.notify_one();
    }

   private:
    HostLinks& links_;
  };

  // At the end of a collective: nobody may look at the network until the next one, and what others wait for
  // must not lie here until then.
  void settle();
  void leave();  // tells those who are connected, and gives that a moment to go

 private:
  std::string in_words(int rank) const;  // "rank 3 on host 'h1'"
  void heed_failure(std::span<const std::byte> note);
  void answer(int source, std::span<const std::byte> note);
  std::optional<int> ask(int rank);
  void flush(std::chrono::milliseconds at_most);
  void sleep_on(std::span<pollfd> wakers, std::chrono::microseconds at_most);
  void attend();

  shm::Group& group_;
  const Placement& placement_;
  int rank_;
  shm::Bell bell_;
  std::recursive_mutex mutex_;  // of the network; handlers post
  std::unique_ptr<Network> network_;
  std::array<Handler, kNoteKinds> handlers_;
  std::atomic<bool> spread_{false};
  SteadyClock::time_point alarm_ = SteadyClock::time_point::max();
  std::function<void()> on_alarm_;
  std::atomic<bool> busy_{false};
  std::atomic<bool> stopping_{false};
  bool attended_ = false;
  std::mutex idle_mutex_;
  std::condition_variable idle_;
  std::thread attendant_;
  uint32_t question_ = 0;
  std::optional<int> answer_;
};

}  // namespace pycoll
