// Tensors in the group's shared memory. Collectives whose tensors all lie there copy nothing.
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "torch/backend.h"
#include "torch/errors.h"

namespace pycoll::torch_adapter {
namespace {

// What a storage in shared memory holds: the bytes, and the group's memory as long as it needs them.
struct Lease {
  std::shared_ptr<Communicator> communicator;
  void* data;
  pid_t process;
};

void end_lease(void* held) {
  auto* const lease = static_cast<Lease*>(held);
  if (lease->process != getpid()) return;  // in a forked child: the bytes are still the parent's
  lease->communicator->deallocate(lease->data);
  delete lease;
}

at::DataPtr take_lease(const std::shared_ptr<Communicator>& communicator, size_t bytes) {
  void* const data = communicator->allocate(std::max<size_t>(bytes, 1));
  return {data, new Lease{communicator, data, getpid()}, end_lease, at::kCPU};
}

}  // namespace

at::Tensor Backend::allocateTensor(long size, at::TensorOptions options) {
  return translating_errors([&] {
    if (size < 0)
      C10_THROW_ERROR(ValueError, c10::str("pycoll allocate_tensor: the size is negative: ", size));
    if (!options.device().is_cpu())
      C10_THROW_ERROR(ValueError, c10::str("pycoll allocate_tensor: shared memory is the CPU's, not that of ",
                                           options.device()));
    const size_t bytes = size_t(size) * options.dtype().itemsize();
    at::Storage storage(at::Storage::use_byte_size_t(), bytes, take_lease(communicator_, bytes), nullptr,
                        false);
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
    at::DataPtr shared = take_lease(communicator_, storage.nbytes());
    if (storage.nbytes() != 0) std::memcpy(shared.get(), storage.data(), storage.nbytes());
    storage.set_data_ptr_noswap(std::move(shared));
  });
}

}  // namespace pycoll::torch_adapter
