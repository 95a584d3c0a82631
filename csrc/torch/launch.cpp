#include "torch/launch.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <vector>

#include "core/error.h"
#include "torch/older_torch.h"

namespace pycoll::torch_adapter {
namespace {

std::optional<DType> engine_dtype(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return DType::Float32;
    case at::kDouble:
      return DType::Float64;
    case at::kHalf:
      return DType::Float16;
    case at::kBFloat16:
      return DType::BFloat16;
    case at::kFloat8_e4m3fn:
      return DType::Float8E4M3FN;
    case at::kFloat8_e5m2:
      return DType::Float8E5M2;
    case at::kChar:
      return DType::Int8;
    case at::kShort:
      return DType::Int16;
    case at::kInt:
      return DType::Int32;
    case at::kLong:
      return DType::Int64;
    case at::kByte:
      return DType::UInt8;
    case at::kUInt16:
      return DType::UInt16;
    case at::kUInt32:
      return DType::UInt32;
    case at::kUInt64:
      return DType::UInt64;
    case at::kBool:
      return DType::Bool;
    case at::kComplexFloat:
      return DType::Complex64;
    case at::kComplexDouble:
      return DType::Complex128;
    default:
      return std::nullopt;
  }
}

// The values in memory are the tensor's, in logical order (a conjugate or negated view holds others).
bool is_plain(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

// Whether every element has an address of its own. Dimensions by growing stride, each must step over all
// that the smaller ones reach; what fails this (expand(), unfold()) we do not write.
bool elements_are_distinct(const at::Tensor& tensor) {
  if (tensor.numel() <= 1 || tensor.is_non_overlapping_and_dense()) return true;
  std::vector<std::pair<int64_t, int64_t>> dims;  // stride, size
  for (int64_t d = 0; d < tensor.dim(); ++d)
    if (tensor.size(d) > 1) dims.emplace_back(tensor.stride(d), tensor.size(d));
  std::sort(dims.begin(), dims.end());
  int64_t reach = 0;
  for (auto [stride, size] : dims) {
    if (stride <= reach) return false;
    reach += stride * (size - 1);
  }
  return true;
}

bool follow_each_other(at::TensorList tensors) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!is_plain(tensors[i])) return false;
    if (i == 0) continue;
    const at::Tensor& before = tensors[i - 1];
    if (!tensors[i].storage().is_alias_of(before.storage()) ||
        tensors[i].storage_offset() != before.storage_offset() + before.numel())
      return false;
  }
  return true;
}

int64_t total_elements(at::TensorList tensors) {
  int64_t total = 0;
  for (const at::Tensor& tensor : tensors) total += tensor.numel();
  return total;
}

std::shared_ptr<const std::string> in_words(const std::vector<size_t>& sizes) {
  std::string text = std::to_string(sizes.size()) + " tensors of ";
  for (size_t i = 0; i < sizes.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(sizes[i]);
  return std::make_shared<const std::string>(text + " elements");
}

}  // namespace

void require(bool condition, const TorchCall& what, const std::string& message) {
  if (!condition) C10_THROW_ERROR(ValueError, std::string("pycoll ") + what.name() + ": " + message);
}

void require_dense(const at::Tensor& tensor, const TorchCall& what) {
  if (tensor.defined() && tensor.layout() == at::kStrided) return;
  std::string found = "an undefined tensor";
  if (tensor.defined())
    found = c10::str("a tensor of layout ", tensor.layout(), "; convert it with .to_dense()");
  C10_THROW_ERROR(TypeError, std::string("pycoll ") + what.name() + " takes dense tensors, got " + found);
}

DType dtype_of(const at::Tensor& tensor, const TorchCall& what, bool reduced) {
  require_dense(tensor, what);
  if (auto dtype = engine_dtype(tensor.scalar_type())) return *dtype;
  if (!reduced) return DType::UInt8;
  throw Unsupported(std::string("pycoll ") + what.name() + " does not support dtype " +
                    c10::toString(tensor.scalar_type()));
}

void require_same_dtype(const at::Tensor& a, const at::Tensor& b, const TorchCall& what) {
  require_dense(a, what);
  require_dense(b, what);
  if (a.scalar_type() == b.scalar_type()) return;
  C10_THROW_ERROR(TypeError, c10::str("pycoll ", what.name(), ": all tensors must have one dtype, got ",
                                      a.scalar_type(), " and ", b.scalar_type()));
}

void require_same_dtype(at::TensorList tensors, const TorchCall& what) {
  for (const at::Tensor& tensor : tensors) require_same_dtype(tensors.front(), tensor, what);
}

std::shared_ptr<const std::string> sizes_in_words(at::TensorList tensors) {
  std::vector<size_t> sizes;
  for (const at::Tensor& tensor : tensors) sizes.push_back(size_t(tensor.numel()));
  return in_words(sizes);
}

std::optional<Nanoseconds> timeout_from(std::chrono::milliseconds timeout) {
  if (timeout.count() <= 0) return std::nullopt;
  return timeout;
}

Launch::Launch(const TorchCall& what, at::TensorList shown, const EnterDevice* enter)
    : what_(&what), enter_(enter) {
  if (at::hasCallbacks() || FlightRecorder::get()) shown_ = shown.vec();
}

CollectiveCall& Launch::add(CollectiveKind kind, const at::Tensor& like, size_t count,
                            std::chrono::milliseconds timeout) {
  CollectiveCall& call = calls.emplace_back();
  call.kind = kind;
  call.caller = what_->name();
  pairs_ = is_reduction(kind) && like.scalar_type() == at::kComplexHalf;
  call.dtype = pairs_ ? DType::Float16 : dtype_of(like, *what_, is_reduction(kind));
  if (pairs_) require_dense(like, *what_);
  const size_t each = pairs_ ? 2 : engine_dtype(like.scalar_type()) ? 1 : like.itemsize();
  call.count = count * each;
  // As bytes, two dtypes that the engine lacks would look alike.
  if (!pairs_ && !engine_dtype(like.scalar_type()))
    call.parts =
        std::make_shared<const std::string>(std::string(c10::toString(like.scalar_type())) + " elements");
  call.timeout = timeout_from(timeout);
  return call;
}

void Launch::name_parts() {
  if (calls.size() < 2) return;
  std::vector<size_t> sizes;
  for (const CollectiveCall& call : calls) sizes.push_back(call.count);
  const auto parts = in_words(sizes);
  for (CollectiveCall& call : calls) call.parts = parts;
}

void Launch::set_op(CollectiveCall& call, const c10d::ReduceOp& op) const {
  if (pairs_ && op.op_ != c10d::ReduceOp::SUM && op.op_ != c10d::ReduceOp::AVG &&
      op.op_ != c10d::ReduceOp::PREMUL_SUM)
    throw Unsupported(std::string("pycoll ") + what_->name() +
                      " of dtype ComplexHalf takes SUM, AVG and PREMUL_SUM only");
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      call.op = Op::Sum;
      return;
    case c10d::ReduceOp::AVG:
      call.op = Op::Avg;
      return;
    case c10d::ReduceOp::PRODUCT:
      call.op = Op::Prod;
      return;
    case c10d::ReduceOp::MIN:
      call.op = Op::Min;
      return;
    case c10d::ReduceOp::MAX:
      call.op = Op::Max;
      return;
    case c10d::ReduceOp::BAND:
      call.op = Op::BitAnd;
      return;
    case c10d::ReduceOp::BOR:
      call.op = Op::BitOr;
      return;
    case c10d::ReduceOp::BXOR:
      call.op = Op::BitXor;
      return;
    case c10d::ReduceOp::PREMUL_SUM: {
      const auto* supplement = static_cast<const PremulSumSupplement*>(op.supplement_.get());
      require(supplement != nullptr, *what_, "ReduceOp.PREMUL_SUM needs a factor");
      call.op = Op::PremulSum;
      call.factor = supplement->tensor_factor.defined() ? supplement->tensor_factor.item<double>()
                                                        : supplement->double_factor;
      return;
    }
    default:
      break;
  }
  throw Unsupported(std::string("pycoll ") + what_->name() + " does not support this ReduceOp (number " +
                    std::to_string(int(op.op_)) + ")");
}

void Launch::use(const at::Tensor& tensor) {
  require_dense(tensor, *what_);
  const c10::Device device = tensor.device();
  if (!device_) {
    if (!device.is_cpu()) {
      if (enter_ == nullptr)
        throw Unsupported(c10::str("pycoll ", what_->name(), " takes CPU tensors, got one on ", device,
                                   "; move it with .cpu(), or give CUDA tensors to NCCL: "
                                   "init_process_group(\"cpu:pycoll,cuda:nccl\")"));
      on_stream_ = std::make_unique<c10::StreamGuard>((*enter_)(device, *what_));
    }
    device_ = device;
  }
  if (device != *device_)
    C10_THROW_ERROR(TypeError, c10::str("pycoll ", what_->name(), ": all tensors must be on one device, got ",
                                        *device_, " and ", device));
}

const void* Launch::read(const at::Tensor& tensor) {
  use(tensor);
  if (is_plain(tensor)) {
    held_.push_back(tensor);
    return tensor.const_data_ptr();
  }
  at::AutoDispatchBelowADInplaceOrView no_autograd;
  at::Tensor copy = at::empty(tensor.sizes(), tensor.options());
  copy.copy_(tensor);
  if (on_stream_) held_.push_back(tensor);  // it is only being copied
  held_.push_back(copy);
  return held_.back().const_data_ptr();
}

void* Launch::write(const at::Tensor& tensor) {
  return flat(tensor, Direction::Out);
}
void* Launch::update(const at::Tensor& tensor) {
  return flat(tensor, Direction::Both);
}

const void* Launch::read_all(at::TensorList tensors) {
  if (tensors.size() == 1) return read(tensors[0]);
  if (!follow_each_other(tensors)) return flat(tensors, Direction::In);
  use(tensors[0]);
  held_.push_back(tensors[0]);
  return tensors[0].const_data_ptr();
}

void* Launch::write_all(at::TensorList tensors) {
  return flat(tensors, Direction::Out);
}
void* Launch::update_all(at::TensorList tensors) {
  return flat(tensors, Direction::Both);
}

void* Launch::flat(at::TensorList tensors, Direction direction) {
  for (const at::Tensor& tensor : tensors) {
    use(tensor);
    require(direction == Direction::In || elements_are_distinct(tensor), *what_,
            "several elements of the output tensor share one place in memory (as after expand()); pass "
            ".contiguous() or .clone()");
  }
  if (tensors.empty()) return nullptr;
  if (follow_each_other(tensors)) {
    held_.push_back(tensors[0]);
    return tensors[0].mutable_data_ptr();
  }
  at::AutoDispatchBelowADInplaceOrView no_autograd;
  at::Tensor buffer = scratch(total_elements(tensors), tensors[0].options());
  int64_t begin = 0;
  for (const at::Tensor& tensor : tensors) {
    at::Tensor part = buffer.narrow(0, begin, tensor.numel()).view(tensor.sizes());
    begin += tensor.numel();
    if (direction != Direction::Out) part.copy_(tensor);
    if (direction == Direction::In && on_stream_) held_.push_back(tensor);
    if (direction != Direction::In) copies_.push_back({tensor, part});
  }
  return buffer.mutable_data_ptr();
}

at::Tensor Launch::scratch(int64_t elements, const at::TensorOptions& options) {
  at::Tensor buffer = at::empty({elements}, options.requires_grad(false).memory_format(std::nullopt));
  held_.push_back(buffer);
  return buffer;
}

void Launch::write_back() {
  if (copies_.empty() && !conclude) return;
  at::AutoDispatchBelowADInplaceOrView no_autograd;
  if (conclude) conclude();
  for (CopyBack& copy : copies_) copy.destination.copy_(copy.source);
}

}  // namespace pycoll::torch_adapter
