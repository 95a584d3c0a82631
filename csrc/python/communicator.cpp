#include "engine/communicator.h"

#include <pthread.h>
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "python/arrays.h"
#include "python/bindings.h"

namespace py = pybind11;

namespace pycoll {
namespace {

// A forked child shares its parent's groups' memory and must neither use nor leave them.
std::atomic<int> fork_generation{0};

Nanoseconds from_seconds(double seconds) {
  constexpr double longest = 1e9;  // seconds; far from overflowing nanoseconds
  if (!(seconds > 0)) throw InvalidArgument("a timeout must be a positive number of seconds");
  return Nanoseconds(static_cast<int64_t>(std::min(seconds, longest) * 1e9));
}

std::optional<Nanoseconds> from_seconds(std::optional<double> seconds) {
  if (!seconds) return std::nullopt;
  return from_seconds(*seconds);
}

// Buffers of works that were dropped before they ended. They must outlive the works, and the threads that end
// works must not need the GIL; so they are kept here, and let go when the group is next used, or closed.
class Unfinished {
 public:
  void add(std::shared_ptr<Work> work, py::object buffers) {
    entries_.emplace_back(std::move(work), std::move(buffers));
  }
  void sweep() {
    std::erase_if(entries_, [](const auto& entry) { return entry.first->done(); });
  }
  // For the group's end: what runs even then keeps its buffers for ever, since nobody will see it end.
  void let_go() {
    for (auto& entry : entries_) entry.second.release();
    entries_.clear();
  }

 private:
  std::vector<std::pair<std::shared_ptr<Work>, py::object>> entries_;
};

class PyWork {
 public:
  PyWork(std::shared_ptr<Work> work, py::object buffers, std::shared_ptr<Unfinished> unfinished,
         std::shared_ptr<int> source = nullptr)
      : work_(std::move(work)),
        buffers_(std::move(buffers)),
        unfinished_(std::move(unfinished)),
        source_(std::move(source)) {}
  PyWork(const PyWork&) = delete;
  PyWork& operator=(const PyWork&) = delete;
  ~PyWork() {
    if (work_->done()) return;
    const py::capsule source(new std::shared_ptr<int>(source_),
                             [](void* held) { delete static_cast<std::shared_ptr<int>*>(held); });
    unfinished_->add(work_, py::make_tuple(buffers_, source));
  }

  bool done() const { return work_->done(); }
  void wait(std::optional<double> timeout) const {
    const auto limit = from_seconds(timeout);
    const py::gil_scoped_release release;
    work_->wait(limit);
  }
  void raise_error() const {
    if (const auto error = work_->exception()) std::rethrow_exception(error);
  }
  int source() const { return source_ ? *source_ : -1; }

 private:
  std::shared_ptr<Work> work_;
  py::object buffers_;
  std::shared_ptr<Unfinished> unfinished_;
  std::shared_ptr<int> source_;
};

// To Python's logger "pycoll".
void log_warning(const std::string& text) {
  const py::gil_scoped_acquire acquire;
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
    const py::gil_scoped_acquire acquire;
    std::vector<std::string> names;
    for (const Host& host : placement.hosts) names.push_back(host.name);
    return decide(names, placement.host_of).cast<std::string>();
  };
}

// A collective's arguments as pycoll/communicator.py gives them: buffers are addresses, 0 for none.
struct Arguments {
  std::string_view kind;
  std::string_view dtype;
  std::string_view op;
  double factor;
  int root;
  uintptr_t input;
  uintptr_t output;
  size_t count;
  std::shared_ptr<const Schedule> schedule;
  std::string_view algorithm;
  int pieces;
  std::optional<double> timeout;
};

template <class Value>
Value known(std::optional<Value> value, const char* what, std::string_view name) {
  if (value) return *value;
  throw InvalidArgument(std::string("there is no ") + what + " called \"" + std::string(name) + "\"");
}

CollectiveCall to_call(Arguments arguments) {
  CollectiveCall call;
  call.kind = known(collective_from_name(arguments.kind), "collective", arguments.kind);
  call.dtype = known(dtype_from_name(arguments.dtype), "dtype", arguments.dtype);
  call.op = known(op_from_name(arguments.op), "reduce operator", arguments.op);
  call.factor = arguments.factor;
  call.root = arguments.root;
  call.input = reinterpret_cast<const void*>(arguments.input);
  call.output = reinterpret_cast<void*>(arguments.output);
  call.count = arguments.count;
  call.schedule = std::move(arguments.schedule);
  call.algorithm = std::string(arguments.algorithm);
  call.pieces = arguments.pieces;
  call.timeout = from_seconds(arguments.timeout);
  return call;
}

class PyCommunicator {
 public:
  explicit PyCommunicator(std::shared_ptr<Communicator> engine)
      : engine_(std::move(engine)), generation_(fork_generation) {}
  PyCommunicator(const PyCommunicator&) = delete;
  PyCommunicator& operator=(const PyCommunicator&) = delete;
  ~PyCommunicator() {
    if (forked()) {
      new std::shared_ptr<Communicator>(std::move(engine_));  // leaving the group is the parent's to do
      return;
    }
    {
      const py::gil_scoped_release release;
      engine_->close();
    }
    unfinished_->sweep();
    unfinished_->let_go();
  }

  static std::unique_ptr<PyCommunicator> create(int rank, int ranks, const py::function& all_gather,
                                                const std::string& group, double timeout,
                                                const std::string& decisions, const std::string& rules,
                                                const std::string& towards, const std::string& interface,
                                                int lanes, double silence, double connect_timeout,
                                                bool fixed_order, const py::object& decide) {
    CommunicatorOptions options;
    options.fixed_order = fixed_order;
    options.decide = asking(decide);
    options.network.towards = towards;
    options.network.interface = interface;
    options.network.lanes = lanes;
    options.network.silence = from_seconds(silence);
    options.network.connect_timeout = from_seconds(connect_timeout);
    options.decisions = decisions;
    options.rules = rules;
    options.log = log_warning;
    options.group = group;
    options.timeout = from_seconds(timeout);
    options.interrupted = [] {  // Ctrl-C; on other threads than the main one it never finds anything
      const py::gil_scoped_acquire acquire;
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    };
    const AllGatherBytes gather = [&all_gather](const std::string& mine) {
      const py::gil_scoped_acquire acquire;
      return all_gather(py::bytes(mine)).cast<std::vector<std::string>>();
    };
    const py::gil_scoped_release release;
    return std::make_unique<PyCommunicator>(Communicator::create(rank, ranks, gather, std::move(options)));
  }

  bool forked() const { return generation_ != fork_generation; }
  Communicator& engine() const {
    if (forked())
      throw InvalidArgument(
          "group \"" + engine_->options().group +
          "\" was made before this process was forked, and belongs to the parent: make a group "
          "of the child's own with pycoll.init");
    return *engine_;
  }

  void run(const CollectiveCall& call) const {
    Communicator& group = engine();
    const py::gil_scoped_release release;
    group.run(call);
  }

  std::unique_ptr<PyWork> submit(const CollectiveCall& call, py::object buffers) const {
    unfinished_->sweep();
    return std::make_unique<PyWork>(engine().submit(call), std::move(buffers), unfinished_);
  }

  // The common call, without a detour through Python: plain arrays, in place or into `out`, and all else by
  // default. False: take the detour, which also says what may be wrong.
  bool run_plain(std::string_view kind, const py::handle& array, const py::handle& out, const py::handle& op,
                 int root) const {
    const auto input = plain_buffer(array);
    const auto output = out.is_none() ? input : plain_buffer(out);
    if (!input || !output || !output->writable || output->dtype != input->dtype || !PyUnicode_Check(op.ptr()))
      return false;
    const auto known_op = op_from_name(utf8(op));
    const auto known_kind = collective_from_name(kind);
    if (!known_op || *known_op == Op::PremulSum || !known_kind) return false;
    CollectiveCall call;
    call.kind = *known_kind;
    call.dtype = input->dtype;
    call.op = *known_op;
    call.root = root;
    call.input = input->data;
    call.output = output->data;
    if (!fits(call, *input, *output)) return false;
    run(call);
    return true;
  }

  std::unique_ptr<PyWork> send(uintptr_t data, size_t bytes, int destination, uint64_t tag,
                               std::optional<double> timeout, py::object buffers) const {
    unfinished_->sweep();
    auto work =
        engine().send(reinterpret_cast<const void*>(data), bytes, destination, tag, from_seconds(timeout));
    return std::make_unique<PyWork>(std::move(work), std::move(buffers), unfinished_);
  }

  std::unique_ptr<PyWork> recv(uintptr_t data, size_t bytes, int source, uint64_t tag,
                               std::optional<double> timeout, py::object buffers) const {
    unfinished_->sweep();
    auto sender = std::make_shared<int>(source);
    auto work =
        engine().recv(reinterpret_cast<void*>(data), bytes, source, tag, from_seconds(timeout), sender.get());
    return std::make_unique<PyWork>(std::move(work), std::move(buffers), unfinished_, std::move(sender));
  }

  // Bytes in shared memory that live as long as some array refers to them, and keep the group's memory
  // mapped.
  py::array allocate(size_t bytes) const {
    struct Lease {
      std::shared_ptr<Communicator> engine;
      void* data;
      int generation;
    };
    auto* const lease = new Lease{engine_, engine().allocate(std::max<size_t>(bytes, 1)), generation_};
    const py::capsule owner(lease, [](void* held) {
      auto* const lease = static_cast<Lease*>(held);
      if (lease->generation != fork_generation) return;
      lease->engine->deallocate(lease->data);
      delete lease;
    });
    return py::array_t<uint8_t>({bytes}, {size_t{1}}, static_cast<const uint8_t*>(lease->data), owner);
  }

  void abort(const std::string& reason) const {
    const py::gil_scoped_release release;
    engine().abort(reason);
  }

  void close() const {
    if (forked()) return;
    {
      const py::gil_scoped_release release;
      engine_->close();
    }
    unfinished_->sweep();
  }

 private:
  // Whether the buffers' lengths suit the kind, and they are one or apart. Sets the call's count.
  bool fits(CollectiveCall& call, const PlainBuffer& input, const PlainBuffer& output) const {
    const auto ranks = static_cast<size_t>(engine().ranks());
    size_t in_shares = 1, out_shares = 1;
    switch (call.kind) {
      case CollectiveKind::AllReduce:
        break;
      case CollectiveKind::Broadcast:
        if (call.root != engine().rank()) call.input = nullptr;
        break;
      case CollectiveKind::ReduceScatter:
        in_shares = ranks;
        break;
      case CollectiveKind::AllGather:
        out_shares = ranks;
        break;
      case CollectiveKind::AllToAll:
        in_shares = out_shares = ranks;
        break;
      default:
        return false;
    }
    call.count = input.count / in_shares;
    if (call.count * in_shares != input.count || call.count * out_shares != output.count) return false;
    if (input.data == output.data) return input.count == output.count;
    const size_t size = size_of(call.dtype);
    const auto* const in = static_cast<const std::byte*>(input.data);
    const auto* const out = static_cast<const std::byte*>(output.data);
    return in + input.count * size <= out || out + output.count * size <= in;
  }

  static std::string_view utf8(const py::handle& text) {
    Py_ssize_t length = 0;
    const char* data = PyUnicode_AsUTF8AndSize(text.ptr(), &length);
    if (!data) throw py::error_already_set();
    return {data, static_cast<size_t>(length)};
  }

  std::shared_ptr<Communicator> engine_;
  std::shared_ptr<Unfinished> unfinished_ = std::make_shared<Unfinished>();
  int generation_;
};

py::tuple memory(const PyCommunicator& group) {
  const MemoryReport report = group.engine().memory();
  return py::make_tuple(report.shared_bytes, report.private_bytes, report.allocated_bytes);
}

void install(const PyCommunicator& group, const std::string& table) {
  Communicator& engine = group.engine();
  const py::gil_scoped_release release;
  engine.install(DecisionTable::parse(table));
}

// Rows (collective, dtype class, distance, begin, end or None, ways, basis, alpha, beta, reason, typical).
py::list decisions(const PyCommunicator& group) {
  py::list rows;
  for (const DecisionState& state : group.engine().decisions()) {
    const Decision& row = state.decision;
    py::list ways;
    for (const Way& way : row.ways) ways.append(way.name());
    const char* const dtypes = !row.dtypes[0] ? "narrow" : !row.dtypes[1] ? "wide" : "any";
    const char* const distance = !row.distances[0] ? "far" : !row.distances[1] ? "near" : "any";
    const py::object end = row.end == UINT64_MAX ? py::object(py::none()) : py::int_(row.end);
    rows.append(py::make_tuple(name_of(row.kind), dtypes, distance, row.begin, end, ways, name_of(row.basis),
                               row.alpha, row.beta, row.reason, state.typical));
  }
  return rows;
}

py::list arrivals(const PyCommunicator& group) {
  py::list records;
  for (const ArrivalRecord& record : group.engine().arrivals())
    records.append(py::make_tuple(record.sequence, record.lateness));
  return records;
}

}  // namespace

void bind_communicator(py::module_& module) {
  pthread_atfork(nullptr, nullptr, [] { ++fork_generation; });
  bind_arrays(module);

  py::class_<PyWork>(module, "Work")
      .def("done", &PyWork::done)
      .def("wait", &PyWork::wait, py::arg("timeout") = py::none())
      .def("raise_error", &PyWork::raise_error, "Raises what the work ended with, if it failed.")
      .def_property_readonly("source", &PyWork::source, "The rank a message came from.");

  py::class_<PyCommunicator>(module, "Communicator")
      .def_static("create", &PyCommunicator::create, py::arg("rank"), py::arg("ranks"), py::arg("all_gather"),
                  py::arg("group"), py::arg("timeout"), py::arg("decisions") = "", py::arg("rules") = "",
                  py::arg("towards") = "", py::arg("interface") = "", py::arg("lanes") = 1,
                  py::arg("silence") = 4.0, py::arg("connect_timeout") = 30.0, py::arg("fixed_order") = false,
                  py::arg("decide") = py::none())
      .def_property_readonly("rank", [](const PyCommunicator& group) { return group.engine().rank(); })
      .def_property_readonly("ranks", [](const PyCommunicator& group) { return group.engine().ranks(); })
      .def(
          "set_timeout",
          [](const PyCommunicator& group, double seconds) {
            group.engine().set_timeout(from_seconds(seconds));
          },
          py::arg("seconds"))
      .def_property_readonly("sequence",
                             [](const PyCommunicator& group) { return group.engine().sequence(); })
      .def("run_plain", &PyCommunicator::run_plain, py::arg("kind"), py::arg("array"), py::arg("out"),
           py::arg("op"), py::arg("root"))
      .def("barrier",
           [](const PyCommunicator& group) {
             CollectiveCall call;
             call.kind = CollectiveKind::Barrier;
             group.run(call);
           })
      .def(
          "run",
          [](const PyCommunicator& group, std::string_view kind, std::string_view dtype, std::string_view op,
             double factor, int root, uintptr_t input, uintptr_t output, size_t count,
             std::shared_ptr<Schedule> schedule, std::string_view algorithm, int pieces,
             std::optional<double> timeout) {
            group.run(to_call({kind, dtype, op, factor, root, input, output, count, std::move(schedule),
                               algorithm, pieces, timeout}));
          },
          py::arg("kind"), py::arg("dtype"), py::arg("op"), py::arg("factor"), py::arg("root"),
          py::arg("input"), py::arg("output"), py::arg("count"), py::arg("schedule"), py::arg("algorithm"),
          py::arg("pieces"), py::arg("timeout"))
      .def(
          "submit",
          [](const PyCommunicator& group, std::string_view kind, std::string_view dtype, std::string_view op,
             double factor, int root, uintptr_t input, uintptr_t output, size_t count,
             std::shared_ptr<Schedule> schedule, std::string_view algorithm, int pieces,
             std::optional<double> timeout, py::object buffers) {
            return group.submit(to_call({kind, dtype, op, factor, root, input, output, count,
                                         std::move(schedule), algorithm, pieces, timeout}),
                                std::move(buffers));
          },
          py::arg("kind"), py::arg("dtype"), py::arg("op"), py::arg("factor"), py::arg("root"),
          py::arg("input"), py::arg("output"), py::arg("count"), py::arg("schedule"), py::arg("algorithm"),
          py::arg("pieces"), py::arg("timeout"), py::arg("buffers"))
      .def(
          "chosen_algorithm",
          [](const PyCommunicator& group, std::string_view kind, std::string_view dtype, std::string_view op,
             int root, size_t count) {
            return group.engine().chosen_algorithm(
                to_call({kind, dtype, op, 1.0, root, 0, 0, count, nullptr, "", 0, std::nullopt}));
          },
          py::arg("kind"), py::arg("dtype"), py::arg("op"), py::arg("root"), py::arg("count"))
      .def("install", &install, py::arg("table"))
      .def("decisions", &decisions)
      .def("send", &PyCommunicator::send, py::arg("data"), py::arg("bytes"), py::arg("destination"),
           py::arg("tag"), py::arg("timeout"), py::arg("buffers"))
      .def("recv", &PyCommunicator::recv, py::arg("data"), py::arg("bytes"), py::arg("source"),
           py::arg("tag"), py::arg("timeout"), py::arg("buffers"))
      .def("allocate", &PyCommunicator::allocate, py::arg("bytes"))
      .def("memory", &memory)
      .def("arrivals", &arrivals)
      .def("early_report",
           [](const PyCommunicator& group) {
             const EarlyReport report = group.engine().early_report();
             return py::make_tuple(report.calls, report.early, report.seconds_won);
           })
      .def("abort", &PyCommunicator::abort, py::arg("reason"))
      .def("close", &PyCommunicator::close);
}

}  // namespace pycoll
