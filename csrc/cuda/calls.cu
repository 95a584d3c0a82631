// A group's collectives, as launches on a stream.
#include <algorithm>
#include <cstring>
#include <string>

#include "core/error.h"
#include "cuda/group.h"
#include "cuda/windows.h"

namespace pycoll::cuda {
// Tickets are drawn from rank 0's memory. A GPU that this process does not see cannot be asked about.
void Group::require_atomics() const {
  require_connected();
  const cudaUUID_t& theirs = peer_handles_.at(0).gpu;
  int devices = 0;
  require(cudaGetDeviceCount(&devices), "count the GPUs");
  for (int device = 0; device < devices; ++device) {
    cudaDeviceProp properties{};
    require(cudaGetDeviceProperties(&properties, device), "describe device " + std::to_string(device));
    if (device == device_ || std::memcmp(&properties.uuid, &theirs, sizeof(theirs)) != 0) continue;
    int has = 0;
    require(cudaDeviceGetP2PAttribute(&has, cudaDevP2PAttrNativeAtomicSupported, device_, device),
            "ask for atomic operations between GPUs");
    if (has == 0)
      throw Unsupported("a late rank is found by atomic operations between GPUs, which device " +
                        std::to_string(device_) + " has not on the memory of rank 0 (device " +
                        std::to_string(device) + "): name the rank in the schedule instead");
  }
}

int Group::add_plan(const Schedule& schedule, bool finds_late) {
  const OnDevice here(device_);
  if (schedule.ranks() != layout_.ranks)
    throw InvalidArgument("the schedule is for " + std::to_string(schedule.ranks()) +
                          " ranks, the group has " + std::to_string(layout_.ranks));
  if (finds_late && (schedule.collective.kind != CollectiveKind::AllReduce || layout_.ranks < 2))
    throw InvalidArgument("a late rank is looked for in an allreduce of two ranks or more");
  if (finds_late) require_atomics();
  const Tables tables = make_tables(schedule);
  if (tables.slots > layout_.slots)
    throw Unsupported("the schedule needs " + std::to_string(tables.slots) +
                      " flags between two ranks, the group has " + std::to_string(layout_.slots) +
                      ": open it with more slots, or use fewer pieces");

  std::vector<const Table*> wanted;
  for (const Table& table : tables.by_rank)
    if (finds_late || &table == &tables.by_rank[static_cast<size_t>(rank_)]) wanted.push_back(&table);
  size_t bytes = wanted.size() * sizeof(TableView);
  for (const Table* table : wanted)
    bytes +=
        table->instructions.size() * sizeof(Instruction) + (table->flags.size() + table->sources.size()) * 4;
  auto plan = std::make_unique<Plan>();
  plan->collective = tables.collective;
  plan->finds_late = finds_late;
  plan->snapshots = tables.snapshots;
  plan->tables = DeviceMemory(bytes);
  plan->views = reinterpret_cast<const TableView*>(plan->tables.data());
  std::vector<char> image(bytes);
  size_t at = wanted.size() * sizeof(TableView);
  const auto put = [&](const auto& list) {
    const size_t begin = at;
    if (!list.empty()) std::memcpy(image.data() + at, list.data(), list.size() * sizeof(list[0]));
    at += list.size() * sizeof(list[0]);
    return plan->tables.data() + begin;
  };
  for (size_t i = 0; i < wanted.size(); ++i) {
    TableView view{};
    view.instructions = reinterpret_cast<const Instruction*>(put(wanted[i]->instructions));
    view.flags = reinterpret_cast<const uint32_t*>(put(wanted[i]->flags));
    view.sources = reinterpret_cast<const int32_t*>(put(wanted[i]->sources));
    view.count = static_cast<int32_t>(wanted[i]->instructions.size());
    std::memcpy(image.data() + i * sizeof(TableView), &view, sizeof(view));
  }
  require(cudaMemcpy(plan->tables.data(), image.data(), bytes, cudaMemcpyHostToDevice),
          "copy a schedule to the device");
  plans_.push_back(std::move(plan));
  return static_cast<int>(plans_.size()) - 1;
}

// Collectives of a group follow each other, whatever streams they are put on. Inside a capture the graph's
// own order must do.
template <class Launches>
void Group::in_order(cudaStream_t stream, const Launches& launches) {
  const OnDevice here(device_);
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  require(cudaStreamIsCapturing(stream, &capturing), "ask a stream");
  if (capturing != cudaStreamCaptureStatusNone) return launches();
  unsigned long long number = 0;
  require(cudaStreamGetId(stream, &number), "ask which stream it is");
  if (has_called_ && number != last_stream_)
    require(cudaStreamWaitEvent(stream, last_call_, 0), "order a stream after the last collective");
  launches();
  require(cudaEventRecord(last_call_, stream), "record an event");
  last_stream_ = number;
  has_called_ = true;
}

template <class KernelCall>
void Group::launch(const void* kernel, int blocks, const KernelCall& call, cudaStream_t stream) {
  KernelCall passed = call;
  const uint32_t* aborted = aborted_;
  void* arguments[] = {&passed, &aborted};
  require(cudaLaunchKernel(kernel, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), arguments, 0, stream),
          "launch a collective");
}

void Group::run(int plan_index, const Call& call, int registration) {
  require_connected();
  if (plan_index < 0 || static_cast<size_t>(plan_index) >= plans_.size())
    throw InvalidArgument("there is no plan " + std::to_string(plan_index));
  const Plan& plan = *plans_[static_cast<size_t>(plan_index)];
  const Collective& collective = plan.collective;
  const bool reduces = is_reduction(collective.kind);
  const Kernels& kernels = reduces ? kernels_of(call.dtype, call.op) : moving_kernels();
  if (kernels.schedule == nullptr)
    throw Unsupported("CUDA collectives do not reduce dtype " + std::string(name_of(call.dtype)) + " by " +
                      std::string(name_of(call.op)));
  if (reduces && call.op == Op::PremulSum) require_factor(call.dtype, call.factor);
  // What is only moved is moved as bytes.
  const uint64_t size = reduces ? size_of(call.dtype) : 1;
  const uint64_t count = reduces ? call.count : call.count * size_of(call.dtype);

  ScheduleCall made{};
  made.layout = layout_;
  made.heaps = reinterpret_cast<char* const*>(heaps_.data());
  made.work = reinterpret_cast<char* const*>(staging_.data());
  made.tables = plan.views;
  made.rank = rank_;
  made.finds_late = plan.finds_late;
  made.params = OpParams::of(layout_.ranks, call.factor);
  made.snapshots = layout_.staging / 2 / 16 * 16;
  uint64_t window =
      window_length(collective, kernels.wire_size, count, plan.snapshots ? made.snapshots : layout_.staging);
  const bool output_is_all = collective.kind == CollectiveKind::AllReduce ||
                             collective.kind == CollectiveKind::AllGather ||
                             collective.kind == CollectiveKind::Broadcast;
  const bool as_it_is = !reduces || wire_op(call.op) == call.op;
  if (registration >= 0) {
    if (static_cast<size_t>(registration) >= buffers_.size() || !buffers_[static_cast<size_t>(registration)])
      throw InvalidArgument("there is no registration " + std::to_string(registration));
    const Buffers& buffers = *buffers_[static_cast<size_t>(registration)];
    if (call.output != buffers.mine || collective.logical_elements(count) * size > buffers.bytes)
      throw InvalidArgument("the output is not the buffer that was registered");
    if (output_is_all && as_it_is && !plan.snapshots) {
      made.work = reinterpret_cast<char* const*>(buffers.work.data());
      window = count;
    }
  }
  // Buffers in a pool are found out about window by window: windows of a buffer in one block lie in it as
  // they do in staging, and the blocks of others where one window takes all.
  made.offer.asks = uses_pool_ && registration < 0 && output_is_all && as_it_is && !plan.snapshots &&
                    !plan.finds_late && (collective.logical_elements(1) == 1 || window >= count);
  made.offer.segments = reinterpret_cast<char* const*>(segments_.data());
  if (made.offer.asks && window < count && window >= 16) window = window / 16 * 16;
  if (window == 0 && count > 0)
    throw Unsupported("the group's staging of " + std::to_string(layout_.staging) +
                      " bytes holds not one element of every block");

  in_order(call.stream, [&] {
    for (uint64_t begin = 0; begin == 0 || begin < count; begin += window) {
      set_window(made, collective, call.input, call.output, size, count, begin,
                 std::min(window, count - begin));
      if (made.offer.asks) made.offer.mine = offer_in_pool(made.output, made.elements * size);
      const int blocks = blocks_for(made, kernels.wire_size, layout_.blocks);
      launch(kernels.schedule, blocks, made, call.stream);
      if (window == 0) break;  // a barrier, or no elements
    }
  });
}

// One packet of each sender is its factor's; a two-shot halves the rest.
uint64_t Group::packets_of_block(int which) const {
  const bool halved = which == PYCOLL_CUDA_TWO_SHOT || which == PYCOLL_CUDA_REDUCE_SCATTER;
  return static_cast<uint64_t>(layout_.packets - 1) / (halved ? 2 : 1);
}

uint64_t Group::packets_limit(int which, DType dtype) const {
  const uint64_t elements =
      packets_of_block(which) * static_cast<uint64_t>(layout_.blocks) * 8 / size_of(dtype);
  return which == PYCOLL_CUDA_TWO_SHOT ? elements * static_cast<uint64_t>(layout_.ranks) : elements;
}

void Group::run_packets(int which, const Call& call) {
  require_connected();
  const bool gathers_only = which == PYCOLL_CUDA_ALL_GATHER;
  const Kernels& kernels = kernels_of(call.dtype, call.op);
  const void* const kernel = gathers_only                    ? all_gather_kernel()
                             : which == PYCOLL_CUDA_ONE_SHOT ? kernels.one_shot
                                                             : kernels.two_shot;
  if (kernel == nullptr)
    throw Unsupported("CUDA collectives do not reduce dtype " + std::string(name_of(call.dtype)) + " by " +
                      std::string(name_of(call.op)));
  if (!gathers_only && call.op == Op::PremulSum) require_factor(call.dtype, call.factor);
  if (call.count > packets_limit(which, call.dtype))
    throw InvalidArgument("a kernel for small buffers takes " +
                          std::to_string(packets_limit(which, call.dtype)) + " elements of dtype " +
                          std::string(name_of(call.dtype)) + ", not " + std::to_string(call.count));
  if (call.count == 0) return;

  PacketCall made{};
  made.layout = layout_;
  made.heaps = reinterpret_cast<char* const*>(heaps_.data());
  made.rank = rank_;
  made.input = static_cast<const char*>(call.input);
  made.output = static_cast<char*>(call.output);
  made.gathers = which == PYCOLL_CUDA_TWO_SHOT;
  made.params = OpParams::of(layout_.ranks, call.factor);
  const auto ranks = static_cast<uint64_t>(layout_.ranks);
  made.elements = gathers_only                          ? call.count * size_of(call.dtype)
                  : which == PYCOLL_CUDA_REDUCE_SCATTER ? call.count * ranks
                                                        : call.count;
  // What a sender sends to a receiver: no more in a block than it has packets for, and something in every
  // block even of the shortest shard.
  const uint64_t shards = which == PYCOLL_CUDA_TWO_SHOT ? ranks : 1;
  const uint64_t longest = ((call.count + shards - 1) / shards * size_of(call.dtype) + 7) / 8;
  const uint64_t shortest = call.count / shards * size_of(call.dtype) / 8;
  const uint64_t least = (longest + packets_of_block(which) - 1) / packets_of_block(which);
  const uint64_t wanted = std::max(least, (shortest + kThreads - 1) / kThreads);
  const auto blocks =
      static_cast<int>(std::clamp<uint64_t>(wanted, 1, static_cast<uint64_t>(layout_.blocks)));
  in_order(call.stream, [&] { launch(kernel, blocks, made, call.stream); });
}

void Group::run_nvls(NvlsKind which, const Call& call) {
  require_connected();
  if (!has_multicast())
    throw Unsupported(
        "the group has no multicast object: its GPUs, or the switch between them, have no NVLS");
  const bool gathers = which == NvlsKind::AllGather;
  const NvlsKernel kernel =
      gathers ? NvlsKernel{nvls_all_gather_kernel(), 1} : nvls_kernel_of(call.dtype, call.op);
  if (kernel.kernel == nullptr)
    throw Unsupported("the NVLink switch does not reduce dtype " + std::string(name_of(call.dtype)) + " by " +
                      std::string(name_of(call.op)));
  if (!gathers && call.op == Op::PremulSum) require_factor(call.dtype, call.factor);
  const uint64_t size = gathers ? 1 : size_of(call.dtype);
  const uint64_t count = gathers ? call.count * size_of(call.dtype) : call.count;
  const uint64_t blocks = which == NvlsKind::AllReduce ? 1 : static_cast<uint64_t>(layout_.ranks);
  const uint64_t window = std::min(count, layout_.staging / 16 / blocks * (16 / kernel.wire_size));
  if (window == 0 && count > 0)
    throw Unsupported("the group's staging of " + std::to_string(layout_.staging) +
                      " bytes holds not one vector of every block");

  NvlsCall made{};
  made.layout = layout_;
  made.heap = heap();
  made.multi = multi_.data();
  made.rank = rank_;
  made.kind = which;
  made.stride = count;
  made.params = OpParams::of(layout_.ranks, call.factor);
  in_order(call.stream, [&] {
    for (uint64_t begin = 0; begin < count; begin += window) {
      made.elements = std::min(window, count - begin);
      made.input = static_cast<const char*>(call.input) + begin * size;
      made.output = static_cast<char*>(call.output) + begin * size;
      const uint64_t vectors = nvls_vectors(made.elements, kernel.wire_size);
      const uint64_t shard =
          which == NvlsKind::AllReduce ? vectors / static_cast<uint64_t>(layout_.ranks) : vectors;
      const auto used =
          static_cast<int>(std::clamp<uint64_t>(shard / kThreads, 1, static_cast<uint64_t>(layout_.blocks)));
      launch(kernel.kernel, used, made, call.stream);
    }
  });
}

}  // namespace pycoll::cuda
