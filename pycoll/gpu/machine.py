"""What must be the same for times of GPUs to mean anything: which GPUs, how many, and what joins them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

__all__ = ["GpuMachine"]


@dataclass(frozen=True)
class GpuMachine:
    """GPUs that the ranks of a group use."""

    gpu: str  #: the model, as CUDA names it; several models, in order of rank, separated by commas
    gpus: int  #: how many there are; fewer than ranks where ranks share one
    link: str  #: classes of the ways between them, as `pycoll.gpu.links.summary_of` has it

    @classmethod
    def of(cls, models: Sequence[str], places: Sequence[str], link: str) -> GpuMachine:
        """``models`` and ``places`` (which GPU of the host) of each rank's GPU."""
        return cls(", ".join(dict.fromkeys(models)), len(set(places)), link)

    @property
    def processors(self) -> int:
        """How many ranks have a GPU to themselves."""
        return self.gpus

    @property
    def id(self) -> str:
        """Twelve hexadecimal digits that differ between machines."""
        return hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()[:12]

    def __str__(self) -> str:
        return f"{self.gpus} x {self.gpu}, {self.link}"
