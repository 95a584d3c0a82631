// The interface of cuda/api.h on the fake GPU: what a rank's "kernels" read of another rank's memory lies in
// a file of shared memory, which is rubbish once that rank has closed its group.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <map>

#include "core/error.h"
#include "cuda/api.h"
#include "reduce/reduce.h"
#include "schedule/verify.h"
#include "streams.h"

namespace fake_gpu {

std::atomic<double> collective_delay{0};  // seconds, before each collective begins
std::atomic<double> reading_delay{0};     // and before it reads other ranks' memory
std::atomic<int> groups_open{0};

namespace {

constexpr size_t kRoom = 4 << 20;
constexpr size_t kMostPackets = 256;  // bytes to a peer

struct Area {
  std::atomic<uint64_t> arrived;
  double factor;
  char data[kRoom];
};

thread_local std::string last_error;

template <class Body>
int guarded(const Body& body) {
  touch_device();
  try {
    body();
    return PYCOLL_CUDA_OK;
  } catch (const pycoll::InvalidArgument& error) {
    last_error = error.what();
    return PYCOLL_CUDA_INVALID;
  } catch (const pycoll::ScheduleError& error) {
    last_error = error.what();
    return PYCOLL_CUDA_INVALID;
  } catch (const pycoll::Unsupported& error) {
    last_error = error.what();
    return PYCOLL_CUDA_UNSUPPORTED;
  } catch (const std::exception& error) {
    last_error = error.what();
    return PYCOLL_CUDA_FAILED;
  }
}

Area* map(const std::string& name, bool create) {
  const int file = ::shm_open(name.c_str(), create ? O_RDWR | O_CREAT | O_EXCL : O_RDWR, 0600);
  if (file < 0 || (create && ::ftruncate(file, sizeof(Area)) != 0))
    throw std::runtime_error("fake GPU: no shared memory " + name);
  void* const memory = ::mmap(nullptr, sizeof(Area), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ::close(file);
  return static_cast<Area*>(memory);
}

struct Call {
  pycoll::CollectiveKind kind;
  int root;
  pycoll::DType dtype;
  pycoll::Op op;
  double factor;
  const char* input;
  char* output;
  size_t count;
};

}  // namespace
}  // namespace fake_gpu

struct pycoll_cuda_group {
  pycoll_cuda_options options;
  std::string name;
  fake_gpu::Area* own = nullptr;
  std::vector<fake_gpu::Area*> areas;
  std::atomic<bool> aborted{false};
  std::vector<std::pair<pycoll::CollectiveKind, int>> plans;  // kind, root
};

namespace fake_gpu {
namespace {

using pycoll::CollectiveKind;

// All ranks' kernels have come so far; false when the group was aborted.
bool meet(pycoll_cuda_group& group) {
  const uint64_t target = group.own->arrived.fetch_add(1) + 1;
  for (Area* area : group.areas)
    while (area->arrived.load() < target) {
      if (group.aborted) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  return !group.aborted;
}

// Once all ranks have mapped it, the file needs no name: so none is left by a process that is killed.
void drop_name(pycoll_cuda_group& group) {
  if (!group.name.empty()) ::shm_unlink(group.name.c_str());
  group.name.clear();
}

// A rank's kernel may end while others still read its area: they meet before it is written again.
void collective(pycoll_cuda_group& group, const Call& call) {
  std::this_thread::sleep_for(std::chrono::duration<double>(collective_delay.load()));
  const auto rank = size_t(group.options.rank), ranks = size_t(group.options.ranks);
  const size_t block = call.count * pycoll::size_of(call.dtype);
  const bool is_root = group.options.rank == call.root;
  const auto kind = call.kind;
  const bool gives_all = kind == CollectiveKind::ReduceScatter || kind == CollectiveKind::Scatter ||
                         kind == CollectiveKind::AllToAll;
  const bool gives = is_root || (kind != CollectiveKind::Broadcast && kind != CollectiveKind::Scatter);
  if (!meet(group)) return;
  if (gives) std::memcpy(group.own->data, call.input, block * (gives_all ? ranks : 1));
  group.own->factor = call.factor;
  if (!meet(group)) return;
  std::this_thread::sleep_for(std::chrono::duration<double>(reading_delay.load()));
  switch (kind) {
    case CollectiveKind::AllReduce:
    case CollectiveKind::Reduce:
    case CollectiveKind::ReduceScatter: {
      if (kind == CollectiveKind::Reduce && !is_root) return;
      std::vector<const void*> sources;
      std::vector<double> factors;
      for (const Area* area : group.areas) {
        sources.push_back(area->data + (kind == CollectiveKind::ReduceScatter ? rank * block : 0));
        factors.push_back(area->factor);
      }
      void* const to = call.output;
      pycoll::reduce_many(call.dtype, call.op, sources, {&to, 1}, call.count,
                          call.op == pycoll::Op::PremulSum ? factors.data() : nullptr);
      return;
    }
    case CollectiveKind::Broadcast:
      std::memcpy(call.output, group.areas[size_t(call.root)]->data, block);
      return;
    case CollectiveKind::Scatter:
      std::memcpy(call.output, group.areas[size_t(call.root)]->data + rank * block, block);
      return;
    default:
      if (kind == CollectiveKind::Gather && !is_root) return;
      for (size_t r = 0; r < ranks; ++r)
        std::memcpy(call.output + r * block,
                    group.areas[r]->data + (kind == CollectiveKind::AllToAll ? rank * block : 0), block);
  }
}

void put(pycoll_cuda_group* group, CollectiveKind kind, int root, int32_t dtype, int32_t op, double factor,
         const void* input, void* output, uint64_t count, void* stream) {
  if (group->areas.empty()) throw pycoll::InvalidArgument("the group is not connected yet");
  if (group->aborted) throw pycoll::Aborted("the group was aborted");
  const Call call{kind,
                  root,
                  pycoll::DType(dtype),
                  pycoll::Op(op),
                  factor,
                  static_cast<const char*>(input),
                  static_cast<char*>(output),
                  count};
  if (pycoll::is_reduction(kind)) {
    if (pycoll::size_of(call.dtype) == 1)
      throw pycoll::Unsupported("CUDA collectives do not reduce dtype " + std::string(name_of(call.dtype)));
    pycoll::require_supported(call.dtype, call.op);
  }
  if (count * pycoll::size_of(call.dtype) * size_t(group->options.ranks) > kRoom)
    throw pycoll::Unsupported("more than the fake GPU has room for");
  if (static_cast<Stream*>(stream)->id / kStreams != group->options.device)
    throw pycoll::InvalidArgument("the stream is another device's than the group");
  drop_name(*group);  // all are connected when the first call comes
  static_cast<Stream*>(stream)->put([group, call] { collective(*group, call); });
}

}  // namespace
}  // namespace fake_gpu

using namespace fake_gpu;

extern "C" {

int pycoll_cuda_abi(void) {
  return PYCOLL_CUDA_ABI;
}
const char* pycoll_cuda_error(void) {
  return last_error.c_str();
}

int pycoll_cuda_open(const pycoll_cuda_options* options, pycoll_cuda_group** group) {
  return guarded([&] {
    forbid_while_capturing("opening a group");
    if (options->device < 0 || options->device >= kDevices)
      throw pycoll::InvalidArgument("there is no device " + std::to_string(options->device));
    static std::atomic<int> opened{0};
    auto made = std::make_unique<pycoll_cuda_group>();
    made->options = *options;
    made->name = "/fake-gpu-" + std::to_string(::getpid()) + "-" + std::to_string(opened++);
    made->own = map(made->name, true);
    ++groups_open;
    *group = made.release();
  });
}

size_t pycoll_cuda_handle_bytes(void) {
  return 64;
}

int pycoll_cuda_handle(pycoll_cuda_group* group, void* handle) {
  return guarded([&] { std::strncpy(static_cast<char*>(handle), group->name.c_str(), 63); });
}

int pycoll_cuda_connect(pycoll_cuda_group* group, const void* handles) {
  return guarded([&] {
    for (int r = 0; r < group->options.ranks; ++r)
      group->areas.push_back(map(static_cast<const char*>(handles) + 64 * r, false));
  });
}

int pycoll_cuda_abort(pycoll_cuda_group* group) {
  return guarded([&] { group->aborted = true; });
}

int pycoll_cuda_close(pycoll_cuda_group* group) {
  return guarded([&] {
    group->aborted = true;
    for (Stream* stream : streams())
      if (stream->graph == nullptr) stream->wait_for(stream->position());
    std::memset(group->own->data, 0xCD, kRoom);  // for those who still read
    for (Area* area : group->areas) ::munmap(area, sizeof(Area));
    ::munmap(group->own, sizeof(Area));
    drop_name(*group);
    --groups_open;
    delete group;
  });
}

int pycoll_cuda_capturing(void* stream, int32_t* captures) {
  return guarded([&] { *captures = static_cast<Stream*>(stream)->graph != nullptr; });
}

int pycoll_cuda_relax_capture(void) {
  relaxed = true;
  return PYCOLL_CUDA_OK;
}

int pycoll_cuda_plan(pycoll_cuda_group* group, int32_t kind, int32_t pieces, int32_t root,
                     const int32_t* transfers, size_t count, int32_t, int32_t* plan) {
  return guarded([&] {
    forbid_while_capturing("taking memory for a schedule");
    pycoll::Schedule schedule;
    schedule.collective = {CollectiveKind(kind), group->options.ranks, pieces, root};
    for (const int32_t* row = transfers; row < transfers + 5 * count; row += 5)
      schedule.transfers.push_back(
          {row[0], row[1], row[2], row[3], row[4] != 0 ? pycoll::Action::Reduce : pycoll::Action::Copy});
    schedule.collective.check();
    pycoll::verify(schedule);
    group->plans.push_back({schedule.collective.kind, root});
    *plan = int32_t(group->plans.size()) - 1;
  });
}

int pycoll_cuda_run(pycoll_cuda_group* group, int32_t plan, int32_t dtype, int32_t op, double factor,
                    const void* input, void* output, uint64_t count, int32_t, void* stream) {
  return guarded([&] {
    const auto [kind, root] = group->plans.at(size_t(plan));
    put(group, kind, root, dtype, op, factor, input, output, count, stream);
  });
}

int pycoll_cuda_packets(pycoll_cuda_group* group, int32_t which, int32_t dtype, int32_t op, double factor,
                        const void* input, void* output, uint64_t count, void* stream) {
  return guarded([&] {
    const CollectiveKind kind = which == PYCOLL_CUDA_REDUCE_SCATTER ? CollectiveKind::ReduceScatter
                                : which == PYCOLL_CUDA_ALL_GATHER   ? CollectiveKind::AllGather
                                                                    : CollectiveKind::AllReduce;
    put(group, kind, 0, dtype, op, factor, input, output, count, stream);
  });
}

int pycoll_cuda_packets_limit(pycoll_cuda_group*, int32_t, int32_t dtype, uint64_t* count) {
  return guarded([&] { *count = kMostPackets / pycoll::size_of(pycoll::DType(dtype)); });
}

}  // extern "C"
