#include <algorithm>
#include <cstring>
#include <vector>

#include "core/error.h"
#include "cuda/channels.h"
#include "cuda/device_context.h"
#include "cuda/kernels.h"

namespace pycoll::cuda {
namespace {

constexpr int kMessageThreads = 256;
constexpr int kBlocksAtOnce = 3;  // of these a multiprocessor runs at the least

__global__ void __launch_bounds__(kMessageThreads, kBlocksAtOnce)
    messages_kernel(const __grid_constant__ MessageCall call, const uint32_t* aborted) {
  DeviceContext context(aborted);
  run_messages(context, call);
}

}  // namespace

Channels::Channels(const Group& group)
    : group_(group),
      rank_(group.rank()),
      device_(group.device()),
      layout_(MessageLayout::of(group.ranks())),
      peers_(group.device()) {
  const OnDevice here(device_);
  memory_ = DeviceMemory(layout_.bytes());
  // The cells' contents do not matter.
  require(cudaMemset(memory_.data(), 0, layout_.cell(0, 0, 0)), "clear the memory for messages");
  require(cudaDeviceSynchronize(), "clear the memory for messages");
  const size_t bytes = sizeof(MessageReport) * static_cast<size_t>(layout_.ranks);
  require(cudaHostAlloc(reinterpret_cast<void**>(&reports_), bytes, cudaHostAllocMapped),
          "allocate pinned memory");
  std::memset(static_cast<void*>(reports_), 0, bytes);
}

// The group is aborted when this runs, so kernels end.
Channels::~Channels() {
  try {
    const OnDevice here(device_);
    cudaDeviceSynchronize();
    cudaFreeHost(reports_);
  } catch (const Error&) {  // the device is gone, and all memory with it
  }
}

Handle Channels::handle() const {
  const OnDevice here(device_);
  return handle_of(memory_.data(), layout_.bytes(), rank_, device_);
}

void Channels::connect(std::span<const Handle> handles) {
  const OnDevice here(device_);
  std::vector<char*> heaps;
  int most = 1;  // ranks that share a GPU
  for (const Handle& handle : handles) {
    if (handle.bytes != layout_.bytes())
      throw InvalidArgument("rank " + std::to_string(handle.rank) +
                            " has other memory for messages than rank " + std::to_string(rank_));
    heaps.push_back(handle.rank == rank_ ? memory_.data() : peers_.open(handle));
    most = std::max(most,
                    static_cast<int>(std::count_if(handles.begin(), handles.end(), [&](const Handle& other) {
                      return std::memcmp(&handle.gpu, &other.gpu, sizeof(cudaUUID_t)) == 0;
                    })));
  }
  layout_.active = std::max(1, layout_.lanes / most);
  int multiprocessors = 0;
  require(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device_),
          "ask the device");
  const int blocks =
      2 * (layout_.ranks - 1) * layout_.active * most;  // every rank with all others, both ways
  if (blocks > multiprocessors * kBlocksAtOnce)
    throw Unsupported("messages of " + std::to_string(layout_.ranks) + " ranks, " + std::to_string(most) +
                      " of them on a GPU of " + std::to_string(multiprocessors) + " multiprocessors, need " +
                      std::to_string(blocks) + " blocks at once");
  DeviceMemory addresses(heaps.size() * sizeof(char*));
  require(cudaMemcpy(addresses.data(), heaps.data(), heaps.size() * sizeof(char*), cudaMemcpyHostToDevice),
          "copy addresses to the device");
  heaps_ = std::move(addresses);
}

void Channels::run(std::span<const Message> messages, cudaStream_t stream) {
  group_.require_usable();
  if (heaps_.data() == nullptr) throw InvalidArgument("the group's messages are not connected yet");
  if (messages.empty()) return;
  MessageCall call =
      message_call(layout_, reinterpret_cast<char* const*>(heaps_.data()), reports_, rank_, messages);
  const OnDevice here(device_);
  const uint32_t* aborted = group_.aborted();
  void* arguments[] = {&call, &aborted};
  require(cudaLaunchKernel(reinterpret_cast<const void*>(&messages_kernel),
                           dim3(static_cast<unsigned>(call.channels * call.lanes)), dim3(kMessageThreads),
                           arguments, 0, stream),
          "launch messages");
}

std::string Channels::complaint() const {
  for (int peer = 0; peer < layout_.ranks; ++peer)
    if (*const_cast<const volatile uint64_t*>(&reports_[peer].wrong) != 0)
      return text_of(reports_[peer], peer);
  return {};
}

}  // namespace pycoll::cuda
