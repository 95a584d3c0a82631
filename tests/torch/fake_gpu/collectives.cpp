// The interface of cuda/api.h on the fake GPU: what a rank's "kernels" read of another rank's memory lies in
// a file of shared memory, which is rubbish once that rank has closed its group.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <utility>

#include "core/error.h"
#include "cuda/api.h"
#include "cuda/messages.h"
#include "reduce/reduce.h"
#include "schedule/verify.h"
#include "streams.h"

namespace fake_gpu {

std::atomic<double> collective_delay{0};  // seconds, before each collective begins
std::atomic<double> reading_delay{0};     // and before it reads other ranks' memory
std::atomic<int> groups_open{0};
std::atomic<int> message_kernels{0};
std::atomic<int> pool_segments{0}, pool_mapped{0};
std::string last_way;  // of the last collective that was put on a stream
std::atomic<bool> without_messages{false};

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

void* map(const std::string& name, size_t bytes, bool create) {
  const int file = ::shm_open(name.c_str(), create ? O_RDWR | O_CREAT | O_EXCL : O_RDWR, 0600);
  if (file < 0 || (create && ::ftruncate(file, off_t(bytes)) != 0))
    throw std::runtime_error("fake GPU: no shared memory " + name);
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ::close(file);
  return memory;
}
Area* map(const std::string& name, bool create) {
  return static_cast<Area*>(map(name, sizeof(Area), create));
}

// A block of the kernel of messages, which is the real one, as one thread.
class BlockContext {
 public:
  BlockContext(int block, const std::atomic<bool>& aborted) : block_(block), aborted_(aborted) {}
  int thread() const { return 0; }
  int threads() const { return 1; }
  int block() const { return block_; }
  pycoll::cuda::Vector load(const pycoll::cuda::Vector* from) const { return *from; }
  void store(pycoll::cuda::Vector* to, const pycoll::cuda::Vector& v) const { *to = v; }
  void sync() const {}
  bool all(bool fine) const { return fine; }
  void raise(uint64_t* flag, uint64_t value) const {
    std::atomic_ref(*flag).store(value, std::memory_order_release);
  }
  bool await(const uint64_t* flag, uint64_t value) const {
    const std::atomic_ref word(*const_cast<uint64_t*>(flag));
    while (word.load(std::memory_order_acquire) < value) {
      if (aborted_) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    return true;
  }

 private:
  const int block_;
  const std::atomic<bool>& aborted_;
};

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
  struct Plan {
    pycoll::CollectiveKind kind;
    int root;
    std::string said;
  };
  std::vector<Plan> plans;
  int pool_pending = 0, pool_used = 0, pool_mapped = 0;
  std::string messages_name;
  pycoll::cuda::MessageLayout messages;
  std::vector<char*> message_heaps;
  std::vector<pycoll::cuda::MessageReport> reports;
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
  if (!group.messages_name.empty()) ::shm_unlink(group.messages_name.c_str());
  group.messages_name.clear();
}

void run_messages_of(pycoll_cuda_group& group, const pycoll::cuda::MessageCall& call) {
  std::vector<std::thread> blocks;
  for (int block = 0; block < call.channels * call.lanes; ++block)
    blocks.emplace_back([&, block] {
      BlockContext context(block, group.aborted);
      pycoll::cuda::run_messages(context, call);
    });
  for (auto& block : blocks) block.join();
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
    if (!group->message_heaps.empty())
      std::memset(group->message_heaps[size_t(group->options.rank)], 0xCD,
                  group->messages.cell(0, 0, 0));  // for those who still look there
    for (char* heap : group->message_heaps) ::munmap(heap, group->messages.bytes());
    drop_name(*group);
    --groups_open;
    delete group;
  });
}

int pycoll_cuda_capturing(void* stream, int32_t* captures) {
  return guarded([&] { *captures = static_cast<Stream*>(stream)->graph != nullptr; });
}

int pycoll_cuda_capture(void* stream, uint64_t* capture) {
  return guarded([&] {
    const Graph* const graph = static_cast<Stream*>(stream)->graph;
    *capture = graph == nullptr ? 0 : graph->number;
  });
}

int pycoll_cuda_messages_open(pycoll_cuda_group* group, void* handle) {
  return guarded([&] {
    if (without_messages) throw pycoll::Unsupported("the fake GPU is told to have no messages");
    group->messages = pycoll::cuda::MessageLayout::of(group->options.ranks);
    group->reports.resize(size_t(group->options.ranks));
    group->messages_name = group->name + "-messages";
    ::munmap(map(group->messages_name, group->messages.bytes(), true), group->messages.bytes());
    std::strncpy(static_cast<char*>(handle), group->messages_name.c_str(), 63);
  });
}

int pycoll_cuda_messages_connect(pycoll_cuda_group* group, const void* handles) {
  return guarded([&] {
    for (int r = 0; r < group->options.ranks; ++r)
      group->message_heaps.push_back(static_cast<char*>(
          map(static_cast<const char*>(handles) + 64 * r, group->messages.bytes(), false)));
  });
}

int pycoll_cuda_messages(pycoll_cuda_group* group, const pycoll_cuda_message* messages, int32_t count,
                         void* stream) {
  return guarded([&] {
    if (group->aborted) throw pycoll::Aborted("the group was aborted");
    std::vector<pycoll::cuda::Message> made;
    for (const pycoll_cuda_message* m = messages; m < messages + count; ++m)
      made.push_back({static_cast<char*>(m->data), m->bytes, m->tag, m->peer, m->sends});
    const auto call = pycoll::cuda::message_call(group->messages, group->message_heaps.data(),
                                                 group->reports.data(), group->options.rank, made);
    ++message_kernels;
    static_cast<Stream*>(stream)->put([group, call] { run_messages_of(*group, call); });
  });
}

int pycoll_cuda_messages_complaint(pycoll_cuda_group* group, char* text, size_t bytes) {
  return guarded([&] {
    text[0] = '\0';
    for (size_t peer = 0; peer < group->reports.size(); ++peer)
      if (std::atomic_ref(group->reports[peer].wrong).load() != 0)
        std::strncpy(text, text_of(group->reports[peer], int(peer)).c_str(), bytes - 1);
  });
}

// Pools are counted, not mapped: a rank has `pool_segments` of them, of which a batch takes two.
size_t pycoll_cuda_pool_batch_bytes(void) {
  return 8192;  // as large as the real one, and more
}

int pycoll_cuda_pool_offer(pycoll_cuda_group* group, void* batch) {
  return guarded([&] {
    if (pool_segments < 0) throw pycoll::Unsupported("the fake GPU is told to share no pool");
    const int32_t offered = std::min(2, pool_segments - group->pool_used);
    group->pool_pending = offered;
    std::memcpy(batch, &offered, sizeof(offered));
  });
}

int pycoll_cuda_pool_connect(pycoll_cuda_group* group, const void* batches, int32_t* more) {
  return guarded([&] {
    *more = 0;
    for (int r = 0; r < group->options.ranks; ++r) {
      int32_t offered = 0;
      std::memcpy(&offered, static_cast<const char*>(batches) + size_t(r) * pycoll_cuda_pool_batch_bytes(),
                  sizeof(offered));
      group->pool_mapped += offered;
      if (offered == 2) *more = 1;
    }
  });
}

int pycoll_cuda_pool_use(pycoll_cuda_group* group) {
  return guarded([&] {
    group->pool_used += std::exchange(group->pool_pending, 0);
    pool_mapped = group->pool_mapped;
  });
}

int pycoll_cuda_relax_capture(void) {
  relaxed = true;
  return PYCOLL_CUDA_OK;
}

int pycoll_cuda_plan(pycoll_cuda_group* group, int32_t kind, int32_t pieces, int32_t root,
                     const int32_t* transfers, size_t count, int32_t finds_late, int32_t* plan) {
  return guarded([&] {
    forbid_while_capturing("taking memory for a schedule");
    pycoll::Schedule schedule;
    schedule.collective = {CollectiveKind(kind), group->options.ranks, pieces, root};
    for (const int32_t* row = transfers; row < transfers + 5 * count; row += 5)
      schedule.transfers.push_back(
          {row[0], row[1], row[2], row[3], row[4] != 0 ? pycoll::Action::Reduce : pycoll::Action::Copy});
    schedule.collective.check();
    pycoll::verify(schedule);
    const std::string said = std::to_string(pieces) + " pieces, " + std::to_string(schedule.rounds()) +
                             " rounds" + (finds_late != 0 ? ", finds the late rank" : "");
    group->plans.push_back({schedule.collective.kind, root, said});
    *plan = int32_t(group->plans.size()) - 1;
  });
}

int pycoll_cuda_run(pycoll_cuda_group* group, int32_t plan, int32_t dtype, int32_t op, double factor,
                    const void* input, void* output, uint64_t count, int32_t, void* stream) {
  return guarded([&] {
    const auto& [kind, root, said] = group->plans.at(size_t(plan));
    last_way = said;
    put(group, kind, root, dtype, op, factor, input, output, count, stream);
  });
}

int pycoll_cuda_packets(pycoll_cuda_group* group, int32_t which, int32_t dtype, int32_t op, double factor,
                        const void* input, void* output, uint64_t count, void* stream) {
  return guarded([&] {
    const CollectiveKind kind = which == PYCOLL_CUDA_REDUCE_SCATTER ? CollectiveKind::ReduceScatter
                                : which == PYCOLL_CUDA_ALL_GATHER   ? CollectiveKind::AllGather
                                                                    : CollectiveKind::AllReduce;
    last_way = "kernel " + std::to_string(which);
    put(group, kind, 0, dtype, op, factor, input, output, count, stream);
  });
}

int pycoll_cuda_packets_limit(pycoll_cuda_group*, int32_t, int32_t dtype, uint64_t* count) {
  return guarded([&] { *count = kMostPackets / pycoll::size_of(pycoll::DType(dtype)); });
}

}  // extern "C"
