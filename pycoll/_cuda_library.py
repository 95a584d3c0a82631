"""_cuda.so, the compiled part of pycoll.cuda, opened on demand. Its interface: csrc/cuda/api.h."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pycoll import _core
from pycoll.errors import Error, InvalidArgument, Unsupported

_ABI = 3


class Options(ctypes.Structure):
    _fields_ = (
        ("rank", ctypes.c_int32),
        ("ranks", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("blocks", ctypes.c_int32),
        ("slots", ctypes.c_int32),
        ("packets", ctypes.c_int32),
        ("staging", ctypes.c_uint64),
    )


class DeviceInfo(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char * 128),
        ("major", ctypes.c_int32),
        ("minor", ctypes.c_int32),
        ("multiprocessors", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("memory", ctypes.c_uint64),
    )


@dataclass(frozen=True)
class Device:
    """A GPU: its name, compute capability, multiprocessors, and memory in bytes."""

    index: int
    name: str
    capability: tuple[int, int]
    multiprocessors: int
    memory: int


ERRORS = {1: InvalidArgument, 2: Unsupported, 3: Error}
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "device_count": (ctypes.POINTER(ctypes.c_int32),),
    "device_info": (ctypes.c_int32, ctypes.POINTER(DeviceInfo)),
    "open": (ctypes.POINTER(Options), ctypes.POINTER(ctypes.c_void_p)),
    "handle": (ctypes.c_void_p, ctypes.c_char_p),
    "connect": (ctypes.c_void_p, ctypes.c_char_p),
    "close": (ctypes.c_void_p,),
    "abort": (ctypes.c_void_p,),
    "register": (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p),
    "register_connect": (ctypes.c_void_p, ctypes.c_char_p, ctypes.POINTER(ctypes.c_int32)),
    "unregister": (ctypes.c_void_p, ctypes.c_int32),
    "plan": (
        ctypes.c_void_p,
        ctypes.c_int32,
        ctypes.c_int32,
        ctypes.c_int32,
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int32,
        ctypes.POINTER(ctypes.c_int32),
    ),
    "run": (
        ctypes.c_void_p,
        ctypes.c_int32,
        ctypes.c_int32,
        ctypes.c_int32,
        ctypes.c_double,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_uint64,
        ctypes.c_int32,
        ctypes.c_void_p,
    ),
    "packets": (
        ctypes.c_void_p,
        ctypes.c_int32,
        ctypes.c_int32,
        ctypes.c_int32,
        ctypes.c_double,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_uint64,
        ctypes.c_void_p,
    ),
    "offers": (ctypes.c_int32, ctypes.POINTER(ctypes.c_uint32)),
    "open_memory": (ctypes.POINTER(Options), ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p)),
    "memory_kind": (ctypes.c_void_p, ctypes.POINTER(ctypes.c_int32)),
    "multicast_offer": (ctypes.c_void_p, ctypes.c_char_p),
    "multicast_join": (ctypes.c_void_p, ctypes.c_char_p),
    "multicast_bind": (ctypes.c_void_p,),
    "multicast_drop": (ctypes.c_void_p,),
    "nvls": (
        ctypes.c_void_p,
        ctypes.c_int32,
        ctypes.c_int32,
        ctypes.c_int32,
        ctypes.c_double,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_uint64,
        ctypes.c_void_p,
    ),
    "pool_offer": (ctypes.c_void_p, ctypes.c_char_p),
    "pool_connect": (ctypes.c_void_p, ctypes.c_char_p, ctypes.POINTER(ctypes.c_int32)),
    "pool_use": (ctypes.c_void_p,),
    "pool_finds": (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_int32)),
    "packets_limit": (ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_uint64)),
}


class Library:
    """_cuda.so: calls raise what its status says."""

    def __init__(self) -> None:
        path = library_path()
        if path is None:
            raise Unsupported(
                "pycoll was installed without its CUDA part: install it again where nvcc is, with "
                "pip install . -C cmake.define.PYCOLL_CUDA=ON (it takes a few minutes)"
            )
        try:
            self._library = ctypes.CDLL(str(path))
        except OSError as error:
            raise Unsupported(f"{path} cannot be loaded: {error}") from None
        if (found := self._library.pycoll_cuda_abi()) != _ABI:
            raise Unsupported(f"{path} is of another version of pycoll ({found}, not {_ABI}): install again")
        self._library.pycoll_cuda_error.restype = ctypes.c_char_p
        self._library.pycoll_cuda_handle_bytes.restype = ctypes.c_size_t
        self.handle_bytes = int(self._library.pycoll_cuda_handle_bytes())
        self._library.pycoll_cuda_pool_batch_bytes.restype = ctypes.c_size_t
        self.batch_bytes = int(self._library.pycoll_cuda_pool_batch_bytes())
        for name, arguments in _SIGNATURES.items():
            getattr(self._library, f"pycoll_cuda_{name}").argtypes = arguments

    def call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, f"pycoll_cuda_{name}")(*arguments)
        if status != 0:
            text = (self._library.pycoll_cuda_error() or b"").decode(errors="replace")
            raise ERRORS.get(status, Error)(text)


def library_path() -> Path | None:
    """Beside the other libraries: in an editable installation not where this file is."""
    for folder in (Path(__file__).parent, Path(_core.__file__).parent):
        if (path := folder / "_cuda.so").exists():
            return path
    return None


@functools.cache
def native() -> Library:
    return Library()


def devices() -> list[Device]:
    """The GPUs that this process sees.

    Raises Unsupported where the CUDA part is not installed, Error where there is no driver or no GPU.
    """
    count = ctypes.c_int32()
    native().call("device_count", ctypes.byref(count))
    found = []
    for index in range(count.value):
        info = DeviceInfo()
        native().call("device_info", index, ctypes.byref(info))
        found.append(
            Device(
                index, info.name.decode(), (info.major, info.minor), info.multiprocessors, int(info.memory)
            )
        )
    return found


def why_not() -> str:
    """Why GPUs cannot be used here, as a sentence; empty where they can."""
    try:
        return "" if devices() else "there is no GPU"
    except Error as error:
        return str(error)


def available() -> bool:
    """Whether the CUDA part is installed and sees a GPU."""
    return not why_not()
