#include "core/error.h"
#include "python/bindings.h"

namespace py = pybind11;

namespace pycoll {
namespace {

// The classes live as long as the process: a translator may run until the interpreter's last moment.
struct ErrorClasses {
  PyObject* error = nullptr;
  PyObject* invalid_argument = nullptr;
  PyObject* mismatch = nullptr;
  PyObject* peer_lost = nullptr;
  PyObject* timeout = nullptr;
  PyObject* aborted = nullptr;
  PyObject* unsupported = nullptr;
  PyObject* schedule_error = nullptr;
  PyObject* topology_error = nullptr;
};
ErrorClasses classes;

// `builtin`: the class that a person who knows only Python would catch.
PyObject* make_class(py::module_& module, const char* name, const char* doc, PyObject* base,
                     PyObject* builtin = nullptr) {
  const std::string qualified = std::string("pycoll.") + name;
  py::tuple bases = py::make_tuple(py::handle(base));
  if (builtin) bases = py::make_tuple(py::handle(base), py::handle(builtin));
  PyObject* made = PyErr_NewExceptionWithDoc(qualified.c_str(), doc, bases.ptr(), nullptr);
  if (!made) throw py::error_already_set();
  module.add_object(name, py::handle(made));
  return made;
}

void translate(std::exception_ptr pointer) {
  const auto raise = [](PyObject* type, const std::exception& error) { py::set_error(type, error.what()); };
  try {
    std::rethrow_exception(pointer);
  } catch (const InvalidArgument& error) {
    raise(classes.invalid_argument, error);
  } catch (const Mismatch& error) {
    raise(classes.mismatch, error);
  } catch (const PeerLost& error) {
    raise(classes.peer_lost, error);
  } catch (const Timeout& error) {
    raise(classes.timeout, error);
  } catch (const Aborted& error) {
    raise(classes.aborted, error);
  } catch (const Unsupported& error) {
    raise(classes.unsupported, error);
  } catch (const ScheduleError& error) {
    raise(classes.schedule_error, error);
  } catch (const TopologyError& error) {
    raise(classes.topology_error, error);
  } catch (const Error& error) {
    raise(classes.error, error);
  }
}

}  // namespace

void bind_errors(py::module_& module) {
  classes.error = make_class(module, "Error", "Base of all errors that pycoll raises.", PyExc_Exception);
  classes.invalid_argument = make_class(
      module, "InvalidArgument",
      "A caller's argument is wrong. Nothing was sent, and the group is as it was. Also a ValueError.",
      classes.error, PyExc_ValueError);
  classes.mismatch = make_class(
      module, "Mismatch",
      "Ranks called different collectives at the same step. No data was delivered; the group is usable.",
      classes.error);
  classes.peer_lost = make_class(
      module, "PeerLost", "A rank of the group left, exited or was killed. The group is no longer usable.",
      classes.error);
  classes.timeout =
      make_class(module, "Timeout", "A deadline passed. The group is no longer usable. Also a TimeoutError.",
                 classes.error, PyExc_TimeoutError);
  classes.aborted =
      make_class(module, "Aborted", "The group was aborted, by this rank or by another one.", classes.error);
  classes.unsupported =
      make_class(module, "Unsupported",
                 "What was asked for is meaningful but not to be had. Also a NotImplementedError.",
                 classes.error, PyExc_NotImplementedError);
  classes.schedule_error =
      make_class(module, "ScheduleError",
                 "A schedule is malformed, or does not do what its collective promises. Also a ValueError.",
                 classes.error, PyExc_ValueError);
  classes.topology_error =
      make_class(module, "TopologyError", "A topology is malformed, or cannot carry what was asked of it.",
                 classes.error);
  py::register_local_exception_translator(&translate);
}

}  // namespace pycoll
