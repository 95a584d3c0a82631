"""What a call, a transfer and a round cost on GPUs beyond the links' latency and bandwidth.

By default the figures that NCCL's model has for its own kernels, which do the same in the same way: a
protocol that sends flags with the data (LL) for the kernels for small buffers, one with separate flags
(Simple) for schedules. Where ``pycoll tune --device cuda`` has measured small sizes, what those say.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from pycoll.errors import Error
from pycoll.gpu import ways
from pycoll.gpu.ways import Interpreted, Kernel, Kind, OverNccl
from pycoll.selection.calibration import nonnegative
from pycoll.selection.profile import Profile, Timing
from pycoll.topology import Topology

__all__ = ["Cost", "Costs"]

SOURCE = "NCCL 2.19, src/graph/tuning.cc: baseLat (a call), hwLat (a hop)"
#: baseLat of a ring: LL 6.6 us, Simple 8.4 us.
_LL_START, _SIMPLE_START = 6.6e-6, 8.4e-6
#: hwLat of a ring, Simple less LL, whose hop is what topology files give as latency: 3.4 - 0.6 us over
#: NVLink, 5.7 - 1.0 us over PCIe.
_STEP_NVLINK, _STEP_PCIE = 2.8e-6, 4.7e-6
#: Half of what LL sends is flags.
_LL_WIRE = 2.0
#: Sizes at which bandwidth does not count yet.
_SMALL = 16 << 10


@dataclass(frozen=True)
class Cost:
    """Seconds a call, seconds of overhead a transfer, seconds a round; bytes moved a byte of data."""

    start: float
    step: float = 0.0
    round: float = 0.0
    wire: float = 1.0


@dataclass(frozen=True)
class Costs:
    """Of each sort of ways, and where the figures come from."""

    kernel: Cost
    schedule: Cost
    over_nccl: Cost
    source: str

    @classmethod
    def default(cls, link: str) -> Costs:
        """``link``: classes of the ways between the GPUs, as `pycoll.gpu.links.summary_of` has them."""
        step = _STEP_PCIE if any(slow in link for slow in ("pcie", "nic")) else _STEP_NVLINK
        return cls(
            Cost(_LL_START, wire=_LL_WIRE),
            Cost(_SIMPLE_START, step),
            # A round is a group of sends and receives, and a kernel that adds: each starts anew.
            Cost(_SIMPLE_START, step, round=2 * _SIMPLE_START),
            SOURCE,
        )

    @classmethod
    def of(cls, profile: Profile, link: str, topology: Topology | None) -> Costs:
        """Those that a profile's small sizes show; the default where it has too few."""
        costs = cls.default(link)
        hop = 0.0
        if topology is not None and topology.links:
            hop = 2 * median(each.latency for each in topology.links)
        small = [t for t in profile.timings if t.bytes <= _SMALL and t.collective == "allreduce"]
        found = {
            "kernel": _fitted(small, Kernel, profile.ranks, costs.kernel, hop),
            "schedule": _fitted(small, Interpreted, profile.ranks, costs.schedule, hop),
            "over_nccl": _fitted(small, OverNccl, profile.ranks, costs.over_nccl, hop),
        }
        new = {name: cost for name, cost in found.items() if cost is not None}
        if not new:
            return costs
        source = f"pycoll tune --device cuda, {profile.made}: its sizes up to 16 KiB"
        if len(new) < len(found):
            lacking = ", ".join(name for name in found if name not in new)
            source += f" (not measured: {lacking}: {SOURCE})"
        return replace(costs, **new, source=source)

    def of_way(self, way: str) -> Cost:
        kind = ways.kind_of(way)
        if isinstance(kind, Kernel):
            return self.kernel
        return self.over_nccl if kind.over_nccl else self.schedule


def _fitted(timings: Iterable[Timing], sort: type[Kind], ranks: int, cost: Cost, hop: float) -> Cost | None:
    """start + (round and step and hop) * rounds through the times, least squares of relative errors."""
    rows = [(_rounds(t.way, ranks), t.seconds) for t in timings if _is(t.way, sort)]
    known = [(rounds, seconds) for rounds, seconds in rows if rounds]
    if not known:
        return None
    if sort is Kernel:
        return replace(cost, start=max(median(s - hop * r for r, s in known), 0.0))
    if len({rounds for rounds, _ in known}) < 2:
        return None
    times = np.array([seconds for _, seconds in known])
    matrix = np.array([[1.0, rounds] for rounds, _ in known]) / times[:, None]
    start, each = nonnegative(matrix, np.ones(len(known))).tolist()
    each = max(each - hop, 0.0)
    if sort is OverNccl:  # its step stays NCCL's: the round holds what a launch takes
        return replace(cost, start=start, round=max(each - cost.step, 0.0))
    return replace(cost, start=start, step=each)


def _is(way: str, sort: type[Kind]) -> bool:
    try:
        kind = ways.kind_of(way)
    except Error:  # a user's own
        return False
    return isinstance(kind, sort) and (sort is not Interpreted or not kind.over_nccl)


def _rounds(way: str, ranks: int) -> int:
    made = ways.schedule_of(way, ranks)
    return 0 if made is None else made.rounds
