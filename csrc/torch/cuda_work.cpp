#include "torch/cuda_work.h"

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <ATen/record_function.h>

#include <utility>

#include "torch/cuda_group.h"
#include "torch/errors.h"

namespace pycoll::torch_adapter {

CudaWork::CudaWork(int rank, const Launch& launch, uint64_t sequence, std::shared_ptr<CudaGroup> group,
                   std::chrono::milliseconds timeout)
    : c10d::Work(rank, launch.what().type, at::hasCallbacks() ? launch.what().title : nullptr,
                 launch.shown()),
      name_(launch.what().name()),
      sequence_(sequence),
      group_(std::move(group)),
      timeout_(timeout),
      end_(group_->device().type()) {}

void CudaWork::release_resources() {
  results_.clear();
  future_.reset();
  launches_.clear();
}

void CudaWork::take(Launch&& launch, at::TensorList results, std::optional<int> peer) {
  if (peer) peers_.push_back(*peer);
  flights_.push_back(std::move(launch.flight));
  launches_.push_back(std::move(launch));
  results_.insert(results_.end(), results.begin(), results.end());
}

void CudaWork::seal(const c10::Stream& stream) {
  stream_ = stream;
  end_.record(stream);
  captured_ = group_->capturing(stream);
  if (recordFunctionEndCallback_) recordFunctionEndCallback_();
  if (captured_)
    for (FlightEntry& flight : flights_) flight.done();
  sealed_.store(true, std::memory_order_release);
  if (!captured_) group_->watchdog().watch(c10::intrusive_ptr<CudaWork>::reclaim_copy(this));
}

void CudaWork::follow() {
  end_.block(group_->current_stream());
}

// Before, its end is not on the stream, and nothing to wait for.
void CudaWork::require_sealed() const {
  if (sealed_.load(std::memory_order_acquire)) return;
  C10_THROW_ERROR(DistError, c10::str("pycoll: this ", name_,
                                      " is collected by a coalescing manager; wait after it has ended"));
}

bool CudaWork::isCompleted() {
  if (!sealed_.load(std::memory_order_acquire)) return false;
  if (settled() || exception()) return true;
  if (captured_)
    C10_THROW_ERROR(DistError, c10::str("pycoll: this ", name_,
                                        " is part of a graph: it runs, and ends, at every replay"));
  return has_ended();
}

std::exception_ptr CudaWork::exception() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

void CudaWork::set_error(std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  if (settled() || error_) return;
  error_ = for_torch(error);
  for (FlightEntry& flight : flights_) flight.failed(text_of(error_));
}

void CudaWork::settle() {
  settled_.store(true, std::memory_order_release);
  {
    const std::lock_guard lock(mutex_);
    for (FlightEntry& flight : flights_) flight.done();
  }
  let_go();
}

void CudaWork::let_go() {
  std::vector<Launch> held;
  const std::lock_guard lock(mutex_);
  held.swap(launches_);  // goes after the lock: letting tensors go may take the GIL
}

bool CudaWork::wait(std::chrono::milliseconds timeout) {
  require_sealed();
  if (auto error = exception()) std::rethrow_exception(error);
  follow();
  if (!captured_ && timeout > std::chrono::milliseconds::zero()) {
    translating_errors([&] {
      if (group_->watchdog().wait_for(*this, Nanoseconds(timeout))) return;
      group_->watchdog().fail(c10::str("a wait() for ", name_, " timed out after ", timeout.count(), " ms"));
      group_->watchdog().require_usable();
    });
  }
  let_go();
  return true;
}

void CudaWork::abort() {
  C10_THROW_ERROR(DistError, "pycoll does not support abort of one work yet; abort the process group");
}

c10::intrusive_ptr<c10::ivalue::Future> CudaWork::getFuture() {
  require_sealed();
  const std::lock_guard lock(mutex_);
  if (!future_) {
    future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                       std::vector<c10::Device>{group_->device()});
    if (error_) {
      future_->setError(error_);
    } else {  // with an event on the group's stream, for which whoever uses the value waits
      const c10::StreamGuard there(*stream_);
      future_->markCompleted(c10::IValue(results_));
    }
  }
  return future_;
}

}  // namespace pycoll::torch_adapter
