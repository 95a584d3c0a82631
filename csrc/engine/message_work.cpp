#include "engine/message_work.h"

#include <iterator>
#include <utility>

namespace pycoll {

void MessageWork::on_done(std::function<void()> callback) {
  {
    const std::lock_guard lock(mutex_);
    if (!ended()) {
      callbacks_.push_back(std::move(callback));
      return;
    }
  }
  callback();
}

void MessageWorks::add(const MessageWorkPtr& work) {
  under_way_.push_back(work);
  work->place_ = std::prev(under_way_.end());
  count_.fetch_add(1);
}

void MessageWorks::end(MessageWork& work, std::exception_ptr error) {
  // Done before any callback of any work runs: a callback may wait for another of them.
  {
    const std::lock_guard lock(work.mutex_);
    work.error_ = std::move(error);
    work.ended_.store(true, std::memory_order_release);
    std::move(work.callbacks_.begin(), work.callbacks_.end(), std::back_inserter(endings_.callbacks_));
    work.callbacks_.clear();
  }
  endings_.ended_.push_back(std::move(*work.place_));
  under_way_.erase(work.place_);
  count_.fetch_sub(1);
}

}  // namespace pycoll
