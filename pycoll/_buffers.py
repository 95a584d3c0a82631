"""Whatever holds numbers, made into what the engine wants: contiguous host memory with an address.

NumPy arrays and torch tensors are used where they lie. A strided one is copied into a contiguous staging
array, and its result copied back. torch is never imported here: where there is a tensor, its user has
imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pycoll import _core
from pycoll.errors import InvalidArgument, Unsupported

#: Anything that holds numbers: a NumPy array, a torch tensor, an object with the buffer protocol or DLPack.
Array = Any

_DTYPES = frozenset(_core.dtypes())
_ADDED_BY_A_PACKAGE = 2  # a value of dtype.isbuiltin
_DLPACK_HOST_DEVICES = (1, 3, 11)  # kDLCPU, and host memory pinned for CUDA and ROCm


@dataclass(slots=True)
class Buffer:
    """Contiguous memory of one array, or of its staging copy."""

    owner: Any  # keeps the memory alive
    address: int
    dtype: str
    count: int
    shape: tuple[int, ...]
    store: Callable[[], None] | None = None  # copies the staging copy back where it belongs


def readable(array: Array, call: str, name: str = "x") -> Buffer:
    """The array's numbers, to be read. `call` and `name` say in errors whose argument it is."""
    array = _as_array(array, call, name)
    plain = _describe(array, call, name)
    if plain is not None:
        address, dtype, count, _ = plain
        return Buffer(array, address, dtype, count, tuple(array.shape))
    return _staged(array, call, name)


def writable(array: Array, call: str, name: str = "out") -> Buffer:
    """Memory for a result, holding the array's present numbers; call `store` (where given) when it is
    there."""
    array = _as_array(array, call, name)
    plain = _describe(array, call, name)
    if plain is not None:
        address, dtype, count, can_write = plain
        if not can_write:
            raise InvalidArgument(
                f"{call}: {name} is read-only, and the result would be written to it: pass a copy"
            )
        return Buffer(array, address, dtype, count, tuple(array.shape))
    _refuse_unwritable(array, call, name)
    staging = _staged(array, call, name)
    source = staging.owner
    if isinstance(array, np.ndarray):

        def store() -> None:
            array[...] = source
    else:
        target = array.detach()  # autograd does not record collectives

        def store() -> None:
            target.copy_(source)

    staging.store = store
    return staging


def empty_like(array: Array, shape: Sequence[int]) -> Array:
    """A new array of the same library and dtype: NumPy's, for objects of neither NumPy nor torch."""
    if is_tensor(array):
        return sys.modules["torch"].empty(tuple(shape), dtype=array.dtype)
    return np.empty(tuple(shape), dtype=_as_array(array, "empty_like", "x").dtype)


def overlap(a: Buffer, b: Buffer) -> bool:
    size = _core.dtype_size(a.dtype)
    a_end = a.address + a.count * size
    b_end = b.address + b.count * size
    return a.address < b_end and b.address < a_end


def copied(buffer: Buffer) -> Buffer:
    """The same numbers in other memory."""
    owner = buffer.owner.clone() if is_tensor(buffer.owner) else buffer.owner.copy()
    address = owner.data_ptr() if is_tensor(owner) else owner.ctypes.data
    return Buffer(owner, address, buffer.dtype, buffer.count, buffer.shape)


def is_tensor(array: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def shared_array(memory: np.ndarray[Any, Any], shape: Sequence[int], dtype: Any) -> Array:
    """Bytes seen as an array of `shape` and `dtype`: a torch tensor where dtype is torch's, a NumPy array
    otherwise."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(dtype, torch.dtype):
        if not memory.size:
            return torch.empty(tuple(shape), dtype=dtype)
        return torch.from_numpy(memory).view(dtype).reshape(tuple(shape))
    return memory.view(numpy_dtype(dtype)).reshape(tuple(shape))


def dtype_name(dtype: Any, call: str) -> str:
    """pycoll's name of a dtype given as a name, as NumPy's or as torch's."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(dtype, torch.dtype):
        name = str(dtype).removeprefix("torch.")
        if name not in _DTYPES:
            raise Unsupported(f"{call}: there are no collectives on {dtype}; there are on {_dtype_list()}")
        return name
    return _numpy_name(numpy_dtype(dtype), call, "dtype")


def numpy_dtype(dtype: Any) -> np.dtype[Any]:
    try:
        known: np.dtype[Any] = np.dtype(dtype)
        return known
    except TypeError:
        if dtype not in _DTYPES:
            raise Unsupported(f"there is no dtype {dtype!r}; there are {_dtype_list()}") from None
    try:
        import ml_dtypes
    except ImportError:
        raise Unsupported(
            f"NumPy has {dtype} only through the package ml_dtypes: pip install ml_dtypes, or give "
            f"torch.{dtype}"
        ) from None
    added: np.dtype[Any] = np.dtype(getattr(ml_dtypes, dtype))
    return added


def _dtype_list() -> str:
    return ", ".join(_core.dtypes())


def _as_array(array: Array, call: str, name: str) -> Array:
    """The object as an exact np.ndarray or a torch tensor that shares its memory."""
    if type(array) is np.ndarray:
        return array
    if is_tensor(array):
        return array
    if isinstance(array, np.ma.MaskedArray):
        raise InvalidArgument(
            f"{call}: {name} is a masked array, whose mask would be ignored: pass {name}.filled(value) or "
            f"{name}.data"
        )
    if isinstance(array, np.ndarray):
        return array.view(np.ndarray)
    if isinstance(array, (bool, int, float, complex, np.generic)):
        raise InvalidArgument(
            f"{call}: {name} is a scalar ({type(array).__name__}), which cannot be written to: "
            f"pass an array, such as numpy.array({array})"
        )
    if isinstance(array, (list, tuple)):
        raise InvalidArgument(
            f"{call}: {name} is a {type(array).__name__}: pass an array, such as numpy.array({name}), "
            "or one call for each array"
        )
    return _foreign_array(array, call, name)


def _foreign_array(array: Array, call: str, name: str) -> np.ndarray[Any, Any]:
    try:
        return np.asarray(memoryview(array))
    except (TypeError, ValueError, BufferError):
        pass  # no buffer protocol, or one whose format NumPy does not know; DLPack may do better
    if hasattr(array, "__dlpack_device__"):
        if array.__dlpack_device__()[0] not in _DLPACK_HOST_DEVICES:
            raise Unsupported(
                f"{call}: {name} ({type(array).__name__}) does not lie in host memory: copy it there"
            )
        try:
            return np.from_dlpack(array)
        except (BufferError, TypeError, ValueError, RuntimeError) as error:
            raise Unsupported(f"{call}: {name} ({type(array).__name__}) cannot be shared: {error}") from error
    if hasattr(array, "__cuda_array_interface__"):
        raise Unsupported(f"{call}: {name} ({type(array).__name__}) lies in GPU memory: copy it to the host")
    raise InvalidArgument(
        f"{call}: {name} is a {type(array).__name__}: pass a NumPy array, a torch tensor, or an object with "
        "the "
        "buffer protocol or DLPack"
    )


def _describe(array: Array, call: str, name: str) -> tuple[int, str, int, bool] | None:
    """What the engine needs to know of a plain array; None for one that must be staged. Refuses what cannot
    be."""
    plain = _core.describe(array)
    if plain is not None:
        return plain
    if isinstance(array, np.ndarray):
        if array.dtype.isbuiltin == _ADDED_BY_A_PACKAGE:
            _core.register_numpy_dtype(array.dtype.num, _numpy_name(array.dtype, call, name))
            return _core.describe(array)
        _numpy_name(array.dtype, call, name)
        return None
    _check_tensor(array, call, name)
    return _core.describe(array)


def _numpy_name(dtype: np.dtype[Any], call: str, name: str) -> str:
    if not dtype.isnative:
        raise InvalidArgument(
            f"{call}: {name} holds {dtype} in the other byte order: pass "
            f"{name}.astype({name}.dtype.newbyteorder('='))"
        )
    if dtype.name not in _DTYPES or (
        dtype.isbuiltin == _ADDED_BY_A_PACKAGE and dtype.type.__module__ != "ml_dtypes"
    ):
        raise Unsupported(f"{call}: {name} holds {dtype}, and there are collectives on {_dtype_list()} only")
    return str(dtype.name)


_registered_torch = False


def _check_tensor(tensor: Any, call: str, name: str) -> None:
    """Refuses a tensor without memory of its own in the host, or of a dtype that collectives do not take."""
    global _registered_torch
    torch = sys.modules["torch"]
    if not _registered_torch:
        names = {getattr(torch, dtype): dtype for dtype in _DTYPES if hasattr(torch, dtype)}
        _core.register_torch((torch.Tensor, torch.nn.Parameter), names)
        _registered_torch = True
    if tensor.layout != torch.strided:
        raise Unsupported(f"{call}: {name} is a {tensor.layout} tensor: pass {name}.to_dense()")
    if tensor.device.type != "cpu":
        raise Unsupported(f"{call}: {name} lies on {tensor.device}: collectives here take tensors on the CPU")
    if str(tensor.dtype).removeprefix("torch.") not in _DTYPES:
        raise Unsupported(
            f"{call}: {name} holds {tensor.dtype}, and there are collectives on {_dtype_list()} only"
        )
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) and hasattr(type(tensor), "__torch_dispatch__"):
        raise Unsupported(
            f"{call}: {name} is a {type(tensor).__name__}, a wrapper without memory of its own: pass the "
            "tensor "
            "inside, such as .to_local()"
        )


def _staged(array: Array, call: str, name: str) -> Buffer:
    """A contiguous copy."""
    if isinstance(array, np.ndarray):
        owner: Any = np.array(array, order="C", copy=True)
    else:
        torch = sys.modules["torch"]
        owner = torch.empty(array.shape, dtype=array.dtype).copy_(array.detach())
    plain = _core.describe(owner)
    if plain is None:
        raise Unsupported(f"{call}: {name} ({type(array).__name__}) has no memory that could be sent")
    return Buffer(owner, plain[0], plain[1], plain[2], tuple(array.shape))


def _refuse_unwritable(array: Array, call: str, name: str) -> None:
    if isinstance(array, np.ndarray):
        if not array.flags.writeable:
            raise InvalidArgument(
                f"{call}: {name} is read-only, and the result would be written to it: pass a copy"
            )
        strides: Sequence[int] = array.strides
        itemsize = array.itemsize
    else:
        strides = array.stride()
        itemsize = 1
    reach = itemsize
    # From the smallest step up, each axis must step over all that the axes before it cover.
    for stride, length in sorted((abs(s), n) for s, n in zip(strides, array.shape, strict=True) if n > 1):
        if stride < reach:
            raise InvalidArgument(
                f"{call}: elements of {name} share memory (an expanded or broadcast array, or overlapping "
                "windows), "
                "so it cannot hold a result: pass a copy, or out="
            )
        reach += stride * (length - 1)
