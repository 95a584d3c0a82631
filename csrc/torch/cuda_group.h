// The GPUs of a process group: opened by all ranks together at the first CUDA tensor, on the CPU's
// communicator.
#pragma once
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/communicator.h"
#include "torch/cuda_library.h"
#include "torch/cuda_stream.h"
#include "torch/cuda_watchdog.h"
#include "torch/cuda_ways.h"

namespace pycoll::torch_adapter {

class CudaGroup {
 public:
  // Collective. Where it fails on any rank it throws on every one, and names it.
  CudaGroup(std::shared_ptr<Communicator> communicator, const Accelerator& accelerator, c10::Device device);
  ~CudaGroup();

  c10::Device device() const { return device_; }
  c10::Stream stream() const { return stream_->stream(); }
  c10::Stream current_stream() const { return guard_.getStream(device_); }
  CudaWatchdog& watchdog() { return *watchdog_; }

  // Makes one of the group's streams wait for what is on the current one by now. Throws why the group cannot
  // be used with a rank, or, without, with any.
  void follow_current_stream(const c10::Stream& stream, std::optional<int> peer = std::nullopt);
  // Puts a collective on the group's stream. Unsupported for what the kernels do not have.
  void run(const CollectiveCall& call);
  // Whether what is put on a stream of the group now becomes part of a graph.
  bool capturing(const c10::Stream& stream) { return captures(handle_of(stream)); }

  // Messages. Those that go one by one have a stream for each peer and direction, so that none waits for
  // another; those that go at once have one.
  c10::Stream message_stream(int peer, bool sends);
  c10::Stream batch_stream();
  // Puts messages on a stream, all at once and after those before of the same peers and directions.
  // Unsupported where the group has none.
  void put(std::span<const pycoll_cuda_message> messages, const c10::Stream& stream);
  // Makes a stream wait for what is on another by now.
  void join(const c10::Stream& stream, const c10::Stream& after);

  // Lets peers map the segments that this process's pools have taken. Collective; where it fails on any rank
  // it throws on every one.
  void share_pool();

  // Waits for this rank's works, and for what other ranks still do with this rank's memory; frees everything.
  void leave(Nanoseconds limit);

 private:
  std::vector<std::string> together(const std::function<std::string()>& step);
  void open(const Accelerator& accelerator);
  void open_messages();
  void free();
  bool captures(void* stream) const;
  void stop_kernels();
  void require_open() const;
  const CudaStream& special_stream(int number);  // by channel, or kBatch
  void* handle_of(const c10::Stream& stream);
  uint64_t capture_of(const c10::Stream& stream);
  std::string complaint();
  bool takes(int kernel, const CollectiveCall& call) const;
  std::optional<int> small_kernel(const CollectiveCall& call) const;
  void run_kernel(int kernel, const CollectiveCall& call);
  void run_plan(int32_t plan, const CollectiveCall& call);
  bool run_by_table(const CollectiveCall& call);
  int32_t plan(CollectiveKind kind, int root);
  int32_t plan_of_way(const std::string& way);
  int32_t add_plan(const Schedule& schedule, bool finds_late);
  void require_not_capturing(const std::string& what) const;

  const std::shared_ptr<Communicator> communicator_;
  const c10::Device device_;
  const c10::impl::VirtualGuardImpl guard_;
  const std::function<void*(const c10::Stream&)> native_handle_;
  std::shared_ptr<const CudaLibrary> library_;
  std::unique_ptr<CudaStream> stream_;

  std::mutex mutex_;        // one thread at a time uses the group
  std::mutex abort_mutex_;  // which any thread may
  pycoll_cuda_group* group_ = nullptr;
  c10::Event called_;
  std::map<std::pair<CollectiveKind, int>, int32_t> plans_;  // by root

  std::vector<CudaWay> ways_;  // of all_reduce; what none covers goes by fixed bounds
  std::map<std::string, int32_t> plans_of_ways_;

  // Where the last messages of a channel were put, which those after must follow.
  struct LastUse {
    c10::Event end;
    c10::Stream stream;
    uint64_t capture;
  };
  std::string why_no_messages_;
  std::mutex streams_mutex_;
  std::map<int, std::unique_ptr<CudaStream>> special_streams_;
  std::map<int, LastUse> last_uses_;  // by channel
  std::unique_ptr<CudaWatchdog> watchdog_;
};

}  // namespace pycoll::torch_adapter
