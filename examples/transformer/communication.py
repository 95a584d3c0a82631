"""What of a training step is communication: its collectives and messages, noted and run again alone."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

WAIT = torch.ops._c10d_functional.wait_tensor.default


class Recorded(TorchDispatchMode):
    """A context that notes every call of torch.distributed in it, whoever makes it: DDP, FSDP, DTensor or a
    pipeline."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Callable[[], Any]] = []

    def __torch_dispatch__(
        self, op: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if DTensor in types:
            return NotImplemented  # it comes back with what it does to plain tensors
        kwargs = kwargs or {}
        if op.namespace in ("c10d", "_c10d_functional") and op is not WAIT:
            self.calls.append(lambda: op(*args, **kwargs))
        return op(*args, **kwargs)

    def again(self) -> None:
        """Make the same calls on the same tensors, whose values no longer matter, and wait for all."""
        pending = []
        for call in self.calls:
            result = call()
            if isinstance(result, torch.Tensor):  # of a functional collective
                WAIT(result)
            else:
                results = result if isinstance(result, tuple) else (result,)
                pending += [dist.Work.unbox(item) for item in results if isinstance(item, torch.ScriptObject)]
        for work in pending:
            if work is not None:  # else it was over when the call returned
                work.wait()
