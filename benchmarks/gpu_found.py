"""What the steps of gpu_check.py share: what they find, and ranks on the GPU of this machine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any


class Found(dict[str, Any]):
    """What a step has found so far."""

    def __init__(self, path: Path | None = None) -> None:
        super().__init__(wrong=[], rows=[], notes=[])
        self._path = path

    def save(self) -> None:
        if self._path is not None:
            beside = self._path.with_name(self._path.name + ".part")
            beside.write_text(json.dumps(self, default=str))
            beside.replace(self._path)

    def wrong(self, texts: Sequence[str]) -> None:
        self["wrong"] += texts
        self.save()

    def row(self, **row: Any) -> None:
        self["rows"].append(row)
        self.save()

    def note(self, text: str) -> None:
        self["notes"].append(text)
        self.save()


def spawned(function: Any, ranks: int, *args: Any, threads: bool, deadline: float = 90) -> list[Any]:
    import pycoll

    if threads:
        import torch

        torch.zeros(1, device="cuda")  # the context, before ranks are threads
    found: list[Any] = pycoll.spawn(function, ranks=ranks, args=args, threads=threads, deadline=deadline)
    return found


def blocks_of(ranks: int, wanted: int) -> int:
    """Blocks of a kernel, of so many as are wanted: those of all ranks must run at once."""
    from pycoll import cuda

    return max(1, min(wanted, cuda.devices()[0].multiprocessors // ranks))


def nccl_version() -> int:
    """As NCCL counts (23004 is 2.30.4); 0 without it."""
    try:
        return int(import_module("cupy.cuda.nccl").get_version())
    except Exception:
        return 0
