// Looks after the works of a group of GPUs: lets go of what they hold when they have ended, and ends them
// all when one is late beyond its timeout or a rank that they need is gone. A kernel that waits for a peer
// knows nothing of either.
#pragma once
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/communicator.h"
#include "torch/cuda_work.h"

namespace pycoll::torch_adapter {

class CudaWatchdog {
 public:
  struct Hooks {
    std::function<void()> begin;             // called once on the watchdog's thread
    std::function<void()> stop_kernels;      // ends the waits of kernels; from any thread
    std::function<std::string()> complaint;  // what was wrong with a message; empty: nothing
  };

  CudaWatchdog(std::shared_ptr<Communicator> communicator, Hooks hooks);
  ~CudaWatchdog();

  // A work whose end has been put on a stream; a collective's on the group's, after those watched before.
  void watch(c10::intrusive_ptr<CudaWork> work);

  // Throws why the group cannot be used, if so: it failed, or a rank of it is gone; of one rank's if given.
  void require_usable(std::optional<int> peer = std::nullopt);
  // Ends all works, on every rank.
  void fail(const std::string& reason);

  // Whether works have ended by then; throws why the group failed.
  bool wait_for_collectives(std::optional<Nanoseconds> limit);
  bool wait_for_all(std::optional<Nanoseconds> limit);
  bool wait_for(const CudaWork& work, std::optional<Nanoseconds> limit);

  // Waits for this rank's works and for the other ranks', which may still read this rank's memory; then the
  // thread ends. Idempotent.
  void leave(Nanoseconds limit);

 private:
  using Clock = std::chrono::steady_clock;

  // What ranks tell each other, as a message.
  enum class Kind : uint32_t { Question, Answer, Goodbye };
  struct Note {
    Kind kind;
    uint32_t reserved;
    uint64_t called, ended;   // collectives so far
    uint64_t sent, received;  // works with messages for the one who is told so far, and such that have ended
    char last_call[40];
  };

  struct Peer {
    std::shared_ptr<pycoll::Work> receive;
    std::shared_ptr<Note> note;
    uint64_t called = 0, ended = 0;
    std::string last;
    bool answered = false, left = false, lost = false;
    Clock::time_point lost_at{};
    // It leaves once this rank has ended so many.
    uint64_t waits_for = 0, waits_for_messages = 0;
    // Works with messages that this rank has called and ended, and that the peer has ended.
    uint64_t messages_called = 0, messages_ended = 0, messages_ended_there = 0;
  };

  // Set by callbacks of the engine, which may come after the watchdog is gone.
  struct Mailbox {
    std::mutex mutex;
    std::vector<int> arrived;
  };

  void run();
  void watch_over();
  void listen(int peer);
  void read_mail();
  void take(int peer, const Note& note);
  void lose(int peer, std::exception_ptr error);
  void send(int peer, Kind kind);
  void look_for_complaints();
  bool let_go_of_ended();
  bool let_go_of_messages();
  bool has_ended(const CudaWork& work);
  void answer_leaving();
  void judge();
  // With the lock.
  std::string verdict(const CudaWork& late) const;
  std::string why_messages_cannot_end() const;
  std::string why_gone(int peer) const;
  void set_failure(const std::string& reason);
  template <class Condition>
  bool wait_until(std::optional<Nanoseconds> limit, const Condition& condition);

  const std::shared_ptr<Communicator> communicator_;
  const Hooks hooks_;
  const std::shared_ptr<Mailbox> mailbox_ = std::make_shared<Mailbox>();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<c10::intrusive_ptr<CudaWork>> works_;  // as they follow each other on the stream
  std::vector<c10::intrusive_ptr<CudaWork>> messages_;
  std::vector<Peer> peers_;
  std::exception_ptr failure_;
  std::string last_call_;
  uint64_t called_ = 0, ended_ = 0;
  std::optional<Clock::time_point> asked_;  // the other ranks, about a late work
  int waiting_ = 0;                         // threads, for works
  bool leaving_ = false, stop_ = false;
  std::thread thread_;
};

}  // namespace pycoll::torch_adapter
