// torch.distributed's backend "pycoll": c10d's methods in the engine's terms.
#pragma once
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "engine/communicator.h"
#include "torch/allocation.h"
#include "torch/bootstrap.h"
#include "torch/cuda_group.h"
#include "torch/errors.h"
#include "torch/launch.h"
#include "torch/work.h"

namespace pycoll::torch_adapter {

// What torch.distributed.split_group copies.
struct GroupOptions final : c10d::Backend::Options {
  explicit GroupOptions(std::chrono::milliseconds limit) : Options("pycoll", limit) {}
};

class Backend final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  // Meets the other ranks. A failure here is told to them, so that they raise at once an error that names it.
  // `accelerator`: the device that it serves beside the CPU.
  static c10::intrusive_ptr<Backend> create(const Rendezvous& rendezvous,
                                            std::shared_ptr<const Accelerator> accelerator);
  Backend(Joined joined, Rendezvous rendezvous,
          std::shared_ptr<const Accelerator> accelerator);  // for create(), which shutdown_all() knows of
  ~Backend() override;

  // collectives.cpp. A synchronous call runs on the caller's thread and returns null, as c10d allows.
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) override;
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override;
  WorkPtr barrier(const c10d::BarrierOptions& opts) override;

  // cuda_calls.cpp. Opens the group for CUDA tensors, as its first call on one does.
  void eagerConnectSingleDevice(at::Device device) override;

  // CudaGroup's, of a device whose group is opened if it is not yet.
  void share_pool(at::Device device);

  // sparse.cpp
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) override;

  // collectives_of_shards.cpp
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& opts) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& opts) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& opts) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& opts) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& opts) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& opts) override;
  // torch 2.14 and newer call it.
  WorkPtr gather_single(at::Tensor& output, at::Tensor& input, const c10d::GatherOptions& opts);
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& opts) override;

  // all_to_all.cpp
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& opts) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override;

  // point_to_point.cpp
  WorkPtr send(Tensors& tensors, int destination, int tag) override;
  WorkPtr recv(Tensors& tensors, int source, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

  // monitored_barrier.cpp
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) override;

  // membership.cpp
  bool supportsSplitting() const override { return true; }
  bool supportsShrinking() const override { return true; }
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                          const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<Options>& opts) override;
  c10::intrusive_ptr<c10d::Backend> merge(const c10::intrusive_ptr<c10d::Store>& store,
                                          const c10::intrusive_ptr<Options>& opts, const int& rank,
                                          const int& size) override;
  c10::intrusive_ptr<c10d::Backend> shrink(const std::vector<int64_t>& excluded, int flags,
                                           const c10::intrusive_ptr<Options>& opts) override;

  // backend.cpp
  bool supportsCoalescing() const override { return true; }  // of batch_isend_irecv
  void startCoalescing() override;
  WorkPtr endCoalescing() override;
  const std::string getBackendName() const override { return "pycoll"; }
  // A copy: torch writes the name and timeout of a group that it splits off into it.
  c10::intrusive_ptr<Options> getBackendOptions() override {
    return c10::make_intrusive<GroupOptions>(*options_);
  }
  void setTimeout(std::chrono::milliseconds timeout) override;
  void setSequenceNumberForGroup() override {}  // the engine counts by itself
  uint64_t getSequenceNumberForGroup() override { return called_; }
  void abort() override;
  // Leaves the group, after a short while for works that are still under way.
  void shutdown() override;

  // allocation.cpp. In the group's shared memory, which is kept for further tensors of the size.
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;
  bool supportsTensorAlloc(c10::DeviceIndex device) override { return device == -1; }  // the CPU's index
  // Moves the storage, and with it every tensor that shares it, into the group's shared memory, in place, as
  // Tensor.share_memory_() does into torch's. Does nothing where it lies there already.
  void move_to_shared_memory(const at::Tensor& tensor);
  const Communicator& communicator() const { return *communicator_; }

  // Called with the last strong reference: the destructor waits for the weak one of shutdown_all().
  void release_resources() override { leave_for_good(); }

  // Leaves every group of this process; for its exit.
  static void shutdown_all();

 private:
  void leave_for_good();
  struct Message {
    void* data;
    size_t bytes;
  };

  // What every call of the backend that may take part in coalescing runs in: its errors are torch's, and end
  // the coalescing, for torch's coalescing manager then leaves without endCoalescing().
  template <class Method>
  auto calling(Method&& method) {
    return translating_errors([&] {
      try {
        return method();
      } catch (...) {
        give_up_coalescing();
        throw;
      }
    });
  }
  void give_up_coalescing() noexcept;
  void require_one_device(const Launch& launch);  // while coalescing
  WorkPtr start(Launch& launch, bool async, at::TensorList results);
  std::shared_ptr<CudaGroup> gpus() const;  // null before the first call on CUDA tensors
  std::shared_ptr<CudaGroup> open_gpus(c10::Device device, const char* what);
  using CudaMessages = std::vector<pycoll_cuda_message>;
  WorkPtr start_on_device(Launch& launch, bool async, at::TensorList results,
                          const CudaMessages& messages = {}, std::chrono::milliseconds limit = kNoTimeout);
  WorkPtr finish_on_device(c10::intrusive_ptr<CudaWork> work, bool async, std::exception_ptr error);
  WorkPtr message_on_device(const TorchCall& what, Tensors& tensors, bool sends, int peer, int tag);
  void seal_on_device(CudaWork& work);
  void wait_for_gpus(const c10d::BarrierOptions& opts);
  // Notes the call in the flight recorder, where there is one. `called`: the collective's number.
  void note(Launch& launch, at::TensorList results, uint64_t called);
  void note_message(Launch& launch, at::TensorList tensors, bool sent, int peer, int tag);
  WorkPtr finish(c10::intrusive_ptr<AsyncWork> work, bool async);
  c10::intrusive_ptr<AsyncWork> new_work(const Launch& launch, bool awaited = true);
  WorkPtr receive(const TorchCall& what, Tensors& tensors, int source, int tag);
  const at::Tensor& only(const Tensors& tensors, const TorchCall& what) const;
  int root_of(int64_t root, const TorchCall& what) const;
  const Tensors& only_list(const std::vector<Tensors>& lists, const TorchCall& what) const;
  void add_all_gather(Launch& launch, const at::Tensor& output, const at::Tensor& input,
                      const c10d::AllgatherOptions& opts);
  void add_reduce_scatter(Launch& launch, const at::Tensor& output, const at::Tensor& input,
                          const c10d::ReduceScatterOptions& opts);
  WorkPtr sparse_all_reduce(const at::Tensor& tensor, const c10d::AllreduceOptions& opts);
  void watch_barrier(std::chrono::milliseconds limit, uint64_t tag, bool wait_all_ranks);
  void pass_watched_barrier(std::chrono::milliseconds limit, uint64_t tag);
  CommunicatorOptions options_for(const std::string& key, const c10::intrusive_ptr<Options>& opts) const;
  c10::intrusive_ptr<c10d::Backend> derive(const std::string& how, const std::vector<int>& members,
                                           const c10::intrusive_ptr<Options>& opts);
  WorkPtr exchange(Launch launch, std::vector<Message> sends, const std::vector<Message>& receives,
                   DType dtype, at::TensorList results, const c10d::AllToAllOptions& opts);
  WorkPtr exchange_on_device(Launch launch, std::vector<Message> sends, const std::vector<Message>& receives,
                             DType dtype, at::TensorList results, const c10d::AllToAllOptions& opts);

  std::shared_ptr<Communicator> communicator_;
  KnownPeers::Lesson peers_;
  const Rendezvous rendezvous_;  // where groups made from this one meet
  std::shared_ptr<BufferPool> pool_ = std::make_shared<BufferPool>(communicator_);
  std::shared_ptr<GroupWorks> works_ = std::make_shared<GroupWorks>();
  c10::intrusive_ptr<GroupOptions> options_;
  c10::intrusive_ptr<AsyncWork> coalescing_;  // collects what is called between start- and endCoalescing
  c10::intrusive_ptr<CudaWork> coalescing_on_device_;
  bool collects_on_device_ = false;  // collectives too, not messages alone
  struct KeptMessage {
    pycoll_cuda_message message;
    Launch launch;
    Tensors tensors;
  };
  std::vector<KeptMessage> kept_messages_;
  std::optional<c10::Device> coalescing_device_;
  bool coalescing_failed_ = false;
  const std::shared_ptr<const Accelerator> accelerator_;
  std::mutex opening_mutex_;
  mutable std::mutex gpus_mutex_;
  std::shared_ptr<CudaGroup> gpus_;
  const EnterDevice enter_device_;
  // All_to_alls by messages so far, for their tags; counted while none of the group's other collectives runs.
  std::shared_ptr<uint64_t> exchanges_ = std::make_shared<uint64_t>(0);
  std::atomic<uint64_t> monitored_barriers_{0};
  std::map<std::string, int> derived_;  // how many groups were split or shrunk from this, by their ranks
  // Collectives that were called, which all ranks count alike; the engine's own number moves as they run.
  std::atomic<uint64_t> called_{0};
  std::shared_ptr<FlightGroup> flight_group_;  // null: no flight recorder
  std::atomic<uint64_t> messages_{0};          // that it has
  std::atomic<bool> left_{false};
  const int process_;  // a forked child has no part in the group
};

}  // namespace pycoll::torch_adapter
