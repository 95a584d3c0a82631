// Collectives of a group run one after the other, in the order of submission, on whichever thread needs the
// result first: a synchronous call and a wait() run them on the caller's thread, without a hand-over; what
// nobody waits for yet runs on the group's own thread.
#pragma once
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "core/clock.h"
#include "core/function_ref.h"
#include "engine/communicator.h"

namespace pycoll {

using Deadline = std::optional<SteadyClock::time_point>;

class WorkQueue : public std::enable_shared_from_this<WorkQueue> {
 public:
  using Task = std::function<void(const Deadline&)>;
  // Called when a wait() runs out of time while another thread executes: must end the group, and so that
  // execution.
  explicit WorkQueue(std::function<void()> on_timeout) : on_timeout_(std::move(on_timeout)) {}

  // Runs `task` now on this thread, after everything queued. Costs two atomic operations when nothing is.
  void run(FunctionRef<void(const Deadline&)> task);
  std::shared_ptr<Work> submit(Task task);
  // The group's own thread: returns after stop().
  void serve();
  // Ends everything queued with `error`. What is executing goes on.
  void stop(std::exception_ptr error);

 private:
  class QueuedWork;
  friend class QueuedWork;
  bool take_turn() { return !executing_.exchange(true); }
  void give_turn();
  bool execute_next(const Deadline& deadline);
  void wait(QueuedWork& work, std::optional<Nanoseconds> timeout);

  std::function<void()> on_timeout_;
  std::atomic<bool> executing_{false};
  std::atomic<size_t> pending_{0};  // queued or waiting for the turn
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<QueuedWork>> queue_;
  std::exception_ptr stopped_;
  bool stopping_ = false;
};

}  // namespace pycoll
