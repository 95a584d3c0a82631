// Moves one rank's messages: whoever holds the lock does, for all its sends and receives.
#pragma once
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>

#include "core/function_ref.h"
#include "engine/inbox.h"
#include "engine/message_work.h"
#include "engine/outbox.h"

namespace pycoll {

class Courier final : public MessageMover, public std::enable_shared_from_this<Courier> {
 public:
  // A copy of the group: handles of works, and the keeper thread, may outlive the communicator.
  explicit Courier(const shm::Group& group);

  // `shared`: where a send's data lies in this rank's heap.
  std::shared_ptr<Work> post(const MessageRequest& request, const shm::HeapRange& shared = {});
  void try_progress() override;
  void wait(MessageWork& work, std::optional<Nanoseconds> timeout) override;
  void stop(std::exception_ptr error);
  size_t shared_bytes() const { return outbox_.arena_bytes(); }

 private:
  enum class Moved { Nothing, Something };

  // All below "with the lock" are called inside of this, which then runs the callbacks of what ended.
  void locked(FunctionRef<void()> action);
  void run_endings(const MessageWorks::Endings& endings);

  // With the lock.
  bool progress();
  void check();  // deadlines, deaths, the group's failure: what ends works but messages
  void check_peer(int peer);
  void end_late(MessageWork& work, const std::string& what);
  void end_all(std::exception_ptr error);
  void require_keeper();

  bool sleep(shm::Doorbell& bell, std::chrono::microseconds at_most, FunctionRef<bool()> awake);
  void watch(const MessageWork& work);
  void expect_news();
  void keep();
  std::string describe(const MessageWork& work) const;

  shm::Group group_;
  std::mutex mutex_;
  MessageWorks works_;
  shm::MessageRings rings_;
  Outbox outbox_;
  Inbox inbox_;
  std::exception_ptr stopped_;
  SteadyClock::time_point checked_{};
  std::atomic<int> waiting_{0};  // threads in wait()
  bool keeping_ = false;         // the keeper thread runs
  std::condition_variable kept_;
};

}  // namespace pycoll
