#pragma once
#include <sys/types.h>

#include <map>
#include <memory>
#include <mutex>

#include "engine/communicator.h"

namespace pycoll::torch_adapter {

// Shared memory for tensors that come and go in the same few sizes, as FSDP's buffers do at every step:
// making it anew costs a mapping and its page faults on every rank. What the pool keeps and what is in use
// together never exceed what was once in use at a time.
class BufferPool {
 public:
  explicit BufferPool(std::shared_ptr<Communicator> communicator);
  ~BufferPool();
  void* take(size_t bytes);
  void give_back(void* data, size_t bytes);

 private:
  const std::shared_ptr<Communicator> communicator_;
  const pid_t process_;  // a forked child must not free what is its parent's
  std::mutex mutex_;
  std::multimap<size_t, void*> kept_;
  size_t kept_bytes_ = 0, used_bytes_ = 0, most_bytes_ = 0;
};

}  // namespace pycoll::torch_adapter
