// Moves one rank's messages: whoever holds the lock does, for all its sends and receives.
#pragma once
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/function_ref.h"
#include "engine/hosts/remote_messages.h"
#include "engine/inbox.h"
#include "engine/message_work.h"
#include "engine/outbox.h"

namespace pycoll {

class Courier final : public MessageMover, public std::enable_shared_from_this<Courier> {
 public:
  // A copy of the group: handles of works, and the keeper thread, may outlive the communicator.
  // `placement` and `network`: of a group that spans hosts.
  explicit Courier(const shm::Group& group, std::optional<Placement> placement = std::nullopt,
                   std::unique_ptr<Network> network = nullptr);

  // The request's peer by its number in the group. `shared`: where a send's data lies in this rank's heap.
  std::shared_ptr<Work> post(MessageRequest request, const shm::HeapRange& shared = {});
  void try_progress() override;
  void wait(MessageWork& work, std::optional<Nanoseconds> timeout) override;
  void stop(std::exception_ptr error);
  size_t shared_bytes() const { return outbox_.arena_bytes(); }
  size_t private_bytes();

 private:
  // All below "with the lock" are called inside of this, which then runs the callbacks of what ended.
  void locked(FunctionRef<void()> action);
  void run_endings(const MessageWorks::Endings& endings);

  // With the lock.
  bool progress();
  void check();  // deadlines, deaths, the group's failure: what ends works but messages
  int source_of(const MessageWork& work) const;  // as Inbox::source_of, wherever it comes from
  bool gone(int peer);
  std::vector<int> needed_peers();  // by operations under way
  void check_peer(int peer);
  std::string fate(int peer) const;
  void end_late(MessageWork& work, const std::string& what);
  void end_all(std::exception_ptr error);
  bool pending() const;
  void require_keeper();

  bool sleep(shm::Doorbell& bell, std::chrono::microseconds at_most, FunctionRef<bool()> awake);
  void leave();
  void watch(const MessageWork& work);
  void expect_news();
  void keep();
  void wake_keeper();
  std::string describe(const MessageWork& work) const;

  shm::Group group_;
  MessagePeers peers_;
  std::mutex mutex_;
  MessageWorks works_;
  shm::MessageRings rings_;
  Outbox outbox_;
  Inbox inbox_;
  std::unique_ptr<RemoteMessages> remote_;  // null: all ranks are on one host
  std::atomic<bool> polling_{false};        // a thread sleeps in remote_->sleep()
  std::exception_ptr stopped_;
  SteadyClock::time_point checked_{};
  std::atomic<int> waiting_{0};  // threads in wait()
  bool keeping_ = false;         // the keeper thread runs
  std::condition_variable kept_;
};

}  // namespace pycoll
