// The handle of an asynchronous call: torch's Work over one or more works of the engine.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "engine/communicator.h"
#include "torch/group_works.h"
#include "torch/launch.h"

namespace pycoll::torch_adapter {

// A synchronous call as a profiler sees it, from this object's making to its end. c10d's Work makes such
// records.
class ProfiledCall final : public c10d::Work {
 public:
  ProfiledCall(int rank, const Launch& launch);
  ~ProfiledCall() override;
};

// What a synchronous call returns. From torch 2.15 on, torch's flight recorder takes a call that returns no
// work for one that has not ended; before, there is nothing to return.
c10::intrusive_ptr<c10d::Work> ended_work();

// Life: made, take() and add() any number of times, seal(); settles when the engine has ended all its works.
// Until then it keeps itself, and the tensors it was given, alive: a caller may drop both.
class AsyncWork : public c10d::Work {
 public:
  // `awaited`: leaving the group waits for this work.
  AsyncWork(int rank, const Launch& launch, uint64_t sequence, std::shared_ptr<GroupWorks> group,
            bool awaited);
  ~AsyncWork() override;

  void take(Launch&& launch, at::TensorList results);  // `results`: what the future yields
  void add(std::shared_ptr<pycoll::Work> part);
  int* source_slot() { return &source_; }  // where a receive from any rank notes whom it heard
  void seal();                             // no more parts will come

  bool isCompleted() override { return settled_.load(std::memory_order_acquire); }
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override { return source_; }
  std::vector<at::Tensor> result() override { return results_; }
  void synchronize() override { wait(kNoTimeout); }
  bool wait(std::chrono::milliseconds timeout) override;
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override { return sequence_; }
  // Called with the last strong reference: the destructor waits for the weak one that the group may have.
  void release_resources() override;

 private:
  void one_is_done();
  void settle();
  void complete(const c10::intrusive_ptr<c10::ivalue::Future>& future);
  bool all_done() const;
  std::exception_ptr first_error() const;

  const uint64_t sequence_;
  const std::shared_ptr<GroupWorks> group_;
  const bool awaited_;
  std::vector<std::shared_ptr<pycoll::Work>> parts_;
  std::vector<Launch> launches_;
  std::vector<at::Tensor> results_;
  int source_ = -1;

  std::atomic<int> remaining_{1};  // parts not done, and one for seal()
  std::atomic<bool> sealed_{false};
  std::atomic<bool> settled_{false};
  mutable std::mutex settle_mutex_;
  std::exception_ptr error_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace pycoll::torch_adapter
