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
    std::function<void()> begin;         // called once on the watchdog's thread
    std::function<void()> stop_kernels;  // ends the waits of kernels; from any thread
  };

  CudaWatchdog(std::shared_ptr<Communicator> communicator, Hooks hooks);
  ~CudaWatchdog();

  // A work whose end has been put on the group's stream, after those watched before.
  void watch(c10::intrusive_ptr<CudaWork> work);

  // Throws why the group cannot be used, if so: it failed, or a rank of it is gone.
  void require_usable();
  // Ends all works, on every rank.
  void fail(const std::string& reason);

  // Whether works have ended by then; throws why the group failed.
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
    uint64_t called, ended;  // works so far
    char last_call[40];
  };

  struct Peer {
    std::shared_ptr<pycoll::Work> receive;
    std::shared_ptr<Note> note;
    uint64_t called = 0, ended = 0;
    std::string last;
    bool answered = false, left = false, lost = false;
    Clock::time_point lost_at{};
    uint64_t waits_for = 0;  // it leaves once this rank has ended so many
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
  bool let_go_of_ended();
  void judge();
  std::string verdict(const CudaWork& late) const;  // with the lock
  void set_failure(const std::string& reason);
  template <class Condition>
  bool wait_until(std::optional<Nanoseconds> limit, const Condition& condition);

  const std::shared_ptr<Communicator> communicator_;
  const Hooks hooks_;
  const std::shared_ptr<Mailbox> mailbox_ = std::make_shared<Mailbox>();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<c10::intrusive_ptr<CudaWork>> works_;  // as they follow each other on the stream
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
