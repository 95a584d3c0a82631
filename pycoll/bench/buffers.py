"""The memory that a measurement uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pycoll import Unsupported, _buffers
from pycoll.bench.workload import Bits, Workload

Bytes = npt.NDArray[np.uint8]

_CACHE_LINE = 64


def private_bytes(size: int) -> Bytes:
    """Memory of this process alone, aligned to a cache line."""
    memory = np.empty(size + _CACHE_LINE, np.uint8)
    start = -memory.ctypes.data % _CACHE_LINE
    return memory[start : start + size]


@dataclass(frozen=True)
class Buffers:
    """Input and output of one call, as raw bits; empty where the rank has none. In place they share
    memory."""

    input: Bits
    output: Bits

    def fill(self, workload: Workload) -> None:
        if workload.input_length is not None:
            workload.fill_input(self.input)

    def poison(self, workload: Workload) -> None:
        """Overwrites an output that is not the input, so that a result left from before cannot pass for a
        new one."""
        if workload.output_length is not None and not workload.input_is_output:
            self.output.view(np.uint8)[...] = 0xA5

    def count_wrong(self, workload: Workload, input_kept: bool = True) -> int:
        return workload.count_wrong(self.input, self.output, input_kept)


def make_buffers(workload: Workload, copies: int, allocate: Callable[[int], Bytes]) -> list[Buffers]:
    """Buffers for `copies` calls, each of its own, from one allocation."""
    item = workload.dtype.itemsize
    input_bytes = (workload.input_length or 0) * item
    output_bytes = 0 if workload.input_is_output else (workload.output_length or 0) * item
    if workload.input_is_output:
        input_bytes = max(input_bytes, (workload.output_length or 0) * item)
    slots = [_padded(input_bytes), _padded(output_bytes)]
    memory = allocate(copies * sum(slots))
    made = []
    for begin in range(0, copies * sum(slots), sum(slots)) if sum(slots) else [0] * copies:
        first = memory[begin : begin + input_bytes].view(workload.bits)
        second = memory[begin + slots[0] : begin + slots[0] + output_bytes].view(workload.bits)
        made.append(
            Buffers(*_in_place(workload, first)) if workload.input_is_output else Buffers(first, second)
        )
    return made


def _in_place(workload: Workload, whole: Bits) -> tuple[Bits, Bits]:
    shard = whole[workload.rank * workload.count : (workload.rank + 1) * workload.count]
    if workload.case.collective == "all_gather":
        return shard, whole
    if workload.case.collective == "reduce_scatter":
        return whole, shard
    return whole, whole


def _padded(size: int) -> int:
    return -(-size // _CACHE_LINE) * _CACHE_LINE


def as_array(bits: Bits, dtype: str) -> Any:
    """The same memory as an array of `dtype`: NumPy's, through ml_dtypes or as a torch tensor where NumPy
    lacks it."""
    try:
        return bits.view(_buffers.numpy_dtype(dtype))
    except Unsupported:
        try:
            return as_tensor(bits, dtype)
        except ImportError:
            raise Unsupported(
                f"{dtype} needs the package ml_dtypes or torch: pip install ml_dtypes"
            ) from None


def as_tensor(bits: Bits, dtype: str) -> Any:
    """The same memory as a torch tensor."""
    import torch

    return torch.from_numpy(bits.view(np.uint8)).view(getattr(torch, dtype))
