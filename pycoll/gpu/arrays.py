"""What measuring needs of a GPU: arrays, and its clock. torch's here; tests bring another."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pycoll.errors import Unsupported

__all__ = ["Arrays", "TorchArrays", "arrays_of"]

Values = npt.NDArray[np.float32]


class Arrays(Protocol):
    """One rank's GPU."""

    def stream(self) -> AbstractContextManager[Any]:
        """A stream of its own, current inside the context."""

    def array(self, values: Values, dtype: str) -> Any:
        """The values on the GPU."""

    def assign(self, target: Any, source: Any) -> None: ...

    def clear(self, array: Any) -> None: ...

    def count_wrong(self, array: Any, right: Any) -> int:
        """Elements that differ in any bit."""

    def seconds(self, call: Callable[[], object], calls: int) -> float:
        """Of one call by the GPU's clock, of so many one after another on the current stream, after one that
        is not timed."""

    def synchronize(self) -> None: ...


class TorchArrays:
    """By torch: its streams and events."""

    def __init__(self, device: int) -> None:
        self._torch: Any = import_module("torch")
        self._device = device
        self._torch.cuda.set_device(device)

    def stream(self) -> AbstractContextManager[Any]:
        entered: AbstractContextManager[Any] = self._torch.cuda.stream(self._torch.cuda.Stream())
        return entered

    def array(self, values: Values, dtype: str) -> Any:
        return self._torch.from_numpy(values).cuda(self._device).to(getattr(self._torch, dtype))

    def assign(self, target: Any, source: Any) -> None:
        target.copy_(source)

    def clear(self, array: Any) -> None:
        array.zero_()

    def count_wrong(self, array: Any, right: Any) -> int:
        uint8 = self._torch.uint8  # torch compares not every dtype
        differs = array.view(uint8) != right.view(uint8)
        return int(differs.reshape(array.numel(), -1).any(1).sum())

    def seconds(self, call: Callable[[], object], calls: int) -> float:
        begin, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        call()  # the ranks meet on the GPU: none is timed while it waits for another's host
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3 / calls

    def synchronize(self) -> None:
        self._torch.cuda.synchronize(self._device)


def arrays_of(device: int) -> Arrays:
    """Raises Unsupported where torch with CUDA is missing."""
    try:
        torch = import_module("torch")
    except ImportError:
        raise Unsupported(
            "measuring GPUs takes torch, for its streams and events: pip install torch"
        ) from None
    if not torch.cuda.is_available():
        raise Unsupported(f"this torch ({torch.__version__}) sees no GPU: install one that is built for CUDA")
    return TorchArrays(device)
