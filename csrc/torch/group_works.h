#pragma once
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace pycoll::torch_adapter {

// What the works of a group share.
class GroupWorks {
 public:
  // Works under way, so that leaving the group can let them finish.
  void begin();
  void end();
  bool wait_for_none(std::chrono::milliseconds limit);

  // A callback of a future may run on the engine's one thread of the group and there wait, in ways the engine
  // knows nothing of, for another work's future; torch's PowerSGD hook does. While callbacks run, other
  // threads drive the works.
  void submitted(const c10::intrusive_ptr<c10d::Work>& work);
  void callbacks_begin();
  void callbacks_end();

 private:
  std::mutex mutex_;
  std::condition_variable none_;
  int under_way_ = 0;
  int in_callbacks_ = 0;
  c10::weak_intrusive_ptr<c10d::Work> newest_{c10::intrusive_ptr<c10d::Work>()};  // works end in their order
};

}  // namespace pycoll::torch_adapter
