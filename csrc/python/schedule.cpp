#include "schedule/schedule.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <memory>
#include <type_traits>

#include "algorithms/registry.h"
#include "core/error.h"
#include "python/bindings.h"
#include "schedule/verify.h"

namespace py = pybind11;

namespace pycoll {

namespace {

// The layout of Transfer in NumPy's words, so that a schedule's transfers are seen without a copy.
py::dtype transfer_dtype() {
  static_assert(std::is_standard_layout_v<Transfer> && sizeof(Action) == sizeof(bool));
  static_assert(static_cast<int>(Action::Copy) == 0 && static_cast<int>(Action::Reduce) == 1);
  py::list names, formats, offsets;
  const auto field = [&](const char* name, const char* format, size_t offset) {
    names.append(name);
    formats.append(format);
    offsets.append(offset);
  };
  field("round", "i4", offsetof(Transfer, round));
  field("src", "i4", offsetof(Transfer, src));
  field("dst", "i4", offsetof(Transfer, dst));
  field("piece", "i4", offsetof(Transfer, piece));
  field("reduce", "?", offsetof(Transfer, action));
  return py::dtype(names, formats, offsets, sizeof(Transfer));
}

template <std::vector<Transfer> Schedule::* kTransfers>
py::array view_of(const py::object& owner) {
  const auto& transfers = owner.cast<const Schedule&>().*kTransfers;
  py::array view(transfer_dtype(), {transfers.size()}, {sizeof(Transfer)}, transfers.data(), owner);
  view.attr("setflags")(py::arg("write") = false);
  return view;
}

// A row a transfer: round, src, dst, piece, reduce.
using TransferRows = py::array_t<int32_t, py::array::c_style>;

std::vector<Transfer> transfers_of(const TransferRows& rows) {
  if (rows.ndim() != 2 || rows.shape(1) != 5)
    throw InvalidArgument("transfers must be an array of five columns");
  std::vector<Transfer> transfers;
  const auto row = rows.unchecked<2>();
  transfers.reserve(static_cast<size_t>(row.shape(0)));
  for (py::ssize_t i = 0; i < row.shape(0); ++i)
    transfers.push_back(
        {row(i, 0), row(i, 1), row(i, 2), row(i, 3), row(i, 4) != 0 ? Action::Reduce : Action::Copy});
  return transfers;
}

std::shared_ptr<Schedule> make_schedule(const TransferRows& rows, std::string_view collective, int ranks,
                                        int pieces, int root, std::string algorithm,
                                        std::map<std::string, std::string> params,
                                        const TransferRows& preceding, const TransferRows& following) {
  auto schedule = std::make_shared<Schedule>();
  schedule->collective = {parse_kind(collective), ranks, pieces, root};
  schedule->collective.check();
  schedule->transfers = transfers_of(rows);
  schedule->preceding = transfers_of(preceding);
  schedule->following = transfers_of(following);
  schedule->algorithm = std::move(algorithm);
  schedule->params = std::move(params);
  return schedule;
}

py::dict describe(const Algorithm& algorithm) {
  py::list collectives;
  for (CollectiveKind kind : algorithm.collectives) collectives.append(name_of(kind));
  py::dict info;
  info["name"] = algorithm.name;
  info["description"] = algorithm.description;
  info["source"] = algorithm.source;
  info["collectives"] = py::tuple(collectives);
  info["valid_ranks"] = algorithm.valid_ranks;
  info["for_late_ranks"] = algorithm.for_late_ranks;
  return info;
}

}  // namespace

CollectiveKind parse_kind(std::string_view name) {
  if (const auto kind = collective_from_name(name)) return *kind;
  std::string known;
  for (int kind = 0; kind <= static_cast<int>(CollectiveKind::Barrier); ++kind)
    known += (kind ? ", " : "") + std::string(name_of(static_cast<CollectiveKind>(kind)));
  throw InvalidArgument("there is no collective '" + std::string(name) + "'; there are: " + known);
}

void bind_schedule(py::module_& module) {
  py::class_<ScheduleReport>(module, "ScheduleReport")
      .def_readonly("rounds", &ScheduleReport::rounds)
      .def_readonly("depth", &ScheduleReport::depth)
      .def_readonly("max_send_ports", &ScheduleReport::max_send_ports)
      .def_readonly("max_recv_ports", &ScheduleReport::max_recv_ports)
      .def_readonly("pieces_sent", &ScheduleReport::pieces_sent)
      .def_readonly("pieces_received", &ScheduleReport::pieces_received);

  py::class_<Schedule, std::shared_ptr<Schedule>>(module, "Schedule")
      .def(py::init(&make_schedule), py::arg("transfers"), py::arg("collective"), py::arg("ranks"),
           py::arg("pieces"), py::arg("root"), py::arg("algorithm"), py::arg("params"), py::arg("preceding"),
           py::arg("following"))
      .def(py::init<const Schedule&>(), py::arg("other"))
      .def_property_readonly("collective", [](const Schedule& self) { return name_of(self.collective.kind); })
      .def_property_readonly("ranks", &Schedule::ranks)
      .def_property_readonly("pieces", &Schedule::pieces)
      .def_property_readonly("root", [](const Schedule& self) { return self.collective.root; })
      .def_readonly("algorithm", &Schedule::algorithm)
      .def_readonly("params", &Schedule::params)
      .def_property_readonly("rounds", &Schedule::rounds)
      .def_property_readonly("hash", &Schedule::hash)
      .def_property_readonly("is_part", &Schedule::is_part)
      .def_property_readonly("transfers", &view_of<&Schedule::transfers>)
      .def_property_readonly("preceding", &view_of<&Schedule::preceding>)
      .def_property_readonly("following", &view_of<&Schedule::following>);

  module.attr("TRANSFER_DTYPE") = transfer_dtype();
  module.def("verify", &verify, py::arg("schedule"), py::call_guard<py::gil_scoped_release>());
  module.def(
      "build",
      [](std::string_view algorithm, std::string_view collective, int ranks, int pieces, int root,
         std::map<std::string, std::string> params, const Topology* topology) {
        const BuildRequest request{parse_kind(collective), ranks, pieces, root, std::move(params), topology};
        const py::gil_scoped_release unlocked;
        return std::make_shared<Schedule>(build(algorithm, request));
      },
      py::arg("algorithm"), py::arg("collective"), py::arg("ranks"), py::arg("pieces"), py::arg("root"),
      py::arg("params"), py::arg("topology") = nullptr);
  module.def("algorithms", [] {
    py::list infos;
    for (const Algorithm& algorithm : algorithms()) infos.append(describe(algorithm));
    return infos;
  });
  module.def(
      "algorithm_accepts",
      [](std::string_view name, int ranks) { return ranks >= 1 && find_algorithm(name).accepts(ranks); },
      py::arg("name"), py::arg("ranks"));
  // Throws InvalidArgument unless they fit the collective.
  module.def(
      "check_collective",
      [](std::string_view collective, int ranks, int pieces, int root) {
        Collective{parse_kind(collective), ranks, pieces, root}.check();
      },
      py::arg("collective"), py::arg("ranks"), py::arg("pieces"), py::arg("root"));
  module.def(
      "pieces_multiple",
      [](std::string_view collective, int ranks) {
        const Collective least{parse_kind(collective), ranks, 1, 0};
        least.check_ranks();
        return least.pieces_multiple();
      },
      py::arg("collective"), py::arg("ranks"));
  // For every piece of a valid collective, where it lies in a rank's input and output: (input index, output
  // index), -1 where it does not.
  module.def(
      "piece_layout",
      [](std::string_view kind, int ranks, int pieces, int root, int rank) {
        const Collective collective{parse_kind(kind), ranks, pieces, root};
        collective.check();
        std::vector<std::pair<int, int>> layout;
        for (int piece = 0; piece < pieces; ++piece)
          layout.emplace_back(collective.input_index(rank, piece), collective.output_index(rank, piece));
        return layout;
      },
      py::arg("collective"), py::arg("ranks"), py::arg("pieces"), py::arg("root"), py::arg("rank"));
}

}  // namespace pycoll
