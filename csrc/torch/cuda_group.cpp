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

bool CudaGroup::takes(int kernel, const CollectiveCall& call) const {
  uint64_t limit = 0;
  library_->check(library_->packets_limit(group_, kernel, int32_t(call.dtype), &limit));
  return call.count <= limit;
}

// For buffers up to what api.h says, where the kernels take as much.
std::optional<int> CudaGroup::small_kernel(const CollectiveCall& call) const {
  const size_t bytes = call.count * size_of(call.dtype);
  const auto if_taken = [&](int kernel) {
    return takes(kernel, call) ? std::optional(kernel) : std::nullopt;
  };
  switch (call.kind) {
    case CollectiveKind::AllReduce:
      if (bytes <= PYCOLL_CUDA_ONE_SHOT_BYTES && takes(PYCOLL_CUDA_ONE_SHOT, call))
        return PYCOLL_CUDA_ONE_SHOT;
      if (bytes / size_t(communicator_->ranks()) <= PYCOLL_CUDA_TWO_SHOT_BYTES)
        return if_taken(PYCOLL_CUDA_TWO_SHOT);
      return std::nullopt;
    case CollectiveKind::ReduceScatter:
      return if_taken(PYCOLL_CUDA_REDUCE_SCATTER);
    case CollectiveKind::AllGather:
      return if_taken(PYCOLL_CUDA_ALL_GATHER);
    default:
      return std::nullopt;
  }
}

void CudaGroup::require_not_capturing(const std::string& what) const {
  if (captures(stream_->handle()))
    throw InvalidArgument(
        "the first " + what +
        " comes while a graph is captured, where no memory can be had; call it once before");
}

int32_t CudaGroup::add_plan(const Schedule& schedule, bool finds_late) {
  std::vector<int32_t> rows;
  for (const Transfer& t : schedule.transfers)
    rows.insert(rows.end(), {t.round, t.src, t.dst, t.piece, t.action == Action::Reduce ? 1 : 0});
  int32_t plan = -1;
  library_->check(library_->plan(group_, int32_t(schedule.collective.kind), schedule.pieces(),
                                 schedule.collective.root, rows.data(), schedule.transfers.size(),
                                 finds_late ? 1 : 0, &plan));
  return plan;
}

int32_t CudaGroup::plan(CollectiveKind kind, int root) {
  const auto found = plans_.find({kind, root});
  if (found != plans_.end()) return found->second;
  require_not_capturing(std::string(name_of(kind)) + " of CUDA tensors of this size" +
                        (is_rooted(kind) ? " with root " + std::to_string(root) : ""));
  const Schedule schedule =
      build(algorithm_of(kind), {.kind = kind, .ranks = communicator_->ranks(), .root = root});
  return plans_[{kind, root}] = add_plan(schedule, false);
}

// "ring/16": an algorithm and its number of pieces. late_rank finds the late rank by itself.
int32_t CudaGroup::plan_of_way(const std::string& way) {
  const auto found = plans_of_ways_.find(way);
  if (found != plans_of_ways_.end()) return found->second;
  require_not_capturing("all_reduce of CUDA tensors that goes " + way);
  const size_t slash = way.find('/');
  const std::string algorithm = way.substr(0, slash);
  const int pieces = slash == std::string::npos ? 0 : std::stoi(way.substr(slash + 1));
  const Schedule schedule = build(
      algorithm, {.kind = CollectiveKind::AllReduce, .ranks = communicator_->ranks(), .pieces = pieces});
  return plans_of_ways_[way] = add_plan(schedule, algorithm == "late_rank");
}

void CudaGroup::run_kernel(int kernel, const CollectiveCall& call) {
  const void* const input = call.input ? call.input : call.output;
  void* const output = call.output ? call.output : const_cast<void*>(call.input);
  library_->check(library_->packets(group_, kernel, int32_t(call.dtype), int32_t(call.op), call.factor, input,
                                    output, call.count, stream_->handle()));
}

// A rank that has no input, or no output, gives its other buffer for it.
void CudaGroup::run_plan(int32_t plan, const CollectiveCall& call) {
  const void* const input = call.input ? call.input : call.output;
  void* const output = call.output ? call.output : const_cast<void*>(call.input);
  library_->check(library_->run(group_, plan, int32_t(call.dtype), int32_t(call.op), call.factor, input,
                                output, call.count, -1, stream_->handle()));
}

// Whether the table says how an all_reduce goes. A pin that cannot be followed is an error.
bool CudaGroup::run_by_table(const CollectiveCall& call) {
  if (call.kind != CollectiveKind::AllReduce) return false;
  const uint64_t bytes = call.count * size_of(call.dtype);
  for (const CudaWay& row : ways_) {
    if (!row.covers(bytes, call.dtype)) continue;
    for (const std::string& way : row.ways) {
      const std::optional<int> kernel = way == "one_shot"   ? std::optional<int>(PYCOLL_CUDA_ONE_SHOT)
                                        : way == "two_shot" ? std::optional<int>(PYCOLL_CUDA_TWO_SHOT)
                                                            : std::nullopt;
      if (!kernel)
        run_plan(plan_of_way(way), call);
      else if (takes(*kernel, call))
        run_kernel(*kernel, call);
      else if (row.pinned)
        throw InvalidArgument(row.reason + ": " + way + " does not run for " + std::to_string(call.count) +
                              " elements of " + std::string(name_of(call.dtype)) +
                              "; limit the rule's sizes or dtypes");
      else
        continue;
      return true;
    }
    return false;
  }
  return false;
}

void CudaGroup::run(const CollectiveCall& call) {
  if (call.count == 0) return;
  const std::lock_guard lock(mutex_);
  require_open();
  if (run_by_table(call)) return;
  if (const auto kernel = small_kernel(call))
    run_kernel(*kernel, call);
  else
    run_plan(plan(call.kind, call.root), call);
}

void CudaGroup::leave(Nanoseconds limit) {
  watchdog_->leave(limit);
  const std::lock_guard lock(mutex_);
  free();
}

}  // namespace pycoll::torch_adapter
