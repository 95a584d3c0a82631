// Arrays as the engine wants them, read straight from the objects of NumPy and torch.
#pragma once
#include <pybind11/pybind11.h>

#include <cstddef>
#include <optional>

#include "reduce/dtype.h"

namespace pycoll {

struct PlainBuffer {
  void* data;
  DType dtype;
  size_t count;
  bool writable;
};

// For a C-contiguous, aligned array of a dtype that pycoll knows, in native byte order and in host memory: an
// exact numpy.ndarray, or a torch tensor once torch is registered. Nothing for any other object:
// pycoll/_buffers.py makes a plain one of it, or says what is wrong with it. Never raises, never imports
// torch.
std::optional<PlainBuffer> plain_buffer(pybind11::handle object);

void bind_arrays(pybind11::module_& module);

}  // namespace pycoll
