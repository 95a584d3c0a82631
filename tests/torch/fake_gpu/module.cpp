// What tests do with the fake GPU.
#include <torch/csrc/utils/pybind.h>

#include <chrono>

#include "streams.h"

namespace fake_gpu {

extern std::atomic<double> collective_delay, reading_delay;
extern std::atomic<int> groups_open, message_kernels;
extern std::atomic<bool> without_messages;
extern std::string last_way;
extern std::atomic<int> pool_segments, pool_mapped;
void register_hooks();

namespace {

namespace py = pybind11;

// Keeps the current stream from going on until it is opened.
struct Gate {
  std::shared_ptr<std::atomic<bool>> is_open = std::make_shared<std::atomic<bool>>(false);
  Gate() {
    current().put([is_open = is_open] {
      while (!*is_open) std::this_thread::sleep_for(std::chrono::microseconds(100));
    });
  }
};

struct Captured {
  Graph* graph;
  void replay() const {
    for (const Task& task : graph->tasks) current().put(task);
  }
};

void begin_capture() {
  if (current().id % kStreams == 0)
    throw std::runtime_error("fake GPU: the default stream cannot be captured");
  static uint64_t captures = 0;
  auto* const graph = new Graph{++captures, &current(), {}, {}, {}};
  join(*graph, current());
  capture_under_way = graph;
}

Captured end_capture() {
  Graph* const graph = capture_under_way.exchange(nullptr);
  for (Stream* stream : graph->members) {
    if (stream != graph->origin && stream->joined < stream->in_graph)
      graph->broken = "work on stream " + std::to_string(stream->id) + " was not joined";
    stream->graph = nullptr;
  }
  if (!graph->broken.empty()) throw std::runtime_error("fake GPU: the capture failed: " + graph->broken);
  return {graph};
}

}  // namespace

PYBIND11_MODULE(fake_gpu, m) {
  m.def("register_hooks", &register_hooks);
  m.def("stream_handle", [](int64_t id) { return reinterpret_cast<uintptr_t>(streams().at(size_t(id))); });
  m.def("delay_collectives", [](double seconds) { collective_delay = seconds; });
  m.def("delay_reading", [](double seconds) { reading_delay = seconds; });
  m.def("set_device", [](int device) { current_device = device; });
  m.def("current_device", [] { return current_device; });
  m.def("contexts", [] { return contexts.load(); });
  m.def("forget_contexts", [] { contexts = 0; });
  m.def("message_kernels", [] { return message_kernels.load(); });
  m.def("leave_out_messages", [](bool out) { without_messages = out; });
  m.def("last_way", [] { return last_way; });
  m.def("take_pool_segments", [](int segments) { pool_segments = segments; });
  m.def("pool_mapped", [] { return pool_mapped.load(); });
  m.def("groups_open", [] { return groups_open.load(); });
  m.def("sleep", [](double seconds) {
    current().put([seconds] { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); });
  });
  m.def("synchronize", [] { current().synchronize(); }, py::call_guard<py::gil_scoped_release>());
  py::class_<Gate>(m, "Gate").def(py::init<>()).def("open", [](Gate& gate) { *gate.is_open = true; });
  m.def("begin_capture", &begin_capture);
  m.def("end_capture", &end_capture);
  py::class_<Captured>(m, "Graph").def("replay", &Captured::replay);
}

}  // namespace fake_gpu
