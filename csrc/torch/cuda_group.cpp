#include "torch/cuda_group.h"

#include <c10/core/DeviceGuard.h>

#include <algorithm>

#include "algorithms/registry.h"
#include "core/error.h"

namespace pycoll::torch_adapter {
namespace {

// The schedules of buffers that are too large for the kernels of small ones; as pycoll.cuda.Group's.
const char* algorithm_of(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::AllReduce:
      return "direct_two_shot";
    case CollectiveKind::Broadcast:
    case CollectiveKind::Reduce:
      return "double_binary_tree";
    default:
      return "direct";
  }
}

}  // namespace

CudaGroup::CudaGroup(std::shared_ptr<Communicator> communicator, const Accelerator& accelerator,
                     c10::Device device)
    : communicator_(std::move(communicator)),
      device_(device),
      guard_(device.type()),
      native_handle_(accelerator.stream_handle),
      called_(device.type()) {
  // What the library does on a thread's current device it does on the group's, and on no other.
  const c10::DeviceGuard there(device_);
  try {
    open(accelerator);
    watchdog_ = std::make_unique<CudaWatchdog>(
        communicator_,
        // It asks for events also while another thread captures a graph, which CUDA else forbids.
        CudaWatchdog::Hooks{.begin =
                                [this] {
                                  guard_.setDevice(device_);
                                  library_->check(library_->relax_capture());
                                },
                            .stop_kernels = [this] { stop_kernels(); },
                            .complaint = [this] { return complaint(); }});
  } catch (...) {
    free();
    throw;
  }
}

CudaGroup::~CudaGroup() {
  watchdog_ = nullptr;
  free();
}

void CudaGroup::free() {
  pycoll_cuda_group* group = nullptr;
  {
    const std::lock_guard lock(abort_mutex_);
    group = std::exchange(group_, nullptr);
  }
  if (group == nullptr) return;
  const c10::DeviceGuard there(device_);
  library_->close(group);
}

void CudaGroup::stop_kernels() {
  const std::lock_guard lock(abort_mutex_);
  if (group_ != nullptr) library_->abort(group_);
}

void CudaGroup::require_open() const {
  if (group_ == nullptr)
    throw InvalidArgument("group '" + communicator_->options().group + "': this rank has left the group");
}

bool CudaGroup::captures(void* stream) const {
  const c10::DeviceGuard there(device_);
  int32_t captures = 0;
  library_->check(library_->capturing(stream, &captures));
  return captures != 0;
}

void CudaGroup::follow_current_stream(const c10::Stream& stream, std::optional<int> peer) {
  const std::lock_guard lock(mutex_);
  require_open();
  watchdog_->require_usable(peer);
  called_.record(current_stream());
  called_.block(stream);
}

// For buffers up to what api.h says, where the kernels take as much.
std::optional<int> CudaGroup::small_kernel(const CollectiveCall& call) const {
  const auto takes = [&](int which) {
    uint64_t limit = 0;
    library_->check(library_->packets_limit(group_, which, int32_t(call.dtype), &limit));
    return call.count <= limit;
  };
  const size_t bytes = call.count * size_of(call.dtype);
  switch (call.kind) {
    case CollectiveKind::AllReduce:
      if (bytes <= PYCOLL_CUDA_ONE_SHOT_BYTES && takes(PYCOLL_CUDA_ONE_SHOT)) return PYCOLL_CUDA_ONE_SHOT;
      if (bytes / size_t(communicator_->ranks()) <= PYCOLL_CUDA_TWO_SHOT_BYTES && takes(PYCOLL_CUDA_TWO_SHOT))
        return PYCOLL_CUDA_TWO_SHOT;
      return std::nullopt;
    case CollectiveKind::ReduceScatter:
      return takes(PYCOLL_CUDA_REDUCE_SCATTER) ? std::optional<int>(PYCOLL_CUDA_REDUCE_SCATTER)
                                               : std::nullopt;
    case CollectiveKind::AllGather:
      return takes(PYCOLL_CUDA_ALL_GATHER) ? std::optional<int>(PYCOLL_CUDA_ALL_GATHER) : std::nullopt;
    default:
      return std::nullopt;
  }
}

int32_t CudaGroup::plan(CollectiveKind kind, int root) {
  const auto [found, is_new] = plans_.try_emplace({kind, root}, -1);
  if (!is_new) return found->second;
  try {
    if (captures(stream_->handle()))
      throw InvalidArgument(
          "the first " + std::string(name_of(kind)) + " of CUDA tensors of this size" +
          (is_rooted(kind) ? " with root " + std::to_string(root) : "") +
          " comes while a graph is captured, where no memory can be had; call it once before");
    const Schedule schedule =
        build(algorithm_of(kind), {.kind = kind, .ranks = communicator_->ranks(), .root = root});
    std::vector<int32_t> rows;
    for (const Transfer& t : schedule.transfers)
      rows.insert(rows.end(), {t.round, t.src, t.dst, t.piece, t.action == Action::Reduce ? 1 : 0});
    library_->check(library_->plan(group_, int32_t(kind), schedule.pieces(), root, rows.data(),
                                   schedule.transfers.size(), 0, &found->second));
  } catch (...) {
    plans_.erase(found);
    throw;
  }
  return found->second;
}

void CudaGroup::run(const CollectiveCall& call) {
  if (call.count == 0) return;
  const std::lock_guard lock(mutex_);
  require_open();
  // A rank that has no input, or no output, gives its other buffer for it.
  const void* const input = call.input ? call.input : call.output;
  void* const output = call.output ? call.output : const_cast<void*>(call.input);
  const auto dtype = int32_t(call.dtype), op = int32_t(call.op);
  if (const auto kernel = small_kernel(call))
    library_->check(library_->packets(group_, *kernel, dtype, op, call.factor, input, output, call.count,
                                      stream_->handle()));
  else
    library_->check(library_->run(group_, plan(call.kind, call.root), dtype, op, call.factor, input, output,
                                  call.count, -1, stream_->handle()));
}

void CudaGroup::leave(Nanoseconds limit) {
  watchdog_->leave(limit);
  const std::lock_guard lock(mutex_);
  free();
}

}  // namespace pycoll::torch_adapter
