// The fake GPU as a device of torch's: its streams and events, its memory, and just enough operators. All
// that is not here runs on the CPU, which waits for the current stream as any .cpu() does.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_cpu_dispatch.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <cstdlib>
#include <cstring>

#include "streams.h"

namespace fake_gpu {
namespace {

constexpr auto kType = c10::DeviceType::PrivateUse1;

c10::Device device_of(int index) {
  return c10::Device(kType, c10::DeviceIndex(index));
}
c10::Stream torchs(int64_t id) {
  return c10::Stream(c10::Stream::UNSAFE, device_of(int(id / kStreams)), id);
}
int index_of(c10::Device device) {
  return device.has_index() ? device.index() : current_device;
}
Stream& ours(const c10::Stream& stream) {
  return *streams()[size_t(stream.id())];
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return device_of(std::exchange(current_device, index_of(device)));
  }
  c10::Device getDevice() const override { return device_of(current_device); }
  void setDevice(c10::Device device) const override { current_device = index_of(device); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current_device = index_of(device); }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

  c10::Stream getStream(c10::Device device) const override { return torchs(current_ids[index_of(device)]); }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return torchs(int64_t(index_of(device)) * kStreams);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    static std::atomic<size_t> next{0};
    return torchs(int64_t(index_of(device)) * kStreams + int64_t(1 + next++ % (kStreams - 1)));
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return getStreamFromGlobalPool(device, false);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return torchs(std::exchange(current_ids[stream.device_index()], stream.id()));
  }
  bool queryStream(const c10::Stream& stream) const override {
    forbid_while_capturing("asking for a stream");
    return ours(stream).reached(ours(stream).position());
  }
  void synchronizeStream(const c10::Stream& stream) const override { ours(stream).synchronize(); }
  bool isStreamCapturing(const c10::Stream& stream) const { return ours(stream).graph != nullptr; }
  void synchronizeDevice(c10::DeviceIndex) const override {
    for (Stream* stream : streams()) stream->synchronize();
  }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) *event = new Event;
    fake_gpu::record(*static_cast<Event*>(*event), ours(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) fake_gpu::block(*static_cast<Event*>(event), ours(stream));
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || query(*static_cast<Event*>(event));
  }
  void synchronizeEvent(void* event) const override {
    forbid_while_capturing("waiting for an event");
    const Event& what = *static_cast<Event*>(event);
    if (what.stream != nullptr) what.stream->wait_for(what.position);
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// Memory belongs to the stream on which it was taken. What is let go of is soon something else's, which that
// stream may write as soon as it comes to it: here it writes rubbish.
struct Block {
  void* data;
  size_t bytes;
  Stream* stream;
};

void let_go(void* context) {
  auto* const block = static_cast<Block*>(context);
  if (capture_under_way.load() == nullptr && block->stream->graph == nullptr)
    block->stream->put([data = block->data, bytes = block->bytes] { std::memset(data, 0xAB, bytes); });
  delete block;  // its data stays, so that whoever still reads it finds the rubbish
}

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* const data = std::aligned_alloc(64, (std::max<size_t>(bytes, 1) + 63) / 64 * 64);
    return {data, new Block{data, bytes, &current()}, &let_go, device_of(current_device)};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    current().synchronize();
    default_copy_data(to, from, bytes);
  }
};
Memory memory;
REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &memory);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  at::Device getDeviceFromPtr(void*) const override { return device_of(current_device); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    current().synchronize();
    c10::DataPtr data = memory.allocate(bytes);
    if (storage.nbytes() > 0) std::memcpy(data.get(), storage.data(), std::min(bytes, storage.nbytes()));
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(data));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
};

// What a tensor's elements are, without keeping them: a GPU does not keep a tensor alive either.
struct Elements {
  void* data;
  std::vector<int64_t> sizes, strides;
  at::ScalarType dtype;

  explicit Elements(const at::Tensor& tensor)
      : data(tensor.numel() > 0 ? const_cast<void*>(tensor.const_data_ptr()) : nullptr),
        sizes(tensor.sizes().vec()),
        strides(tensor.strides().vec()),
        dtype(tensor.scalar_type()) {}
  at::Tensor tensor() const { return at::from_blob(data, sizes, strides, at::TensorOptions().dtype(dtype)); }
};

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device> device, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard there(device);
  return at::detail::empty_generic(size, &memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   dtype.value_or(at::kFloat), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  const c10::OptionalDeviceGuard there(device);
  return at::detail::empty_strided_generic(
      size, stride, &memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), dtype.value_or(at::kFloat));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  const c10::DeviceGuard there(to.is_cpu() ? from.device() : to.device());
  if (to.is_cpu()) {
    current().synchronize();
    at::Tensor(to).copy_(Elements(from).tensor());
  } else if (from.is_cpu()) {
    current().put([staged = from.clone(), to = Elements(to)] { to.tensor().copy_(staged); });
  } else {
    current().put([from = Elements(from), to = Elements(to)] { to.tensor().copy_(from.tensor()); });
  }
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  at::Tensor(to).resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Tensor& fill(at::Tensor& self, const at::Scalar& value) {
  const c10::DeviceGuard there(self.device());
  current().put([to = Elements(self), value] { to.tensor().fill_(value); });
  return self;
}

at::Tensor& zero(at::Tensor& self) {
  return fill(self, 0);
}

at::Tensor as_strided(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride,
                      std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}
at::Tensor view(const at::Tensor& self, at::IntArrayRef size) {
  return at::native::view(self, size);
}
at::Tensor reshape_alias(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride) {
  return at::native::_reshape_alias(self, size, stride);
}
const at::Tensor& resize(const at::Tensor& self, at::IntArrayRef size,
                         std::optional<at::MemoryFormat> format) {
  return at::native::resize_(self, size, format);
}
at::Tensor& set_storage(at::Tensor& self, at::Storage storage, int64_t offset, at::IntArrayRef size,
                        at::IntArrayRef stride) {
  return at::cpu::set_(self, storage, offset, size, stride);
}
at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  return at::native::set_tensor_(self, source);
}

void on_the_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("fill_.Scalar", fill);
  m.impl("zero_", zero);
  m.impl("as_strided", as_strided);
  m.impl("view", view);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("resize_", resize);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("set_.source_Tensor", set_tensor);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_the_cpu>());
}

}  // namespace

void register_hooks() {
  at::RegisterPrivateUse1HooksInterface(new Hooks);
}

}  // namespace fake_gpu
