#include "torch/cuda_group.h"

#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "algorithms/registry.h"
#include "core/error.h"

namespace pycoll::torch_adapter {
namespace {

// What ranks tell each other while the group is opened.
struct OpeningRecord {
  enum Status : int32_t { Well, Invalid, NotSupported, Failed };
  int32_t status;
  int32_t bytes;
  char text[4088];
};

OpeningRecord::Status status_of(const Error& error) {
  if (dynamic_cast<const InvalidArgument*>(&error)) return OpeningRecord::Invalid;
  if (dynamic_cast<const Unsupported*>(&error)) return OpeningRecord::NotSupported;
  return OpeningRecord::Failed;
}

[[noreturn]] void throw_as(int32_t status, const std::string& text) {
  if (status == OpeningRecord::Invalid) throw InvalidArgument(text);
  if (status == OpeningRecord::NotSupported) throw Unsupported(text);
  throw Error(text);
}

std::string boot_of_this_host() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  file >> boot;
  return boot;
}

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
      stream_(guard_.getStreamFromGlobalPool(device)),
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
                            .stop_kernels = [this] { stop_kernels(); }});
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

// Runs a step on every rank and gathers what it returns.
template <class Step>
std::vector<std::string> CudaGroup::together(const Step& step) {
  OpeningRecord mine{};
  std::string text;
  try {
    text = step();
    if (text.size() > sizeof(mine.text)) throw Error("a handle of the CUDA part is too long");
  } catch (const Error& error) {
    mine.status = status_of(error);
    text = std::string(error.what()).substr(0, sizeof(mine.text));
  }
  mine.bytes = int32_t(text.size());
  std::memcpy(mine.text, text.data(), text.size());
  std::vector<OpeningRecord> all(size_t(communicator_->ranks()));
  CollectiveCall call;
  call.kind = CollectiveKind::AllGather;
  call.dtype = DType::UInt8;
  call.count = sizeof(OpeningRecord);
  call.input = &mine;
  call.output = all.data();
  communicator_->run(call);
  std::vector<std::string> texts;
  for (const OpeningRecord& record : all) texts.emplace_back(record.text, size_t(record.bytes));
  for (size_t r = 0; r < all.size(); ++r)
    if (all[r].status != OpeningRecord::Well)
      throw_as(all[r].status, "group '" + communicator_->options().group +
                                  "' cannot be used with CUDA tensors: rank " + std::to_string(r) + ": " +
                                  texts[r]);
  return texts;
}

void CudaGroup::open(const Accelerator& accelerator) {
  const auto places = together([&] {
    library_ = std::make_shared<CudaLibrary>(accelerator.library());
    stream_handle_ = accelerator.stream_handle(stream_);
    if (captures(accelerator.stream_handle(current_stream())))
      throw InvalidArgument(
          "the group's first call on CUDA tensors comes while a graph is captured, where no memory can be "
          "had; call it once before, or give init_process_group a device_id");
    return boot_of_this_host();
  });
  for (size_t r = 0; r < places.size(); ++r)
    if (places[r] != places[0])
      throw Unsupported("group '" + communicator_->options().group +
                        "' cannot be used with CUDA tensors: rank " + std::to_string(r) +
                        " is on another host than rank 0. Give CUDA tensors of several hosts to NCCL: "
                        "init_process_group(\"cpu:pycoll,cuda:nccl\")");
  const auto handles = together([&] {
    pycoll_cuda_options options{};
    options.rank = communicator_->rank();
    options.ranks = communicator_->ranks();
    options.device = device_.index();
    library_->check(library_->open(&options, &group_));
    std::string handle(library_->handle_bytes(), '\0');
    library_->check(library_->handle(group_, handle.data()));
    return handle;
  });
  together([&] {
    std::string all;
    for (const std::string& handle : handles) all += handle;
    library_->check(library_->connect(group_, all.data()));
    // What graphs are captured with most: a schedule's first use takes memory, which a capture forbids.
    for (CollectiveKind kind :
         {CollectiveKind::AllReduce, CollectiveKind::ReduceScatter, CollectiveKind::AllGather})
      plan(kind, 0);
    return std::string();
  });
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

void CudaGroup::follow_current_stream() {
  const std::lock_guard lock(mutex_);
  require_open();
  watchdog_->require_usable();
  called_.record(current_stream());
  called_.block(stream_);
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
    if (capturing())
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
                                      stream_handle_));
  else
    library_->check(library_->run(group_, plan(call.kind, call.root), dtype, op, call.factor, input, output,
                                  call.count, -1, stream_handle_));
}

void CudaGroup::leave(Nanoseconds limit) {
  watchdog_->leave(limit);
  const std::lock_guard lock(mutex_);
  free();
}

}  // namespace pycoll::torch_adapter
