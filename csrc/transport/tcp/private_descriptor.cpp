#include "transport/tcp/private_descriptor.h"

#include <fcntl.h>
#include <pthread.h>

#include <mutex>
#include <set>

namespace pycoll::tcp {
namespace {

struct Registry {
  std::mutex mutex;
  std::set<int> descriptors;
};

Registry& registry() {
  static Registry* const all = new Registry;  // outlives every object with static storage
  return *all;
}

// In the child the numbers stay taken, by what does nothing: objects that the child destroys close them, and
// must close nothing else.
void replace_in_child() {
  const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int descriptor : registry().descriptors) {
    if (nothing >= 0)
      ::dup3(nothing, descriptor, O_CLOEXEC);
    else
      ::close(descriptor);
  }
  if (nothing >= 0) ::close(nothing);
  registry().descriptors.clear();
  registry().mutex.unlock();
}

void watch_forks() {
  static const int once =
      ::pthread_atfork([] { registry().mutex.lock(); }, [] { registry().mutex.unlock(); }, replace_in_child);
  static_cast<void>(once);
}

}  // namespace

PrivateDescriptor::PrivateDescriptor(FileDescriptor descriptor) : descriptor_(std::move(descriptor)) {
  if (!descriptor_) return;
  watch_forks();
  const std::lock_guard lock(registry().mutex);
  registry().descriptors.insert(descriptor_.get());
}

PrivateDescriptor::~PrivateDescriptor() {
  if (!descriptor_) return;
  const std::lock_guard lock(registry().mutex);
  registry().descriptors.erase(descriptor_.get());
  descriptor_ = FileDescriptor();  // under the lock: the number may be another's at once
}

}  // namespace pycoll::tcp
