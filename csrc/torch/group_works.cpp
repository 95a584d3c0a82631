#include "torch/group_works.h"

#include <deque>
#include <exception>
#include <thread>
#include <utility>

namespace pycoll::torch_adapter {
namespace {

// Threads that wait for works, which drives the engine; as many as wait at one time, kept a while for the
// next.
class Drivers {
 public:
  static Drivers& get() {
    static auto* drivers = new Drivers;  // its threads may outlive static destructors
    return *drivers;
  }

  void drive(c10::intrusive_ptr<c10d::Work> work) {
    const std::lock_guard lock(mutex_);
    works_.push_back(std::move(work));
    if (idle_ >= works_.size())
      wake_.notify_one();
    else
      std::thread([this] { serve(); }).detach();
  }

 private:
  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      ++idle_;
      const bool called = wake_.wait_for(lock, std::chrono::seconds(5), [this] { return !works_.empty(); });
      --idle_;
      if (!called) return;
      auto work = std::move(works_.front());
      works_.pop_front();
      lock.unlock();
      try {
        work->wait(kNoTimeout);
      } catch (const std::exception&) {  // whoever waits for the future gets it
      }
      work.reset();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<c10::intrusive_ptr<c10d::Work>> works_;
  size_t idle_ = 0;
};

}  // namespace

void GroupWorks::begin() {
  const std::lock_guard lock(mutex_);
  ++under_way_;
}

void GroupWorks::end() {
  const std::lock_guard lock(mutex_);
  if (--under_way_ == 0) none_.notify_all();
}

bool GroupWorks::wait_for_none(std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  return none_.wait_for(lock, limit, [this] { return under_way_ == 0; });
}

void GroupWorks::submitted(const c10::intrusive_ptr<c10d::Work>& work) {
  const std::lock_guard lock(mutex_);
  newest_ = work;
  if (in_callbacks_ > 0) Drivers::get().drive(work);
}

void GroupWorks::callbacks_begin() {
  c10::intrusive_ptr<c10d::Work> newest;  // released after the lock, for it may be the last reference
  const std::lock_guard lock(mutex_);
  ++in_callbacks_;
  newest = newest_.lock();
  if (newest && !newest->isCompleted()) Drivers::get().drive(newest);
}

void GroupWorks::callbacks_end() {
  const std::lock_guard lock(mutex_);
  --in_callbacks_;
}

}  // namespace pycoll::torch_adapter
