// The handle of a call on CUDA tensors: its end is an event on the group's stream. Waiting makes the
// caller's stream wait, not the caller.
#pragma once
#include <c10/core/Event.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "torch/launch.h"

namespace pycoll::torch_adapter {

class CudaGroup;

// Holds the tensors until a stream waits for the end, or the end is there: so their memory is not used again
// before the group's stream is done with it, without the allocator having to know of that stream.
class CudaWork final : public c10d::Work {
 public:
  CudaWork(int rank, const Launch& launch, uint64_t sequence, std::shared_ptr<CudaGroup> group,
           std::chrono::milliseconds timeout);

  // `peer`: whom a message goes to or comes from.
  void take(Launch&& launch, at::TensorList results, std::optional<int> peer = std::nullopt);
  void seal(const c10::Stream& stream);  // after the last call was put on it
  void follow();                         // makes the current stream wait for the end

  bool isCompleted() override;
  bool isSuccess() const override { return !exception(); }
  std::exception_ptr exception() const override;
  std::vector<at::Tensor> result() override { return results_; }
  void synchronize() override { wait(kNoTimeout); }
  void blockCurrentStream() { wait(kNoTimeout); }  // newer versions of torch have it to override
  // The host waits too where a timeout is given. DistBackendError when it passes, which ends the group.
  bool wait(std::chrono::milliseconds timeout) override;
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override { return sequence_; }
  void release_resources() override;

  // For the watchdog.
  const char* name() const { return name_; }
  // Of messages; none: a collective of all ranks, on the group's stream.
  const std::vector<int>& peers() const { return peers_; }
  std::chrono::steady_clock::time_point started() const { return started_; }
  std::chrono::steady_clock::time_point deadline() const { return started_ + timeout_; }
  bool has_ended() const { return end_.query(); }
  void settle();  // it has ended
  bool settled() const { return settled_.load(std::memory_order_acquire); }
  void set_error(std::exception_ptr error);  // nothing once it is settled

 private:
  void let_go();
  void require_sealed() const;

  const char* const name_;
  const uint64_t sequence_;
  const std::shared_ptr<CudaGroup> group_;
  const std::chrono::milliseconds timeout_;
  const std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  c10::Event end_;
  std::optional<c10::Stream> stream_;
  std::vector<int> peers_;
  std::atomic<bool> sealed_{false};
  bool captured_ = false;  // in a graph: it ends at every replay, and never outside of one
  std::vector<at::Tensor> results_;
  std::atomic<bool> settled_{false};
  mutable std::mutex mutex_;  // of what follows
  std::vector<Launch> launches_;
  std::vector<FlightEntry> flights_;
  std::exception_ptr error_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace pycoll::torch_adapter
