#include "python/arrays.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <bit>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"

namespace py = pybind11;

namespace pycoll {
namespace {

std::optional<DType> number_dtype(char kind, ssize_t itemsize) {
  const auto by_size = [&](std::initializer_list<std::pair<ssize_t, DType>> sizes) -> std::optional<DType> {
    for (const auto& [size, dtype] : sizes)
      if (size == itemsize) return dtype;
    return std::nullopt;
  };
  switch (kind) {
    case 'f':
      return by_size({{4, DType::Float32}, {8, DType::Float64}, {2, DType::Float16}});
    case 'i':
      return by_size({{8, DType::Int64}, {4, DType::Int32}, {2, DType::Int16}, {1, DType::Int8}});
    case 'u':
      return by_size({{8, DType::UInt64}, {4, DType::UInt32}, {2, DType::UInt16}, {1, DType::UInt8}});
    case 'b':
      return DType::Bool;
    case 'c':
      return by_size({{8, DType::Complex64}, {16, DType::Complex128}});
    default:
      return std::nullopt;
  }
}

// dtypes that a package adds to NumPy (ml_dtypes' bfloat16 and float8) have numbers given out at run time.
std::vector<std::pair<int, DType>>& extension_dtypes() {
  static auto* const dtypes = new std::vector<std::pair<int, DType>>;
  return *dtypes;
}

constexpr int kFirstExtensionDtype = 256;

std::optional<DType> numpy_dtype(PyObject* descriptor) {
  const auto dtype = py::reinterpret_borrow<py::dtype>(descriptor);
  if (dtype.num() < kFirstExtensionDtype) {
    constexpr char foreign_order = std::endian::native == std::endian::little ? '>' : '<';
    if (dtype.byteorder() == foreign_order) return std::nullopt;
    return number_dtype(dtype.kind(), dtype.itemsize());
  }
  for (const auto& [number, known] : extension_dtypes())
    if (number == dtype.num()) return known;
  return std::nullopt;
}

std::optional<PlainBuffer> plain_numpy(PyObject* object) {
  using api = py::detail::npy_api;
  const auto* array = py::detail::array_proxy(object);
  constexpr int wanted = api::NPY_ARRAY_C_CONTIGUOUS_ | api::NPY_ARRAY_ALIGNED_;
  if ((array->flags & wanted) != wanted) return std::nullopt;
  const auto dtype = numpy_dtype(array->descr);
  if (!dtype) return std::nullopt;
  size_t count = 1;
  for (int axis = 0; axis < array->nd; ++axis) count *= static_cast<size_t>(array->dimensions[axis]);
  return PlainBuffer{array->data, *dtype, count, (array->flags & api::NPY_ARRAY_WRITEABLE_) != 0};
}

// What is known of torch, told by Python when it first meets a tensor. Never freed: the interpreter may end
// first.
struct Torch {
  std::vector<PyTypeObject*> tensor_types;
  std::vector<std::pair<PyObject*, DType>> dtypes;
  PyObject* dtype = PyUnicode_InternFromString("dtype");
  PyObject* is_cpu = PyUnicode_InternFromString("is_cpu");
  PyObject* is_contiguous = PyUnicode_InternFromString("is_contiguous");
  PyObject* is_neg = PyUnicode_InternFromString("is_neg");
  PyObject* is_conj = PyUnicode_InternFromString("is_conj");
  PyObject* data_ptr = PyUnicode_InternFromString("data_ptr");
  PyObject* numel = PyUnicode_InternFromString("numel");
};

Torch*& torch_face() {
  static Torch* torch = nullptr;
  return torch;
}

bool is_tensor(PyObject* object) {
  const Torch* torch = torch_face();
  if (!torch) return false;
  for (const PyTypeObject* type : torch->tensor_types)
    if (Py_TYPE(object) == type) return true;
  return false;
}

// Read through the tensor's own methods: its C++ layout changes with torch's version, they do not.
class TensorReader {
 public:
  explicit TensorReader(PyObject* tensor) : tensor_(tensor) {}

  bool truth(PyObject* method) const { return object(method).ptr() == Py_True; }
  bool attribute(PyObject* name) const { return take(PyObject_GetAttr(tensor_, name)).ptr() == Py_True; }
  size_t number(PyObject* method) const {
    const size_t value = PyLong_AsSize_t(object(method).ptr());
    if (PyErr_Occurred()) throw py::error_already_set();
    return value;
  }
  std::optional<DType> dtype() const {
    const py::object found = take(PyObject_GetAttr(tensor_, torch_face()->dtype));
    for (const auto& [object, dtype] : torch_face()->dtypes)
      if (found.ptr() == object) return dtype;
    return std::nullopt;
  }

 private:
  static py::object take(PyObject* made) {
    if (!made) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(made);
  }
  py::object object(PyObject* method) const { return take(PyObject_CallMethodNoArgs(tensor_, method)); }

  PyObject* tensor_;
};

std::optional<PlainBuffer> plain_tensor(PyObject* object) {
  const Torch& torch = *torch_face();
  const TensorReader tensor(object);
  if (!tensor.attribute(torch.is_cpu)) return std::nullopt;
  const auto dtype = tensor.dtype();
  if (!dtype || !tensor.truth(torch.is_contiguous) || tensor.truth(torch.is_neg)) return std::nullopt;
  const bool is_complex = *dtype == DType::Complex64 || *dtype == DType::Complex128;
  if (is_complex && tensor.truth(torch.is_conj)) return std::nullopt;  // conjugated lazily: the bytes are not
  const size_t count = tensor.number(torch.numel);
  auto* const data = reinterpret_cast<void*>(tensor.number(torch.data_ptr));
  if (!data && count) return std::nullopt;  // a wrapper without memory of its own
  return PlainBuffer{data, *dtype, count, true};
}

void register_torch(const py::tuple& tensor_types, const py::dict& dtypes) {
  auto* torch = new Torch;
  for (const auto& type : tensor_types)
    torch->tensor_types.push_back(reinterpret_cast<PyTypeObject*>(type.inc_ref().ptr()));
  for (const auto& [object, name] : dtypes) {
    const auto dtype = dtype_from_name(name.cast<std::string>());
    if (dtype) torch->dtypes.emplace_back(object.inc_ref().ptr(), *dtype);
  }
  torch_face() = torch;
}

void register_numpy_dtype(int number, const std::string& name) {
  const auto dtype = dtype_from_name(name);
  if (!dtype || number < kFirstExtensionDtype) throw InvalidArgument("no extension dtype of pycoll: " + name);
  for (const auto& known : extension_dtypes())
    if (known.first == number) return;
  extension_dtypes().emplace_back(number, *dtype);
}

py::object describe(const py::handle& object) {
  const auto buffer = plain_buffer(object);
  if (!buffer) return py::none();
  return py::make_tuple(reinterpret_cast<uintptr_t>(buffer->data), name_of(buffer->dtype), buffer->count,
                        buffer->writable);
}

}  // namespace

std::optional<PlainBuffer> plain_buffer(py::handle object) {
  if (Py_TYPE(object.ptr()) == py::detail::npy_api::get().PyArray_Type_) return plain_numpy(object.ptr());
  if (!is_tensor(object.ptr())) return std::nullopt;
  try {
    return plain_tensor(object.ptr());
  } catch (py::error_already_set&) {
    return std::nullopt;  // a tensor without strides or storage (sparse, fake); Python says so in words
  }
}

void bind_arrays(py::module_& module) {
  module.def("describe", &describe, py::arg("array"),
             "(address, dtype name, elements, writable) of a plain array, None for anything else.");
  module.def("register_torch", &register_torch, py::arg("tensor_types"), py::arg("dtypes"));
  module.def("register_numpy_dtype", &register_numpy_dtype, py::arg("number"), py::arg("name"));
  module.def(
      "dtype_size",
      [](const std::string& name) {
        const auto dtype = dtype_from_name(name);
        if (!dtype) throw Unsupported("there is no dtype called \"" + name + "\"");
        return size_of(*dtype);
      },
      py::arg("dtype"), "Bytes of one element.");
  module.def(
      "dtypes",
      [] {
        std::vector<std::string> names;
        for (const DType dtype : all_dtypes()) names.emplace_back(name_of(dtype));
        return names;
      },
      "Names of all dtypes that collectives take.");
}

}  // namespace pycoll
