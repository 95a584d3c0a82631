"""Which way an AllReduce of GPUs goes, and why: the selector with GPUs' ways, times and costs.

print(GpuSelector(pycoll.Topology.load("dgx-h100")).explain("allreduce", 1 << 20))
GpuSelector(measured=pycoll.Profile.load("gpus.json")).choose("allreduce", 1 << 20)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from pycoll.errors import InvalidArgument, TopologyError, Unsupported
from pycoll.gpu import links, ways
from pycoll.gpu.costs import Costs
from pycoll.gpu.network import GpuNetwork, is_simulated
from pycoll.selection import calibration
from pycoll.selection.decisions import Decision, DecisionTable
from pycoll.selection.explanation import Choice, Flip
from pycoll.selection.models import FlatMemory
from pycoll.selection.selector import Selector

if TYPE_CHECKING:
    from pycoll.schedule import Schedule
    from pycoll.selection.late_choice import LateCase
    from pycoll.selection.profile import Profile
    from pycoll.topology import Topology

__all__ = ["GpuSelector", "by_bounds"]

#: limits(kernel, dtype) -> the most elements that the kernel takes
Limits = Callable[[str, str], int]


def by_bounds(ranks: int, size: int, elements: int, dtype: str, limits: Limits | None) -> str:
    """What a group runs where nothing was pinned or measured."""
    from pycoll import cuda

    for name, limit in (("one_shot", cuda.ONE_SHOT_BYTES), ("two_shot", cuda.TWO_SHOT_BYTES)):
        fits = limits is None or elements <= limits(name, dtype)
        if size // (ranks if name == "two_shot" else 1) <= limit and fits:
            return name
    return "direct_two_shot"


class GpuSelector(Selector):
    """Chooses for GPUs: pins, then what was measured, then a topology's prediction; where there is neither
    profile nor topology, the fixed bounds of `pycoll.cuda`.

    Args:
        topology: how the GPUs are joined. Without one, what the profile says of it.
        measured: what `pycoll tune --device cuda` wrote.
        pins: PYCOLL_ALGO's text, or a table.
        ranks: how many, where neither topology nor profile says it.
        limits: the most elements that a kernel for small buffers takes, by kernel and dtype.
        fixed: the fixed bounds alone, as PYCOLL_DETERMINISTIC has it.
        decided: the table that a group goes by, where that is not simply the profile's.

    Raises InvalidArgument where they do not go together, or the profile is of processors.
    """

    def __init__(
        self,
        topology: Topology | None = None,
        measured: Profile | None = None,
        pins: str | DecisionTable | None = None,
        *,
        ranks: int | None = None,
        limits: Limits | None = None,
        fixed: bool = False,
        decided: DecisionTable | None = None,
    ) -> None:
        if measured is not None and measured.device != "cuda":
            raise InvalidArgument(
                f"the profile is of processors ({measured.machine}): pycoll tune --device cuda makes one of "
                "GPUs"
            )
        table = None if isinstance(pins, str) else pins
        super().__init__(topology, measured, table, ranks=ranks)
        if isinstance(pins, str):
            from pycoll.selection.pins import parse_pins

            self.pins = parse_pins(pins, self.ranks, device="cuda")
        self._limits, self._fixed = limits, fixed
        if decided is not None:
            self._from_measured = decided
        where = topology or _wiring_of(measured, self.ranks)
        self._link = "" if where is None else links.summary_of(where)
        if where is not None:
            costs = None if measured is None else Costs.of(measured, self._link, where)
            self.model = GpuNetwork(where, costs)
        else:
            self.model = _Measured(measured)

    def _ways(self, collective: str) -> list[str]:
        if collective != "allreduce":
            raise Unsupported(f"on GPUs the selector covers allreduce, not {collective}")
        return ways.names(self.ranks, self._link)

    def _schedule(self, way: str, collective: str, root: int) -> Schedule | None:
        return ways.schedule_of(way, self.ranks, self.topology)

    def _for_engine(self, way: str, collective: str, schedules: dict[str, Schedule]) -> str:
        return way

    def _choose(self, collective: str, size: int, dtype: str, root: int) -> Choice:
        if size < 0:
            raise InvalidArgument(f"choose: a size of {size} bytes is none")
        known = self._ways(collective)
        pinned = None if self._fixed else self.pins.find(collective, size, dtype)
        if pinned is not None:
            basis = "pin" if pinned.basis == "pin" else "rule"
            reason = f"{'pinned' if basis == 'pin' else 'ruled'} by {pinned.reason or 'an installed table'}"
            return self._choice(collective, pinned.way, size, dtype, root, basis, reason)
        row = None if self._fixed else self._from_measured.find(collective, size, dtype)
        if row is not None:
            way = self._first_that_fits(row, size, dtype)
            reason = f"quickest of those measured here: {row.reason}"
            if way != row.way:
                reason = f"the next best of those measured here, as {row.way} does not take so much {dtype}"
            if way:
                return self._choice(collective, way, size, dtype, root, "measured", reason)
        if self.topology is not None and not self._fixed:
            fitting = [way for way in known if self._fits(way, size, dtype)]
            best = self.model.best(fitting, collective, size, dtype, root)
            if best is not None:
                reason = "no other is predicted to be clearly quicker"
                return self._choice(collective, best, size, dtype, root, "modelled", reason)
        way = by_bounds(self.ranks, size, self._elements(size, dtype), dtype, self._limits)
        return self._choice(collective, way, size, dtype, root, "rule", self._why_bounds())

    def _why_bounds(self) -> str:
        from pycoll import cuda
        from pycoll.bench.units import format_size

        if self._fixed:
            return "deterministic: these add in the order of ranks, whatever the size"
        return (
            f"nothing was measured here: fixed bounds, one_shot up to {format_size(cuda.ONE_SHOT_BYTES)}, "
            f"two_shot up to {format_size(cuda.TWO_SHOT_BYTES)} a peer, direct_two_shot beyond"
        )

    def _first_that_fits(self, row: Decision, size: int, dtype: str) -> str:
        return next((way for way in (row.way, *row.others) if self._fits(way, size, dtype)), "")

    def _fits(self, way: str, size: int, dtype: str) -> bool:
        if self._limits is None or way.startswith("@") or not isinstance(ways.kind_of(way), ways.Kernel):
            return True
        return self._elements(size, dtype) <= self._limits(way, dtype)

    @staticmethod
    def _elements(size: int, dtype: str) -> int:
        from pycoll.bench.workload import DTYPES

        return size // DTYPES[dtype].itemsize

    def _choose_late(
        self, collective: str, size: int, dtype: str, op: str, root: int, late: Mapping[int, float]
    ) -> Choice:
        return self.choose(collective, size, dtype, op, root)

    def _late_case(
        self, collective: str, size: int, on_time: Choice, late: int | None, lateness: float
    ) -> LateCase | None:
        """GPUs' late_rank is one candidate among others: it finds the late rank at run time."""
        return None

    def _flips(
        self, choice: Choice, collective: str, size: int, dtype: str, root: int, ways: list[str]
    ) -> Iterable[Flip]:
        if choice.basis == "rule" and self.measured is None and self.topology is None:
            yield Flip("pycoll tune --device cuda", "it measures all ways here, and groups use what it finds")
        if choice.basis in ("pin", "rule"):
            return
        simulated = [way for way in ways if is_simulated(way)] if is_simulated(choice.way) else []
        yield from super()._flips(choice, collective, size, dtype, root, simulated)

    def _notes(
        self, unknown: list[str], choice: Choice, collective: str, size: int, dtype: str
    ) -> Iterable[str]:
        if unknown:
            yield f"Nothing is known of the time of {', '.join(unknown)}."
        if self.measured is not None:
            yield f"Measured on {self.measured.machine}, {self.measured.made}."
        yield from self.model.notes()


class _Measured(FlatMemory):
    """GPUs of which only times are known, or nothing."""

    def __init__(self, profile: Profile | None) -> None:
        super().__init__(None if profile is None else calibration.fit(profile))
        self.name = "GPUs" if profile is None else str(profile.machine)

    def best(self, ways: object, collective: str, size: int, dtype: str, root: int) -> str | None:
        return None

    def notes(self) -> Iterable[str]:
        if self._calibration is not None:
            yield "Predicted: the model that was fitted to every other size of these measurements."
        yield "How the GPUs are joined is not known, so there is no bound: install nvidia-ml-py and tune."


def _wiring_of(profile: Profile | None, ranks: int) -> Topology | None:
    """Where every rank has a GPU to itself."""
    from pycoll.topology import Topology

    if profile is None or not profile.wiring:
        return None
    try:
        wiring = Topology.from_yaml(profile.wiring, file="the profile's wiring")
    except TopologyError as error:
        raise InvalidArgument(str(error)) from None
    return wiring if len(wiring.ranks) == ranks else None
