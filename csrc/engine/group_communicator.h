// The engine of a group: shared memory inside each host, networks between hosts.
#pragma once
#include <future>
#include <thread>

#include "engine/arrival_log.h"
#include "engine/arrivals.h"
#include "engine/bootstrap.h"
#include "engine/communicator.h"
#include "engine/direct.h"
#include "engine/early_gain.h"
#include "engine/executor.h"
#include "engine/heap.h"
#include "engine/hosts/hosts.h"
#include "engine/placement.h"
#include "engine/plans.h"
#include "engine/point_to_point.h"
#include "engine/selection.h"
#include "engine/work_queue.h"
#include "transport/shm/channels.h"

namespace pycoll {

class GroupCommunicator final : public Communicator, public std::enable_shared_from_this<GroupCommunicator> {
 public:
  GroupCommunicator(int rank, int ranks, Bootstrapped bootstrapped, CommunicatorOptions options);
  ~GroupCommunicator() override;
  void start();  // starts the group's own thread; returns once the rank is in the group

  int rank() const override { return rank_; }
  int ranks() const override { return placement_.ranks(); }
  const CommunicatorOptions& options() const override { return options_; }
  void run(const CollectiveCall& call) override;
  std::shared_ptr<Work> submit(const CollectiveCall& call) override;
  std::shared_ptr<Work> submit_all(std::vector<CollectiveCall> calls) override;
  std::shared_ptr<Work> submit_then(const CollectiveCall& call, Then then) override;
  std::shared_ptr<Work> send(const void* data, size_t bytes, int destination, uint64_t tag,
                             std::optional<Nanoseconds> timeout) override;
  std::shared_ptr<Work> recv(void* data, size_t bytes, int source, uint64_t tag,
                             std::optional<Nanoseconds> timeout, int* source_out) override;
  void* allocate(size_t bytes) override;
  void deallocate(void* buffer) override { heap_.deallocate(buffer); }
  void set_timeout(Nanoseconds timeout) override { timeout_.store(timeout.count()); }
  uint64_t sequence() const override { return sequence_.load(std::memory_order_relaxed); }
  MemoryReport memory() const override;
  std::vector<ArrivalRecord> arrivals() const override;
  EarlyReport early_report() const override { return gain_.report(); }
  std::string chosen_algorithm(const CollectiveCall& call) const override;
  void install(DecisionTable table) override;
  std::vector<DecisionState> decisions() const override { return selection_.states(); }
  // The table that the group begins with; before any call.
  void begin_with(DecisionTable table);
  const Placement& placement() const { return placement_; }
  void abort(const std::string& reason) override;
  void close() override;

 private:
  // Throws InvalidArgument or Unsupported; gives the plan, null for the direct path.
  std::shared_ptr<const Plan> prepare(const CollectiveCall& call);
  void throw_if_closed() const;
  void execute(const CollectiveCall& call, const Plan* plan, const Deadline& deadline);
  // `row`: that by which the call goes, if it does; `timed`: whether to look at the clock on the way.
  Arrivals::Met perform(const CollectiveCall& call, const Plan* plan, const Deadline& deadline,
                        const Selection::Row* row = nullptr, bool timed = false);
  Arrivals::Met match(const CollectiveCall& call, shm::Operation& operation, bool timed);
  bool goes_late(const CollectiveCall& call, const Plan* plan) const;
  shm::CallHeader& next_header();
  shm::Operation operation(std::string_view name, size_t bytes, const CollectiveCall& call,
                           const Deadline& deadline) const;
  bool all_buffers_are_shared(const CollectiveCall& call, uint64_t sequence) const;
  void look_at_time(Selection::Row& row, const CollectiveCall& call, const Arrivals::Met& met,
                    const Deadline& deadline);
  void tell_news();
  void tell_of_slow_rank(uint64_t sequence);
  void check_fits(const DecisionTable& table) const;
  void follow(const DecisionTable& table);

  CommunicatorOptions options_;
  int rank_;
  Placement placement_;
  shm::Group group_;  // of this host's ranks
  Arrivals arrivals_;
  ArrivalLog log_;
  EarlyGain gain_;
  Direct direct_;
  shm::Channels channels_;
  Executor executor_;  // of groups on one host
  Plans plans_;
  std::unique_ptr<Hosts> hosts_;  // null: all ranks are on one host
  Selection selection_;
  uint32_t timed_calls_ = 0;
  int told_slow_ = -1;
  double seconds_per_tick_ = 0;
  Heap heap_;
  std::shared_ptr<WorkQueue> queue_;
  std::unique_ptr<PointToPoint> point_to_point_;
  std::atomic<int64_t> timeout_;
  std::atomic<uint64_t> sequence_{0};
  std::atomic<bool> closed_{false};
  std::promise<void> served_;
  int fork_generation_;
};

}  // namespace pycoll
