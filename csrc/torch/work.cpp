#include "torch/work.h"

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <ATen/record_function.h>
#include <torch/version.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "torch/errors.h"

namespace pycoll::torch_adapter {
namespace {

constexpr bool kTorchRecordsReturnedWorks =
    std::pair(TORCH_VERSION_MAJOR, TORCH_VERSION_MINOR) >= std::pair(2, 15);

class EndedWork final : public c10d::Work {
 public:
  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  bool wait(std::chrono::milliseconds) override { return true; }
  void synchronize() override {}
};

}  // namespace

c10::intrusive_ptr<c10d::Work> ended_work() {
  if constexpr (!kTorchRecordsReturnedWorks) return nullptr;
  // One for all calls; never destroyed, as calls may outlast static objects.
  static const auto* const work = new c10::intrusive_ptr<c10d::Work>(c10::make_intrusive<EndedWork>());
  return *work;
}

ProfiledCall::ProfiledCall(int rank, const Launch& launch)
    : c10d::Work(rank, launch.what().type, launch.what().title, launch.shown()) {}

ProfiledCall::~ProfiledCall() {
  if (recordFunctionEndCallback_) recordFunctionEndCallback_();
}

AsyncWork::AsyncWork(int rank, const Launch& launch, uint64_t sequence, std::shared_ptr<GroupWorks> group,
                     bool awaited)
    : c10d::Work(rank, launch.what().type, at::hasCallbacks() ? launch.what().title : nullptr,
                 launch.shown()),
      sequence_(sequence),
      group_(std::move(group)),
      awaited_(awaited) {
  if (awaited_) group_->begin();
}

AsyncWork::~AsyncWork() {
  // Not settled only where the engine refused its first part.
  if (awaited_ && !isCompleted()) group_->end();
}

void AsyncWork::release_resources() {
  results_.clear();
  future_.reset();
}

void AsyncWork::take(Launch&& launch, at::TensorList results) {
  launches_.push_back(std::move(launch));
  results_.insert(results_.end(), results.begin(), results.end());
}

void AsyncWork::add(std::shared_ptr<pycoll::Work> part) {
  parts_.push_back(std::move(part));
  remaining_.fetch_add(1, std::memory_order_relaxed);
  parts_.back()->on_done([self = c10::intrusive_ptr<AsyncWork>::reclaim_copy(this)] { self->one_is_done(); });
}

void AsyncWork::seal() {
  sealed_.store(true, std::memory_order_release);
  group_->submitted(c10::intrusive_ptr<AsyncWork>::reclaim_copy(this));
  one_is_done();
}

void AsyncWork::one_is_done() {
  if (remaining_.fetch_sub(1, std::memory_order_acq_rel) == 1) settle();
}

bool AsyncWork::all_done() const {
  return std::all_of(parts_.begin(), parts_.end(), [](const auto& part) { return part->done(); });
}

std::exception_ptr AsyncWork::first_error() const {
  for (const auto& part : parts_)
    if (auto error = part->exception()) return error;
  return nullptr;
}

// Several threads may arrive here, the engine's and any that waits; the first does it. No foreign code runs
// under the lock: releasing a tensor may take the GIL, and a callback of the future may do anything.
void AsyncWork::settle() {
  std::vector<Launch> finished;
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    std::lock_guard lock(settle_mutex_);
    if (settled_.load(std::memory_order_relaxed)) return;
    try {
      if (auto error = first_error()) std::rethrow_exception(error);
      for (Launch& launch : launches_) launch.write_back();
      for (Launch& launch : launches_) launch.flight.done(source_);
    } catch (...) {
      error_ = for_torch(std::current_exception());
      for (Launch& launch : launches_) launch.flight.failed(text_of(error_));
    }
    finished.swap(launches_);
    future = future_;
    settled_.store(true, std::memory_order_release);
  }
  if (recordFunctionEndCallback_) recordFunctionEndCallback_();
  if (awaited_) group_->end();
  if (!future) return;
  group_->callbacks_begin();
  try {
    complete(future);
  } catch (const std::exception& e) {
    TORCH_WARN("pycoll: a callback of the future of ", opTypeToString(retrieveOpType()),
               " threw: ", e.what());
  }
  group_->callbacks_end();
}

void AsyncWork::complete(const c10::intrusive_ptr<c10::ivalue::Future>& future) {
  if (error_)
    future->setError(error_);
  else
    future->markCompleted(c10::IValue(results_));
}

bool AsyncWork::isSuccess() const {
  return settled_.load(std::memory_order_acquire) && !error_;
}

std::exception_ptr AsyncWork::exception() const {
  return settled_.load(std::memory_order_acquire) ? error_ : nullptr;
}

bool AsyncWork::wait(std::chrono::milliseconds timeout) {
  // Every part is waited for, also after an error: the engine may still use the buffers of the others.
  std::exception_ptr error;
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (const auto& part : parts_) {
    if (settled_.load(std::memory_order_acquire)) break;
    try {
      std::optional<Nanoseconds> left = timeout_from(timeout);
      if (left) left = std::max(Nanoseconds(1), Nanoseconds(deadline - std::chrono::steady_clock::now()));
      part->wait(left);
    } catch (...) {
      if (!error) error = for_torch(std::current_exception());
    }
  }
  // The parts are done (unless this wait ran out of time), but the thread that ended the last of them may not
  // have come to settle() yet.
  if (all_done() && sealed_.load(std::memory_order_acquire)) {
    settle();
    error = error_;
  }
  if (error) std::rethrow_exception(error);
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    std::lock_guard lock(settle_mutex_);
    future = future_;
  }
  // Whoever settled marks the future right away, before it runs callbacks: the caller may expect it marked.
  while (future && !future->completed()) std::this_thread::yield();
  return true;
}

void AsyncWork::abort() {
  C10_THROW_ERROR(DistError, "pycoll does not support abort of one work yet; abort the process group");
}

c10::intrusive_ptr<c10::ivalue::Future> AsyncWork::getFuture() {
  std::lock_guard lock(settle_mutex_);
  if (!future_) {
    future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    if (settled_.load(std::memory_order_relaxed)) complete(future_);
  }
  return future_;
}

}  // namespace pycoll::torch_adapter
