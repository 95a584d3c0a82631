#include "torch/flight_recorder.h"

#include <algorithm>
#include <torch/csrc/distributed/c10d/Utils.hpp>

namespace pycoll::torch_adapter {
namespace {

int64_t now() {
  using namespace std::chrono;
  return duration_cast<nanoseconds>(system_clock::now().time_since_epoch()).count();
}

void describe(at::TensorList tensors, std::vector<FlightRecorder::Shape>& shapes) {
  for (const at::Tensor& tensor : tensors)
    if (tensor.defined()) shapes.push_back({tensor.scalar_type(), c10::DimVector(tensor.sizes())});
}

}  // namespace

FlightRecorder* FlightRecorder::get() {
  // Never destroyed: it holds frames of Python, and calls may end while the process does.
  static FlightRecorder* const recorder = [] {
    const int capacity = c10d::getCvarInt({"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"}, 0);
    return capacity > 0 ? new FlightRecorder(size_t(capacity)) : nullptr;
  }();
  return recorder;
}

std::shared_ptr<FlightGroup> FlightRecorder::add_group(std::string name, std::vector<int> global_ranks,
                                                       int rank) {
  auto group = std::make_shared<FlightGroup>();
  group->name = std::move(name);
  group->global_ranks = std::move(global_ranks);
  group->rank = rank;
  const std::lock_guard lock(mutex_);
  group->id = next_group_++;
  if (const int times = ++groups_of_name_[group->name]; times > 1)
    group->name += " #" + std::to_string(times);
  return group;
}

uint64_t FlightRecorder::begin(Entry entry, const std::string& description, at::TensorList inputs,
                               at::TensorList outputs) {
  static const bool cpp_frames =
      c10d::getCvarBool({"TORCH_FR_CPP_STACK", "TORCH_NCCL_TRACE_CPP_STACK"}, false);
  describe(inputs, entry.inputs);
  describe(outputs, entry.outputs);
  entry.thread = std::this_thread::get_id();
  entry.frames = torch::CapturedTraceback::gather(true, true, cpp_frames);  // takes the GIL: before the lock
  entry.created = now();
  const std::lock_guard lock(mutex_);
  entry.id = next_++;
  if (entry.group->description.empty()) entry.group->description = description;
  if (!entry.is_message) entry.group->last_called = entry.collective;
  Entry& slot = ring_[entry.id % ring_.size()];
  std::swap(slot, entry);
  return slot.id;
}

void FlightRecorder::end(uint64_t id, const std::string* error, int heard) {
  const int64_t completed = now();
  const std::lock_guard lock(mutex_);
  Entry& entry = ring_[id % ring_.size()];
  if (!entry.group || entry.id != id) return;  // it was long: its place has been taken
  entry.retired = true;
  if (error != nullptr) {
    entry.error = *error;
    return;
  }
  entry.completed = completed;
  if (entry.is_message && entry.peer < 0) entry.peer = heard;
  if (!entry.is_message)
    entry.group->last_completed = std::max(entry.group->last_completed, entry.collective);
}

FlightRecorder::Record FlightRecorder::record() const {
  const std::lock_guard lock(mutex_);
  Record record;
  const uint64_t size = ring_.size();
  for (uint64_t id = next_ > size ? next_ - size : 0; id < next_; ++id) {
    const Entry& entry = ring_[id % size];
    record.entries.push_back(entry);
    record.groups[entry.group->id] = *entry.group;
  }
  return record;
}

}  // namespace pycoll::torch_adapter
