// A send or a receive under way, and the set of them.
#pragma once
#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "core/clock.h"
#include "engine/communicator.h"

namespace pycoll {

class MessageWork;

// Who moves messages while a caller waits for one.
class MessageMover {
 public:
  virtual ~MessageMover() = default;
  virtual void try_progress() = 0;  // returns at once
  virtual void wait(MessageWork& work,
                    std::optional<Nanoseconds> timeout) = 0;  // returns when the work is done
};

struct MessageRequest {
  bool sends = false;
  std::byte* data = nullptr;  // a send only reads it
  size_t bytes = 0;
  int peer = -1;  // -1: a receive from any rank
  uint64_t tag = 0;
  int* source_out = nullptr;
  Nanoseconds timeout{};
};

class MessageWork final : public Work {
 public:
  MessageWork(std::shared_ptr<MessageMover> mover, const MessageRequest& request)
      : request(request), posted(SteadyClock::now()), mover_(std::move(mover)) {}

  bool done() const override {
    if (!ended()) mover_->try_progress();
    return ended();
  }
  void wait(std::optional<Nanoseconds> timeout) override {
    if (!ended()) mover_->wait(*this, timeout);
    if (error_) std::rethrow_exception(error_);
  }
  std::exception_ptr exception() const override { return ended() ? error_ : nullptr; }
  void on_done(std::function<void()> callback) override;

  bool ended() const { return ended_.load(std::memory_order_acquire); }
  SteadyClock::time_point deadline() const {
    const auto longest = SteadyClock::time_point::max() - posted;
    return request.timeout < longest ? posted + request.timeout : SteadyClock::time_point::max();
  }

  const MessageRequest request;
  const SteadyClock::time_point posted;

 private:
  friend class MessageWorks;
  std::shared_ptr<MessageMover> mover_;
  std::mutex mutex_;
  std::atomic<bool> ended_{false};
  std::exception_ptr error_;
  std::vector<std::function<void()>> callbacks_;
  std::list<std::shared_ptr<MessageWork>>::iterator place_;
};

using MessageWorkPtr = std::shared_ptr<MessageWork>;

// Works under way: they live here, whether or not their caller kept the handle. Called under the mover's
// lock, but for Endings, which runs the callbacks of works that ended once that lock is released.
class MessageWorks {
 public:
  class Endings {
   public:
    bool any() const { return !ended_.empty(); }
    void run() const {
      for (const auto& callback : callbacks_) callback();
    }

   private:
    friend class MessageWorks;
    std::vector<std::function<void()>> callbacks_;
    std::vector<MessageWorkPtr> ended_;  // destroyed with this: outside of the lock
  };

  void add(const MessageWorkPtr& work);
  void end(MessageWork& work, std::exception_ptr error);
  Endings take_endings() { return std::exchange(endings_, {}); }

  size_t count() const { return count_.load(); }
  // A copy: what is done with them may end them.
  std::vector<MessageWorkPtr> all() const { return {under_way_.begin(), under_way_.end()}; }

 private:
  std::list<MessageWorkPtr> under_way_;
  std::atomic<size_t> count_{0};
  Endings endings_;
};

}  // namespace pycoll
