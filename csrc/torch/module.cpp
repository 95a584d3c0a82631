// The Python module: one function that makes the backend of a group. Uses torch's own pybind11 and knows
// c10d's types as torch registered them.
#include <c10/util/intrusive_ptr.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "torch/backend.h"
#include "torch/bootstrap.h"
#include "torch/errors.h"
#include "torch/flight_recorder.h"

namespace pycoll::torch_adapter {
namespace {

namespace py = pybind11;

void throw_if_interrupted() {
  py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

// To Python's logger "pycoll".
void log_warning(const std::string& text) {
  py::gil_scoped_acquire gil;
  try {
    py::module_::import("logging").attr("getLogger")("pycoll").attr("warning")("%s", text);
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("pycoll's log");
  }
}

// To pycoll.selection.group's decide(names of the hosts, host of each rank).
std::function<std::string(const Placement&)> asking(const py::object& decide) {
  if (decide.is_none()) return nullptr;
  return [&decide](const Placement& placement) {
    py::gil_scoped_acquire gil;
    std::vector<std::string> names;
    for (const Host& host : placement.hosts) names.push_back(host.name);
    return decide(names, placement.host_of).cast<std::string>();
  };
}

// pycoll.torch.accelerator.Accelerator in C++'s terms.
std::shared_ptr<const Accelerator> asking_for_device(py::object python) {
  // Let go of with the GIL, if there is an interpreter still.
  const std::shared_ptr<py::object> held(new py::object(std::move(python)), [](py::object* object) {
    if (!Py_IsInitialized()) return;
    py::gil_scoped_acquire gil;
    delete object;
  });
  const auto ask = [held](const char* method, auto... arguments) {
    try {
      return held->attr(method)(arguments...);
    } catch (py::error_already_set& error) {
      const auto text = py::str(error.value()).cast<std::string>();
      if (error.matches(py::module_::import("pycoll.errors").attr("InvalidArgument")))
        throw InvalidArgument(text);
      throw Unsupported(text);
    }
  };
  Accelerator accelerator;
  accelerator.type = c10::Device(held->attr("device_type").cast<std::string>()).type();
  accelerator.library = [ask] {
    py::gil_scoped_acquire gil;
    return ask("library").template cast<std::string>();
  };
  accelerator.stream_handle = [ask](const c10::Stream& stream) {
    py::gil_scoped_acquire gil;
    const auto address = ask("stream_handle", stream.id(), stream.device_index(), int(stream.device_type()))
                             .template cast<uintptr_t>();
    return reinterpret_cast<void*>(address);
  };
  accelerator.place = [ask](int device) {
    py::gil_scoped_acquire gil;
    return ask("place", device).template cast<std::string>();
  };
  accelerator.ways = [ask](const std::vector<std::string>& places) {
    py::gil_scoped_acquire gil;
    return ask("ways", places).template cast<std::string>();
  };
  return std::make_shared<const Accelerator>(std::move(accelerator));
}

Nanoseconds from_seconds(double seconds) {
  return std::chrono::duration_cast<Nanoseconds>(std::chrono::duration<double>(seconds));
}

c10::intrusive_ptr<c10d::Backend> create(c10::intrusive_ptr<c10d::Store> store,
                                         c10::intrusive_ptr<c10d::Store> notes, int rank, int ranks,
                                         double timeout_seconds, const std::string& group,
                                         const std::string& decisions, const std::string& rules,
                                         std::vector<int> global_ranks, bool new_world,
                                         const std::string& towards, const std::string& interface, int lanes,
                                         double silence, double connect_timeout, bool fixed_order,
                                         const py::object& decide, py::object accelerator) {
  if (new_world) KnownPeers::forget_all();
  const Nanoseconds timeout = from_seconds(timeout_seconds);
  std::shared_ptr<const Accelerator> device;
  {
    py::gil_scoped_acquire gil;
    device = asking_for_device(std::move(accelerator));
  }
  return translating_errors([&]() -> c10::intrusive_ptr<c10d::Backend> {
    return Backend::create(
        Rendezvous{.store = std::move(store),
                   .rank = rank,
                   .ranks = ranks,
                   .options = {.group = group,
                               .timeout = timeout,
                               .decisions = decisions,
                               .decide = asking(decide),
                               .rules = rules,
                               .network = {.interface = interface,
                                           .towards = towards,
                                           .lanes = lanes,
                                           .connect_timeout = from_seconds(connect_timeout),
                                           .silence = from_seconds(silence)},
                               .fixed_order = fixed_order,
                               .log = log_warning},
                   .check_interrupted = throw_if_interrupted,
                   .global_ranks = std::move(global_ranks),
                   .notes = std::move(notes)},
        device);
  });
}

void move_to_shared_memory(const c10::intrusive_ptr<c10d::Backend>& backend, const at::Tensor& tensor) {
  auto* const ours = dynamic_cast<Backend*>(backend.get());
  if (ours == nullptr) throw py::type_error("not a backend of pycoll: " + backend->getBackendName());
  ours->move_to_shared_memory(tensor);
}

// Sequence numbers and lateness by rank, and what beginning early has won.
std::pair<std::vector<std::pair<uint64_t, std::vector<double>>>, std::tuple<uint64_t, uint64_t, double>>
stragglers(const c10::intrusive_ptr<c10d::Backend>& backend) {
  const auto* const ours = dynamic_cast<const Backend*>(backend.get());
  if (ours == nullptr) throw py::type_error("not a backend of pycoll: " + backend->getBackendName());
  std::vector<std::pair<uint64_t, std::vector<double>>> records;
  for (ArrivalRecord& record : ours->communicator().arrivals())
    records.emplace_back(record.sequence, std::move(record.lateness));
  const EarlyReport report = ours->communicator().early_report();
  return {std::move(records), {report.calls, report.early, report.seconds_won}};
}

py::list described(const std::vector<FlightRecorder::Shape>& shapes) {
  py::list result;
  for (const auto& shape : shapes)
    result.append(py::make_tuple(c10::toString(shape.dtype),
                                 std::vector<int64_t>(shape.sizes.begin(), shape.sizes.end())));
  return result;
}

// (entries, groups by id) for pycoll.torch.flight_recorder; None where the recorder is off.
py::object flight_record() {
  const FlightRecorder* recorder = FlightRecorder::get();
  if (recorder == nullptr) return py::none();
  const FlightRecorder::Record record = recorder->record();
  std::vector<torch::CapturedTraceback*> captured;
  for (const auto& entry : record.entries) captured.push_back(entry.frames.get());
  const torch::SymbolizedTracebacks symbolized = torch::symbolize(captured);
  py::list frames;  // those of many entries are the same
  for (const auto& frame : symbolized.all_frames)
    frames.append(py::make_tuple(frame.funcname, frame.filename, frame.lineno));
  py::list entries;
  for (size_t i = 0; i < record.entries.size(); ++i) {
    const auto& entry = record.entries[i];
    py::list stack;
    for (const uint64_t frame : symbolized.tracebacks[i]) stack.append(frames[frame]);
    py::dict row;
    row["id"] = entry.id;
    row["group"] = entry.group->id;
    row["name"] = entry.name;
    row["collective"] = entry.collective;
    row["message"] = entry.message;
    row["is_message"] = entry.is_message;
    row["peer"] = entry.peer;
    row["tag"] = entry.tag;
    row["inputs"] = described(entry.inputs);
    row["outputs"] = described(entry.outputs);
    row["timeout_ms"] = entry.timeout.count();
    row["created"] = entry.created;
    row["completed"] = entry.completed;
    row["retired"] = entry.retired;
    row["error"] = entry.error;
    row["thread"] = c10::str(entry.thread);
    row["frames"] = stack;
    entries.append(row);
  }
  py::dict groups;
  for (const auto& [id, group] : record.groups) {
    py::dict row;
    row["name"] = group.name;
    row["description"] = group.description;
    row["global_ranks"] = group.global_ranks;
    row["rank"] = group.rank;
    row["last_called"] = group.last_called;
    row["last_completed"] = group.last_completed;
    groups[py::int_(id)] = row;
  }
  return py::make_tuple(entries, groups);
}

// torch's translators serve torch's modules; the same for this one.
void translate(std::exception_ptr error) {
  const auto raise = [](const char* module, const char* type, const c10::Error& e) {
    PyErr_SetString(py::module_::import(module).attr(type).ptr(), e.what_without_backtrace());
  };
  try {
    if (error) std::rethrow_exception(error);
  } catch (const c10::ValueError& e) {
    raise("builtins", "ValueError", e);
  } catch (const c10::DistBackendError& e) {
    raise("torch.distributed", "DistBackendError", e);
  } catch (const c10::DistNetworkError& e) {
    raise("torch.distributed", "DistNetworkError", e);
  } catch (const c10::DistError& e) {
    raise("torch.distributed", "DistError", e);
  } catch (const c10::Error& e) {
    raise("builtins", "RuntimeError", e);
  }
}

}  // namespace

PYBIND11_MODULE(PYCOLL_TORCH_MODULE, m) {
  // What torch calls on the backend of a world with a device_id, and its Backend does not have.
  py::class_<Backend, c10d::Backend, c10::intrusive_ptr<Backend>>(m, "Backend")
      .def(
          "perform_nocolor_split", [](Backend&, const py::object&) {}, py::arg("device"),
          "For a new group that this rank is not in: nothing, its ranks meet without the others.")
      .def("share_pool", &Backend::share_pool, py::arg("device"), py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("options", &Backend::getBackendOptions);
  py::class_<GroupOptions, c10d::Backend::Options, c10::intrusive_ptr<GroupOptions>>(m, "GroupOptions")
      .def("__deepcopy__", [](const GroupOptions& options, const py::object&) {
        return c10::make_intrusive<GroupOptions>(options.timeout);
      });
  py::register_local_exception_translator(translate);
  m.def("create", &create, py::arg("store"), py::arg("notes"), py::arg("rank"), py::arg("ranks"),
        py::arg("timeout"), py::arg("group"), py::arg("decisions"), py::arg("rules"), py::arg("global_ranks"),
        py::arg("new_world"), py::arg("towards"), py::arg("interface"), py::arg("lanes"), py::arg("silence"),
        py::arg("connect_timeout"), py::arg("fixed_order"), py::arg("decide"), py::arg("accelerator"),
        py::call_guard<py::gil_scoped_release>());
  m.def("move_to_shared_memory", &move_to_shared_memory, py::arg("backend"), py::arg("tensor"));
  m.def("stragglers", &stragglers, py::arg("backend"));
  m.def("flight_record", &flight_record);
  m.def("shutdown_all", &Backend::shutdown_all, py::call_guard<py::gil_scoped_release>());
}

}  // namespace pycoll::torch_adapter
