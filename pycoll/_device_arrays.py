"""Arrays on GPUs (cupy's, torch's; NumPy's in tests) under one set of words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pycoll.errors import InvalidArgument, Unsupported

#: What the reductions of schedules are called by NumPy, cupy (ufuncs) and torch.
UFUNCS = {
    "sum": "add",
    "prod": "multiply",
    "max": "maximum",
    "min": "minimum",
    "band": "bitwise_and",
    "bor": "bitwise_or",
    "bxor": "bitwise_xor",
}
_TORCH_NAMES = {"prod": "mul"}


class ArrayLibrary:
    """What a run needs of arrays, in NumPy's and cupy's words."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def address(self, array: Any) -> int:
        if hasattr(array, "__cuda_array_interface__"):
            return int(array.__cuda_array_interface__["data"][0])
        return int(array.__array_interface__["data"][0])

    def dtype(self, array: Any) -> str:
        return str(array.dtype)

    def size(self, array: Any) -> int:
        return int(array.size)

    def bytes(self, array: Any) -> int:
        return int(array.nbytes)

    def contiguous(self, array: Any) -> bool:
        return bool(array.flags.c_contiguous)

    def on_gpu(self, array: Any) -> bool:
        return hasattr(array, "__cuda_array_interface__")

    def flat(self, array: Any) -> Any:
        return array.reshape(-1)

    def empty(self, like: Any, elements: int, dtype: str) -> Any:
        return self.module.empty(elements, _numpy_dtype(dtype))

    def copy(self, target: Any, source: Any) -> None:
        target[...] = source

    def cast(self, array: Any, dtype: str) -> Any:
        return array.astype(_numpy_dtype(dtype))

    def sign(self, array: Any) -> Any:
        return self.module.sign(array)

    def reduce(self, op: str, target: Any, source: Any) -> None:
        function: Callable[..., Any] = getattr(self.module, UFUNCS[op])
        try:
            function(target, source, out=target)
        except TypeError as error:
            raise Unsupported(
                f"{self.module.__name__} does not reduce {target.dtype} by {op}: {error}"
            ) from None

    def on(self, stream: int | None) -> _OnStream:
        return _OnStream(self, stream)

    def current_stream(self) -> int:
        cuda = getattr(self.module, "cuda", None)
        return int(cuda.get_current_stream().ptr) if cuda is not None else 0

    def enter(self, stream: int) -> Any:
        cuda = getattr(self.module, "cuda", None)
        return cuda.ExternalStream(stream) if cuda is not None else None


class TorchLibrary(ArrayLibrary):
    def address(self, array: Any) -> int:
        return int(array.data_ptr())

    def dtype(self, array: Any) -> str:
        return str(array.dtype).removeprefix("torch.")

    def size(self, array: Any) -> int:
        return int(array.numel())

    def bytes(self, array: Any) -> int:
        return int(array.numel() * array.element_size())

    def contiguous(self, array: Any) -> bool:
        return bool(array.is_contiguous())

    def on_gpu(self, array: Any) -> bool:
        return bool(array.is_cuda)

    def empty(self, like: Any, elements: int, dtype: str) -> Any:
        return self.module.empty(elements, dtype=getattr(self.module, dtype), device=like.device)

    def copy(self, target: Any, source: Any) -> None:
        target.copy_(source)

    def cast(self, array: Any, dtype: str) -> Any:
        return array.to(getattr(self.module, dtype))

    def reduce(self, op: str, target: Any, source: Any) -> None:
        function: Callable[..., Any] = getattr(self.module, _TORCH_NAMES.get(op, UFUNCS[op]))
        try:
            function(target, source, out=target)
        except (RuntimeError, TypeError) as error:
            raise Unsupported(f"torch does not reduce {target.dtype} by {op}: {error}") from None

    def current_stream(self) -> int:
        return int(self.module.cuda.current_stream().cuda_stream) if self.module.cuda.is_available() else 0

    def enter(self, stream: int) -> Any:
        if not self.module.cuda.is_available():
            return None
        return self.module.cuda.stream(self.module.cuda.ExternalStream(stream))


class _OnStream:
    """Makes a stream the current one of the array's library, and says which it is."""

    def __init__(self, library: ArrayLibrary, stream: int | None) -> None:
        self._stream = library.current_stream() if stream is None else stream
        self._entered = library.enter(stream) if stream is not None else None

    def __enter__(self) -> int:
        if self._entered is not None:
            self._entered.__enter__()
        return self._stream

    def __exit__(self, *error: object) -> None:
        if self._entered is not None:
            self._entered.__exit__(*error)


def _numpy_dtype(name: str) -> Any:
    from pycoll import _buffers

    return _buffers.numpy_dtype(name)


def library_of(array: Any) -> ArrayLibrary:
    root = type(array).__module__.partition(".")[0]
    if root == "torch":
        import torch

        return TorchLibrary(torch)
    if root == "cupy":
        import cupy

        return ArrayLibrary(cupy)
    if root == "numpy":
        return ArrayLibrary(np)
    raise InvalidArgument(
        f"takes cupy arrays and torch tensors, got {type(array).__module__}.{type(array).__name__}"
    )
