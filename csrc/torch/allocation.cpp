// Tensors in the group's shared memory. Collectives whose tensors all lie there copy nothing.
#include "torch/allocation.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "torch/backend.h"
#include "torch/errors.h"

namespace pycoll::torch_adapter {
namespace {

// What a storage in shared memory holds: the bytes, and with them the group's memory.
struct Lease {
  std::shared_ptr<Communicator> communicator;
  std::shared_ptr<BufferPool> pool;  // null: the bytes are the group's again when the lease ends
  void* data;
  size_t bytes;
  pid_t process;
};

void end_lease(void* held) {
  auto* const lease = static_cast<Lease*>(held);
  if (lease->process != getpid()) return;  // in a forked child: the bytes are still the parent's
  if (lease->pool)
    lease->pool->give_back(lease->data, lease->bytes);
  else
    lease->communicator->deallocate(lease->data);
  delete lease;
}

at::DataPtr take_lease(const std::shared_ptr<Communicator>& communicator,
                       const std::shared_ptr<BufferPool>& pool, size_t bytes) {
  bytes = std::max<size_t>(bytes, 1);
  void* const data = pool ? pool->take(bytes) : communicator->allocate(bytes);
  return {data, new Lease{communicator, pool, data, bytes, getpid()}, end_lease, at::kCPU};
}

}  // namespace

BufferPool::BufferPool(std::shared_ptr<Communicator> communicator)
    : communicator_(std::move(communicator)), process_(getpid()) {}

BufferPool::~BufferPool() {
  if (process_ != getpid()) return;
  for (const auto& [bytes, data] : kept_) communicator_->deallocate(data);
}

void* BufferPool::take(size_t bytes) {
  std::lock_guard lock(mutex_);
  void* data = nullptr;
  if (const auto found = kept_.find(bytes); found != kept_.end()) {
    data = found->second;
    kept_.erase(found);
    kept_bytes_ -= bytes;
  } else {
    data = communicator_->allocate(bytes);
  }
  used_bytes_ += bytes;
  most_bytes_ = std::max(most_bytes_, used_bytes_);
  while (used_bytes_ + kept_bytes_ > most_bytes_) {  // of sizes that are no longer asked for
    const auto first = kept_.begin();
    communicator_->deallocate(first->second);
    kept_bytes_ -= first->first;
    kept_.erase(first);
  }
  return data;
}

void BufferPool::give_back(void* data, size_t bytes) {
  std::lock_guard lock(mutex_);
  used_bytes_ -= bytes;
  kept_.emplace(bytes, data);
  kept_bytes_ += bytes;
}

at::Tensor Backend::allocateTensor(long size, at::TensorOptions options) {
  return translating_errors([&] {
    if (size < 0)
      C10_THROW_ERROR(ValueError, c10::str("pycoll allocate_tensor: the size is negative: ", size));
    if (!options.device().is_cpu())
      C10_THROW_ERROR(ValueError, c10::str("pycoll allocate_tensor: shared memory is the CPU's, not that of ",
                                           options.device()));
    const size_t bytes = size_t(size) * options.dtype().itemsize();
    at::Storage storage(at::Storage::use_byte_size_t(), bytes, take_lease(communicator_, pool_, bytes),
                        nullptr, false);
    return at::empty({0}, options).set_(std::move(storage), 0, {size}, {1});
  });
}

void Backend::move_to_shared_memory(const at::Tensor& tensor) {
  translating_errors([&] {
    if (!tensor.defined() || tensor.layout() != at::kStrided || !tensor.device().is_cpu())
      C10_THROW_ERROR(TypeError, "pycoll: only dense CPU tensors can be moved to shared memory");
    at::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
    const at::DataPtr& before = storage.data_ptr();
    if (before.get_deleter() == end_lease &&
        static_cast<const Lease*>(before.get_context())->communicator == communicator_)
      return;
    at::DataPtr shared = take_lease(communicator_, nullptr, storage.nbytes());
    if (storage.nbytes() != 0) std::memcpy(shared.get(), storage.data(), storage.nbytes());
    storage.set_data_ptr_noswap(std::move(shared));
  });
}

}  // namespace pycoll::torch_adapter
