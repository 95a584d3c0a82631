// The reduction kernels by themselves, for tests and measurements. Arrays come as their bytes (view them as
// uint8): NumPy's buffer protocol knows neither bfloat16 nor the 8-bit floats.
#include "reduce/reduce.h"

#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "python/bindings.h"

namespace py = pybind11;

namespace pycoll {
namespace {

DType parse_dtype(const std::string& name) {
  if (const auto dtype = dtype_from_name(name)) return *dtype;
  // The wire's accumulator has a name here only.
  if (name == name_of(DType::Int128)) return DType::Int128;
  throw InvalidArgument("no dtype is named \"" + name + "\"");
}

Op parse_op(const std::string& name) {
  if (const auto op = op_from_name(name)) return *op;
  throw InvalidArgument("no op is named \"" + name + "\"");
}

struct Bytes {
  py::buffer_info info;
  Bytes(const py::buffer& buffer, bool writable) : info(buffer.request(writable)) {
    if (info.itemsize != 1 || info.ndim != 1 || (info.size > 1 && info.strides[0] != 1)) {
      throw InvalidArgument("arrays come as one-dimensional, contiguous uint8 views");
    }
  }
  size_t count(DType dtype) const {
    if (static_cast<size_t>(info.size) % size_of(dtype) != 0) {
      throw InvalidArgument(std::to_string(info.size) + " bytes are no whole number of " +
                            std::string(name_of(dtype)));
    }
    return static_cast<size_t>(info.size) / size_of(dtype);
  }
};

Stores stores(bool non_temporal) {
  return non_temporal ? Stores::NonTemporal : Stores::Plain;
}

void reduce_arrays(const std::string& dtype_name, const std::string& op_name,
                   const std::vector<py::buffer>& sources, const std::vector<py::buffer>& destinations,
                   const std::optional<std::vector<double>>& factors, int divisor, bool non_temporal) {
  const DType dtype = parse_dtype(dtype_name);
  const Op op = parse_op(op_name);
  std::vector<Bytes> held;
  std::vector<const void*> from;
  std::vector<void*> to;
  for (const auto& source : sources) from.push_back(held.emplace_back(source, false).info.ptr);
  for (const auto& destination : destinations) to.push_back(held.emplace_back(destination, true).info.ptr);
  size_t count = held.empty() ? 0 : held.front().count(dtype);
  for (const Bytes& bytes : held) {
    if (bytes.count(dtype) != count) throw InvalidArgument("arrays differ in length");
  }
  if (factors && factors->size() != sources.size()) {
    throw InvalidArgument(std::to_string(factors->size()) + " factors for " + std::to_string(sources.size()) +
                          " sources");
  }
  py::gil_scoped_release release;
  reduce_many(dtype, op, from, to, count, factors ? factors->data() : nullptr, divisor, stores(non_temporal));
}

void widen_array(const std::string& dtype_name, const std::string& op_name, const py::buffer& source,
                 const py::buffer& destination, double factor, int ranks) {
  const DType dtype = parse_dtype(dtype_name);
  const Op op = parse_op(op_name);
  const Bytes from(source, false);
  const Bytes to(destination, true);
  const size_t count = from.count(dtype);
  if (to.count(wire_dtype(dtype, op)) != count) throw InvalidArgument("arrays differ in length");
  widen(dtype, op, from.info.ptr, to.info.ptr, count, factor, ranks);
}

void narrow_array(const std::string& dtype_name, const std::string& op_name, const py::buffer& source,
                  const py::buffer& destination, int ranks) {
  const DType dtype = parse_dtype(dtype_name);
  const Op op = parse_op(op_name);
  const Bytes from(source, false);
  const Bytes to(destination, true);
  const size_t count = to.count(dtype);
  if (from.count(wire_dtype(dtype, op)) != count) throw InvalidArgument("arrays differ in length");
  narrow(dtype, op, from.info.ptr, to.info.ptr, count, ranks);
}

void copy_array(const py::buffer& destination, const py::buffer& source, bool non_temporal) {
  const Bytes to(destination, true);
  const Bytes from(source, false);
  if (to.info.size != from.info.size) throw InvalidArgument("arrays differ in length");
  copy_bytes(to.info.ptr, from.info.ptr, static_cast<size_t>(to.info.size), stores(non_temporal));
}

std::vector<std::string> names_of_kernels() {
  std::vector<std::string> names;
  for (std::string_view name : kernel_names()) names.emplace_back(name);
  return names;
}

}  // namespace

void bind_reduce(py::module_& module) {
  module.def("reduce_many", &reduce_arrays, py::arg("dtype"), py::arg("op"), py::arg("sources"),
             py::arg("destinations"), py::kw_only(), py::arg("factors") = py::none(), py::arg("divisor") = 0,
             py::arg("non_temporal") = false,
             "destinations[j][i] = op over k of sources[k][i]; arrays are uint8 views of equal length.");
  module.def("widen", &widen_array, py::arg("dtype"), py::arg("op"), py::arg("source"),
             py::arg("destination"), py::kw_only(), py::arg("factor") = 1.0, py::arg("ranks") = 1,
             "One rank's contribution in the dtype that wire_dtype(dtype, op) names.");
  module.def("narrow", &narrow_array, py::arg("dtype"), py::arg("op"), py::arg("source"),
             py::arg("destination"), py::kw_only(), py::arg("ranks") = 1,
             "The reduced contributions back in dtype.");
  module.def("copy_bytes", &copy_array, py::arg("destination"), py::arg("source"), py::kw_only(),
             py::arg("non_temporal") = false, "A copy, with stores through or around the cache.");
  module.def(
      "wire_dtype",
      [](const std::string& dtype, const std::string& op) {
        return std::string(name_of(wire_dtype(parse_dtype(dtype), parse_op(op))));
      },
      py::arg("dtype"), py::arg("op"), "What contributions travel in where a schedule reduces hop by hop.");
  module.def(
      "require_supported",
      [](const std::string& dtype, const std::string& op) {
        require_supported(parse_dtype(dtype), parse_op(op));
      },
      py::arg("dtype"), py::arg("op"), "Raises Unsupported, naming both, where the pair has no meaning.");
  module.def("kernel_names", &names_of_kernels, "The kernels that this processor can run, the best last.");
  module.def("kernel_name", [] { return std::string(kernel_name()); }, "The kernels in use.");
  module.def(
      "select_kernels", [](const std::string& name) { select_kernels(name); }, py::arg("name"),
      "Use these kernels from now on, in this process. For tests and measurements.");
}

}  // namespace pycoll
