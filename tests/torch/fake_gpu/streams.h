// A GPU of the tests' own making: its memory is the host's, its streams are queues that threads work off, and
// it is as strict as CUDA about events and graphs.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace fake_gpu {

using Task = std::function<void()>;
class Stream;

struct Graph {
  uint64_t number;
  Stream* origin;
  std::vector<Task> tasks;
  std::vector<Stream*> members;
  std::string broken;  // why it cannot be used
};

// The one capture that is under way in this process; as with CUDA's global mode it forbids every thread, but
// for those that relaxed themselves, to wait or to ask.
inline std::atomic<Graph*> capture_under_way{nullptr};
inline thread_local bool relaxed = false;

inline void forbid_while_capturing(const std::string& what) {
  Graph* const graph = capture_under_way.load();
  if (graph == nullptr || relaxed) return;
  graph->broken = what + " while a graph is captured";
  throw std::runtime_error("fake GPU: operation not permitted: " + graph->broken);
}

class Stream {
 public:
  explicit Stream(int64_t id) : id(id) {}

  const int64_t id;
  Graph* graph = nullptr;  // that captures it
  size_t in_graph = 0;     // tasks of it
  size_t joined = 0;       // of these, those that the graph's origin waits for

  void put(Task task) {
    if (graph != nullptr) {
      graph->tasks.push_back(std::move(task));
      ++in_graph;
      return;
    }
    const std::lock_guard lock(mutex_);
    if (put_ == 0) std::thread([this] { work(); }).detach();
    tasks_.push_back(std::move(task));
    ++put_;
    changed_.notify_all();
  }

  uint64_t position() {
    const std::lock_guard lock(mutex_);
    return put_;
  }
  bool reached(uint64_t position) {
    const std::lock_guard lock(mutex_);
    return done_ >= position;
  }
  void wait_for(uint64_t position) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_ >= position; });
  }
  void synchronize() {
    forbid_while_capturing("waiting for a stream");
    wait_for(position());
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return !tasks_.empty(); });
      Task task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
      task = nullptr;
      lock.lock();
      ++done_;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  uint64_t put_ = 0, done_ = 0;
};

inline constexpr int kDevices = 2;
inline constexpr int kStreams = 33;  // of a device

// The first of each device is its default one; the others make up its pool. Never destroyed: their threads
// run to the end.
inline std::vector<Stream*>& streams() {
  static auto* const all = [] {
    auto* made = new std::vector<Stream*>;
    for (int64_t id = 0; id < kDevices * kStreams; ++id) made->push_back(new Stream(id));
    return made;
  }();
  return *all;
}

inline thread_local int current_device = 0;
inline thread_local int64_t current_ids[kDevices] = {0, kStreams};
inline Stream& current() {
  return *streams()[size_t(current_ids[current_device])];
}

// Devices on which this process has a context, as bits: what CUDA's runtime does without a stream or a memory
// that says where, it does on the thread's device, and takes hundreds of MiB there.
inline std::atomic<uint32_t> contexts{0};
inline void touch_device() {
  contexts |= 1u << current_device;
}

struct Event {
  Stream* stream = nullptr;
  uint64_t position = 0;
  Graph* graph = nullptr;  // recorded inside of it
  size_t in_graph = 0;
};

inline void record(Event& event, Stream& stream) {
  event = {&stream, stream.position(), stream.graph, stream.in_graph};
}

inline void join(Graph& graph, Stream& stream) {
  if (stream.graph == &graph) return;
  stream.graph = &graph;
  stream.in_graph = stream.joined = 0;
  graph.members.push_back(&stream);
}

inline void block(const Event& event, Stream& stream) {
  if (event.stream == nullptr) return;
  if (event.graph != nullptr && event.graph == capture_under_way.load()) {
    join(*event.graph, stream);
    if (&stream == event.graph->origin) event.stream->joined = event.in_graph;
    return;
  }
  if (event.graph != nullptr) throw std::runtime_error("fake GPU: the event is of a graph that is no more");
  if (stream.graph != nullptr) {
    stream.graph->broken = "a stream of it waited for an event from outside";
    throw std::runtime_error("fake GPU: capture isolation: " + stream.graph->broken);
  }
  if (event.stream == &stream) return;
  stream.put([from = event.stream, position = event.position] { from->wait_for(position); });
}

inline bool query(const Event& event) {
  touch_device();
  if (event.stream == nullptr) return true;
  if (event.graph != nullptr) {
    if (Graph* const graph = capture_under_way.load()) graph->broken = "an event of it was asked for";
    throw std::runtime_error("fake GPU: an event of a graph cannot be asked for");
  }
  forbid_while_capturing("asking for an event");
  return event.stream->reached(event.position);
}

}  // namespace fake_gpu
