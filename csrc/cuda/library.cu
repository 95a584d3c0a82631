// The C interface: checks what comes in, and turns exceptions into a status and a text.
#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <string>

#include "core/error.h"
#include "cuda/api.h"
#include "cuda/channels.h"
#include "cuda/cuda_driver.h"
#include "cuda/group.h"
#include "schedule/verify.h"

struct pycoll_cuda_group {
  pycoll_cuda_group(const pycoll_cuda_options& options, pycoll::cuda::MemoryKind kind)
      : group(options, kind) {}
  ~pycoll_cuda_group() { group.abort(); }  // kernels that wait for a peer end before memory goes
  pycoll::cuda::Group group;
  std::unique_ptr<pycoll::cuda::Channels> channels;
};

namespace {

using namespace pycoll;
using namespace pycoll::cuda;

thread_local std::string last_error;

template <class Body>
int guarded(const Body& body) {
  try {
    body();
    return PYCOLL_CUDA_OK;
  } catch (const InvalidArgument& error) {
    last_error = error.what();
    return PYCOLL_CUDA_INVALID;
  } catch (const ScheduleError& error) {
    last_error = error.what();
    return PYCOLL_CUDA_INVALID;
  } catch (const Unsupported& error) {
    last_error = error.what();
    return PYCOLL_CUDA_UNSUPPORTED;
  } catch (const std::bad_alloc&) {
    last_error = "out of memory";
    return PYCOLL_CUDA_FAILED;
  } catch (const std::exception& error) {
    last_error = error.what();
    return PYCOLL_CUDA_FAILED;
  }
}

Group& of(pycoll_cuda_group* group) {
  if (group == nullptr) throw InvalidArgument("no group was given");
  return group->group;
}

Channels& channels_of(pycoll_cuda_group* group) {
  of(group);
  if (!group->channels) throw InvalidArgument("the group has no messages: pycoll_cuda_messages_open");
  return *group->channels;
}

// Of every rank one.
template <class T>
std::vector<T> received(const Group& group, const void* bytes) {
  std::vector<T> all(static_cast<size_t>(group.ranks()));
  std::memcpy(static_cast<void*>(all.data()), bytes, all.size() * sizeof(T));
  return all;
}

template <class Enum>
Enum checked(int32_t value, Enum last, const char* what) {
  if (value < 0 || value > static_cast<int32_t>(last))
    throw InvalidArgument("there is no " + std::string(what) + " " + std::to_string(value));
  return static_cast<Enum>(value);
}

Group::Call call_of(int32_t dtype, int32_t op, double factor, const void* input, void* output, uint64_t count,
                    void* stream) {
  return {.dtype = checked(dtype, DType::Complex128, "dtype"),
          .op = checked(op, Op::PremulSum, "op"),
          .factor = factor,
          .input = input,
          .output = output,
          .count = count,
          .stream = static_cast<cudaStream_t>(stream)};
}

}  // namespace

extern "C" {

int pycoll_cuda_abi(void) {
  return PYCOLL_CUDA_ABI;
}

const char* pycoll_cuda_error(void) {
  return last_error.c_str();
}

int pycoll_cuda_device_count(int32_t* count) {
  return guarded([&] {
    int devices = 0;
    const cudaError_t status = cudaGetDeviceCount(&devices);
    if (status == cudaErrorInsufficientDriver)
      throw Error(
          "CUDA finds no NVIDIA driver here, or one that is older than it needs (nvidia-smi says which)");
    require(status, "find a GPU");
    *count = devices;
  });
}

int pycoll_cuda_device_info(int32_t device, pycoll_cuda_device* info) {
  return guarded([&] {
    cudaDeviceProp properties{};
    require(cudaGetDeviceProperties(&properties, device), "describe device " + std::to_string(device));
    *info = {};
    std::strncpy(info->name, properties.name, sizeof(info->name) - 1);
    info->major = properties.major;
    info->minor = properties.minor;
    info->multiprocessors = properties.multiProcessorCount;
    info->memory = properties.totalGlobalMem;
  });
}

int pycoll_cuda_open(const pycoll_cuda_options* options, pycoll_cuda_group** group) {
  return guarded([&] { *group = new pycoll_cuda_group(*options, MemoryKind::Ipc); });
}

int pycoll_cuda_offers(int32_t device, uint32_t* offers) {
  return guarded([&] { *offers = cuda_driver().offers(device); });
}

int pycoll_cuda_open_memory(const pycoll_cuda_options* options, int32_t kind, pycoll_cuda_group** group) {
  return guarded(
      [&] { *group = new pycoll_cuda_group(*options, checked(kind, MemoryKind::Fabric, "kind of memory")); });
}

int pycoll_cuda_memory_kind(pycoll_cuda_group* group, int32_t* kind) {
  return guarded([&] { *kind = static_cast<int32_t>(of(group).kind()); });
}

size_t pycoll_cuda_handle_bytes(void) {
  return sizeof(Handle);
}

int pycoll_cuda_handle(pycoll_cuda_group* group, void* handle) {
  return guarded([&] {
    const Handle made = of(group).handle();
    std::memcpy(handle, &made, sizeof(made));
  });
}

int pycoll_cuda_connect(pycoll_cuda_group* group, const void* handles) {
  return guarded([&] { of(group).connect(received<Handle>(of(group), handles)); });
}

int pycoll_cuda_close(pycoll_cuda_group* group) {
  return guarded([&] { delete group; });
}

int pycoll_cuda_abort(pycoll_cuda_group* group) {
  return guarded([&] { of(group).abort(); });
}

int pycoll_cuda_capturing(void* stream, int32_t* captures) {
  return guarded([&] {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    require(cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status), "ask a stream");
    *captures = status != cudaStreamCaptureStatusNone ? 1 : 0;
  });
}

int pycoll_cuda_capture(void* stream, uint64_t* capture) {
  return guarded([&] {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    unsigned long long id = 0;
#if CUDART_VERSION >= 13000
    require(cudaStreamGetCaptureInfo(static_cast<cudaStream_t>(stream), &status, &id, nullptr, nullptr,
                                     nullptr, nullptr),
            "ask a stream");
#else
    require(cudaStreamGetCaptureInfo(static_cast<cudaStream_t>(stream), &status, &id), "ask a stream");
#endif
    *capture = status == cudaStreamCaptureStatusNone ? 0 : id;
  });
}

int pycoll_cuda_messages_open(pycoll_cuda_group* group, void* handle) {
  return guarded([&] {
    auto made = std::make_unique<Channels>(of(group));
    const Handle own = made->handle();
    std::memcpy(handle, &own, sizeof(own));
    group->channels = std::move(made);
  });
}

int pycoll_cuda_messages_connect(pycoll_cuda_group* group, const void* handles) {
  return guarded([&] { channels_of(group).connect(received<Handle>(of(group), handles)); });
}

int pycoll_cuda_messages(pycoll_cuda_group* group, const pycoll_cuda_message* messages, int32_t count,
                         void* stream) {
  return guarded([&] {
    std::vector<Message> made;
    for (const pycoll_cuda_message& m : std::span(messages, static_cast<size_t>(std::max(count, 0))))
      made.push_back({static_cast<char*>(m.data), m.bytes, m.tag, m.peer, m.sends});
    channels_of(group).run(made, static_cast<cudaStream_t>(stream));
  });
}

int pycoll_cuda_messages_complaint(pycoll_cuda_group* group, char* text, size_t bytes) {
  return guarded([&] {
    const std::string said = group->channels ? group->channels->complaint() : std::string();
    if (bytes == 0) return;
    std::strncpy(text, said.c_str(), bytes - 1);
    text[bytes - 1] = '\0';
  });
}

int pycoll_cuda_relax_capture(void) {
  return guarded([&] {
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    require(cudaThreadExchangeStreamCaptureMode(&mode), "relax a thread's capture mode");
  });
}

int pycoll_cuda_register(pycoll_cuda_group* group, void* buffer, size_t bytes, void* handle) {
  return guarded([&] {
    const Handle made = of(group).offer(buffer, bytes);
    std::memcpy(handle, &made, sizeof(made));
  });
}

int pycoll_cuda_register_connect(pycoll_cuda_group* group, const void* handles, int32_t* registration) {
  return guarded([&] { *registration = of(group).connect_buffers(received<Handle>(of(group), handles)); });
}

int pycoll_cuda_unregister(pycoll_cuda_group* group, int32_t registration) {
  return guarded([&] { of(group).forget_buffers(registration); });
}

int pycoll_cuda_plan(pycoll_cuda_group* group, int32_t kind, int32_t pieces, int32_t root,
                     const int32_t* transfers, size_t count, int32_t finds_late, int32_t* plan) {
  return guarded([&] {
    Schedule schedule;
    schedule.collective = {.kind = checked(kind, CollectiveKind::Barrier, "collective"),
                           .ranks = of(group).ranks(),
                           .pieces = pieces,
                           .root = root};
    for (size_t i = 0; i < count; ++i) {
      const int32_t* const row = transfers + 5 * i;
      schedule.transfers.push_back(
          {row[0], row[1], row[2], row[3], row[4] != 0 ? Action::Reduce : Action::Copy});
    }
    schedule.collective.check();
    verify(schedule);
    *plan = of(group).add_plan(schedule, finds_late != 0);
  });
}

int pycoll_cuda_run(pycoll_cuda_group* group, int32_t plan, int32_t dtype, int32_t op, double factor,
                    const void* input, void* output, uint64_t count, int32_t registration, void* stream) {
  return guarded(
      [&] { of(group).run(plan, call_of(dtype, op, factor, input, output, count, stream), registration); });
}

int pycoll_cuda_packets(pycoll_cuda_group* group, int32_t which, int32_t dtype, int32_t op, double factor,
                        const void* input, void* output, uint64_t count, void* stream) {
  return guarded([&] {
    of(group).run_packets(checked(which, PYCOLL_CUDA_ALL_GATHER, "kernel for small buffers"),
                          call_of(dtype, op, factor, input, output, count, stream));
  });
}

int pycoll_cuda_packets_limit(pycoll_cuda_group* group, int32_t which, int32_t dtype, uint64_t* count) {
  return guarded([&] {
    *count = of(group).packets_limit(checked(which, PYCOLL_CUDA_ALL_GATHER, "kernel for small buffers"),
                                     checked(dtype, DType::Complex128, "dtype"));
  });
}

int pycoll_cuda_multicast_offer(pycoll_cuda_group* group, void* handle) {
  return guarded([&] {
    const Handle made = of(group).offer_multicast();
    std::memcpy(handle, &made, sizeof(made));
  });
}

int pycoll_cuda_multicast_join(pycoll_cuda_group* group, const void* handles) {
  return guarded([&] { of(group).join_multicast(received<Handle>(of(group), handles)); });
}

int pycoll_cuda_multicast_bind(pycoll_cuda_group* group) {
  return guarded([&] { of(group).bind_multicast(); });
}

int pycoll_cuda_multicast_drop(pycoll_cuda_group* group) {
  return guarded([&] { of(group).drop_multicast(); });
}

int pycoll_cuda_nvls(pycoll_cuda_group* group, int32_t which, int32_t dtype, int32_t op, double factor,
                     const void* input, void* output, uint64_t count, void* stream) {
  return guarded([&] {
    of(group).run_nvls(checked(which, NvlsKind::AllGather, "collective through the NVLink switch"),
                       call_of(dtype, op, factor, input, output, count, stream));
  });
}

void* pycoll_cuda_pool_alloc(ptrdiff_t bytes, int device, void*) {
  void* memory = nullptr;
  guarded([&] { memory = segment_pool().allocate(static_cast<size_t>(bytes), device); });
  return memory;
}

void pycoll_cuda_pool_free(void* memory, ptrdiff_t, int, void*) {
  guarded([&] { segment_pool().free(static_cast<char*>(memory)); });
}

size_t pycoll_cuda_pool_batch_bytes(void) {
  return sizeof(Batch);
}

int pycoll_cuda_pool_offer(pycoll_cuda_group* group, void* batch) {
  return guarded([&] {
    const Batch made = of(group).offer_pool();
    std::memcpy(batch, &made, sizeof(made));
  });
}

int pycoll_cuda_pool_connect(pycoll_cuda_group* group, const void* batches, int32_t* more) {
  return guarded([&] { *more = of(group).connect_pool(received<Batch>(of(group), batches)) ? 1 : 0; });
}

int pycoll_cuda_pool_use(pycoll_cuda_group* group) {
  return guarded([&] { of(group).use_pool(); });
}

int pycoll_cuda_pool_finds(pycoll_cuda_group* group, const void* memory, size_t bytes, int32_t* found) {
  return guarded([&] { *found = of(group).finds_in_pool(memory, bytes) ? 1 : 0; });
}

}  // extern "C"
