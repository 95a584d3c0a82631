// From torch's tensors to the engine's pointers. A Launch is what one call of torch becomes: engine calls in
// order, the tensors that must live until they are done, and the values to write back into tensors of other
// layouts.
#pragma once
#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/SmallVector.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "engine/communicator.h"
#include "torch/flight_recorder.h"

namespace pycoll::torch_adapter {

// One of torch's collectives, as people and profilers know it.
struct TorchCall {
  c10d::OpType type;
  const char* title;                              // "pycoll:all_reduce", as a profiler shows it
  const char* name() const { return title + 7; }  // "all_reduce", as errors say it
};

void require_dense(const at::Tensor& tensor, const TorchCall& what);  // TypeError
// The engine's dtype. One that it lacks moves as bytes, but cannot be reduced (DistError).
DType dtype_of(const at::Tensor& tensor, const TorchCall& what, bool reduced);
void require_same_dtype(const at::Tensor& a, const at::Tensor& b, const TorchCall& what);  // TypeError
void require_same_dtype(at::TensorList tensors, const TorchCall& what);
void require(bool condition, const TorchCall& what, const std::string& message);  // ValueError

// "2 tensors of 3, 5 elements": what ranks must agree on where these travel as one buffer.
std::shared_ptr<const std::string> sizes_in_words(at::TensorList tensors);

// torch's "not set" is any timeout that is not positive.
std::optional<Nanoseconds> timeout_from(std::chrono::milliseconds timeout);

// Tensors of a device other than the CPU's: gives the stream on which their group works, which from then on
// waits for what is on the current one. Throws Unsupported where the device is not served.
using EnterDevice = std::function<c10::Stream(c10::Device device, const TorchCall& what)>;

class Launch {
 public:
  // `shown`: the tensors whose shapes a profiler shows as inputs.
  // `enter`: of a call that takes tensors of other devices too; it must outlive the call. The first such
  // tensor makes the device's stream the current one, until leave_device().
  explicit Launch(const TorchCall& what, at::TensorList shown = {}, const EnterDevice* enter = nullptr);

  const TorchCall& what() const { return *what_; }
  const std::vector<at::Tensor>& shown() const { return shown_; }
  // Where its tensors are; the CPU until one is known to be elsewhere.
  c10::Device device() const { return device_.value_or(c10::Device(c10::DeviceType::CPU)); }
  void leave_device() { on_stream_ = nullptr; }

  // Adds a call of the engine. It points at nothing yet. The reference holds until the next add().
  CollectiveCall& add(CollectiveKind kind, const at::Tensor& like, size_t count,
                      std::chrono::milliseconds timeout);
  void set_op(CollectiveCall& call, const c10d::ReduceOp& op) const;

  // Addresses of a tensor's values in logical order: the tensor's own where it is laid out so, else a copy.
  const void* read(const at::Tensor& tensor);  // values go in
  void* write(const at::Tensor& tensor);       // values come out; ValueError if its elements overlap
  void* update(const at::Tensor& tensor);      // both

  // The same for many tensors seen as one buffer, one after another; of one dtype.
  const void* read_all(at::TensorList tensors);
  void* write_all(at::TensorList tensors);
  void* update_all(at::TensorList tensors);

  // Scratch that lives as long as the launch.
  at::Tensor scratch(int64_t elements, const at::TensorOptions& options);

  FlightEntry flight;

  // Called when all went well, for results that are more than bytes in place.
  std::function<void()> conclude;

  // Writes results into the tensors whose layout kept the engine from writing there itself; concludes.
  void write_back();

  // Ranks whose calls are as many, of the same sizes, are told so from the first of them on.
  void name_parts();

  // What the engine is to run, in order.
  c10::SmallVector<CollectiveCall, 1> calls;

 private:
  struct CopyBack {
    at::Tensor destination, source;
  };
  enum class Direction { In, Out, Both };
  void* flat(at::TensorList tensors, Direction direction);
  void use(const at::Tensor& tensor);

  const TorchCall* what_;
  const EnterDevice* enter_;
  std::optional<c10::Device> device_;
  std::unique_ptr<c10::StreamGuard> on_stream_;
  std::vector<at::Tensor> shown_;  // empty where nobody looks
  bool pairs_ = false;             // the call added last reduces complex numbers by their parts
  c10::SmallVector<at::Tensor, 4> held_;
  c10::SmallVector<CopyBack, 2> copies_;
};

}  // namespace pycoll::torch_adapter
