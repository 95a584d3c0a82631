#include "engine/work_queue.h"

#include <utility>
#include <vector>

namespace pycoll {

class WorkQueue::QueuedWork final : public Work {
 public:
  QueuedWork(std::shared_ptr<WorkQueue> queue, Task task)
      : queue_(std::move(queue)), task_(std::move(task)) {}

  bool done() const override { return done_.load(std::memory_order_acquire); }
  void wait(std::optional<Nanoseconds> timeout) override {
    if (!done()) queue_->wait(*this, timeout);
    if (error_) std::rethrow_exception(error_);
  }
  std::exception_ptr exception() const override { return done() ? error_ : nullptr; }

  void on_done(std::function<void()> callback) override {
    {
      const std::lock_guard lock(mutex_);
      if (!done()) {
        callbacks_.push_back(std::move(callback));
        return;
      }
    }
    callback();
  }

  std::exception_ptr execute(const Deadline& deadline) {
    std::exception_ptr error;
    try {
      task_(deadline);
    } catch (...) {
      error = std::current_exception();
    }
    return error;
  }

  using Callbacks = std::vector<std::function<void()>>;

  // With the turn still held, so that works are done in their order.
  Callbacks complete(std::exception_ptr error) {
    task_ = nullptr;  // lets go of the buffers
    const std::lock_guard lock(mutex_);
    error_ = std::move(error);
    done_.store(true, std::memory_order_release);
    return std::exchange(callbacks_, {});
  }

  // With the turn given back: a callback may submit and wait for further collectives.
  void announce(const Callbacks& callbacks) {
    {
      const std::lock_guard lock(queue_->mutex_);  // a waiter is either before its look at done(), or asleep
    }
    queue_->changed_.notify_all();
    for (const auto& callback : callbacks) callback();
  }

 private:
  std::shared_ptr<WorkQueue> queue_;
  Task task_;
  std::mutex mutex_;
  std::atomic<bool> done_{false};
  std::exception_ptr error_;
  std::vector<std::function<void()>> callbacks_;
};

void WorkQueue::give_turn() {
  executing_.store(false);
  if (pending_.load() == 0) return;
  {
    const std::lock_guard lock(mutex_);
  }
  changed_.notify_all();
}

void WorkQueue::run(FunctionRef<void(const Deadline&)> task) {
  if (pending_.load() != 0 || !take_turn()) {
    // Queue behind the others. The reference stays valid: wait() returns only when the task is over.
    submit([task](const Deadline& deadline) { task(deadline); })->wait();
    return;
  }
  struct Turn {
    WorkQueue& queue;
    ~Turn() { queue.give_turn(); }
  } turn{*this};
  task({});
}

std::shared_ptr<Work> WorkQueue::submit(Task task) {
  auto work = std::make_shared<QueuedWork>(shared_from_this(), std::move(task));
  std::exception_ptr stopped;
  {
    const std::lock_guard lock(mutex_);
    stopped = stopped_;
    if (!stopped) {
      queue_.push_back(work);
      pending_.fetch_add(1);
    }
  }
  if (stopped)
    work->announce(work->complete(stopped));
  else
    changed_.notify_all();
  return work;
}

// With the turn taken: executes the first in the queue and gives the turn back.
bool WorkQueue::execute_next(const Deadline& deadline) {
  std::shared_ptr<QueuedWork> work;
  {
    const std::lock_guard lock(mutex_);
    if (!queue_.empty()) {
      work = std::move(queue_.front());
      queue_.pop_front();
      pending_.fetch_sub(1);
    }
  }
  if (!work) {
    give_turn();
    return false;
  }
  const auto callbacks = work->complete(work->execute(deadline));
  give_turn();
  work->announce(callbacks);
  return true;
}

void WorkQueue::wait(QueuedWork& work, std::optional<Nanoseconds> timeout) {
  Deadline deadline;
  if (timeout) deadline = SteadyClock::now() + *timeout;
  bool timed_out = false;
  while (!work.done()) {
    if (take_turn()) {
      if (execute_next(deadline)) continue;
    }
    std::unique_lock lock(mutex_);
    const auto something = [&] { return work.done() || (!queue_.empty() && !executing_.load()); };
    if (!deadline || timed_out) {
      changed_.wait(lock, something);
    } else if (!changed_.wait_until(lock, *deadline, something)) {
      timed_out = true;
      lock.unlock();
      on_timeout_();  // the executing thread now fails, and with it this work
    }
  }
}

void WorkQueue::serve() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stopping_ || (!queue_.empty() && !executing_.load()); });
      if (stopping_) return;
    }
    if (take_turn()) execute_next({});
  }
}

void WorkQueue::stop(std::exception_ptr error) {
  std::deque<std::shared_ptr<QueuedWork>> abandoned;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = error;
    stopping_ = true;
    abandoned.swap(queue_);
    pending_.fetch_sub(abandoned.size());
  }
  changed_.notify_all();
  for (const auto& work : abandoned) work->announce(work->complete(error));
}

}  // namespace pycoll
