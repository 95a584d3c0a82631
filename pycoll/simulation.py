"""How long a schedule takes on a topology, and why: what :meth:`pycoll.Schedule.simulate` returns.

    r = pycoll.build("ring", ranks=8).simulate(topology, 1 << 30)
    print(r)                     # time, what it is made of, the link that binds
    r.draw("timeline.png")

The model is described in docs/simulator.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from pycoll import _core
from pycoll._core import InvalidArgument
from pycoll._simulation_text import explained, made_of, seconds_text, summary
from pycoll.bench.units import format_size

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console, ConsoleOptions, RenderResult

    from pycoll.topology import Topology

__all__ = ["REASONS", "CriticalTransfer", "Simulation", "simulate"]

# What a transfer waited for last, by the number that Simulation.arrays["reason"] holds.
REASONS = (
    "nothing",
    "arrival",
    "data",
    "reading",
    "turn",
    "send port",
    "receive port",
    "send order",
    "receive order",
)


AnyTopology: TypeAlias = "Topology | _core.Topology"


class CriticalTransfer(NamedTuple):
    """A link of the chain that the total time is made of; each starts where the one before ends.

    ``end - start`` is overhead + transmission + latency + addition, all seconds; a part that the next of
    the chain did not wait for is 0 (one that waits for its turn or a port does not wait for the latency).
    ``reason`` says why the transfer did not start before ``start``, ``waited_for`` for which transfer
    (None: for none), ``link`` the link that limited its transmission (the longest).
    """

    transfer: int  # index in schedule.transfers
    round: int
    src: int
    dst: int
    piece: int
    start: float
    end: float
    reason: str
    waited_for: int | None
    link: str
    overhead: float
    transmission: float
    latency: float
    addition: float

    def __str__(self) -> str:
        return (
            f"{seconds_text(self.start)} .. {seconds_text(self.end)}: round {self.round}, "
            f"rank {self.src} -> rank {self.dst}, piece {self.piece}, over {self.link}; {explained(self)}"
        )


@dataclass(frozen=True)
class Composition:
    """The seconds that the critical path, and so the total time, is made of."""

    arrival: float  # before the chain's first transfer could start, as its rank came late
    overhead: float
    bandwidth: float
    latency: float
    addition: float

    @property
    def total(self) -> float:
        """All of them together: the simulation's time."""
        return self.arrival + self.overhead + self.bandwidth + self.latency + self.addition


class Simulation:
    """A schedule's run on a topology, simulated.

    Attributes: ``time`` (s, until the last rank is done, from the moment 0 to which ``start`` refers),
    ``rank_times`` (s, by rank), ``schedule``, ``topology``, ``size`` (bytes of the logical buffer),
    ``routing``, ``seed``, ``start`` (s, by rank).
    """

    def __init__(
        self,
        schedule: _core.Schedule,
        topology: AnyTopology,
        size: float,
        routing: str,
        seed: int,
        start: tuple[float, ...],
        raw: dict[str, Any],
    ) -> None:
        self.schedule = schedule
        self.topology = topology
        self.size = size
        self.routing = routing
        self.seed = seed
        self.start = start
        self.time: float = raw["time"]
        self.rank_times: npt.NDArray[np.float64] = raw["rank_times"]
        self._raw = raw

    @cached_property
    def _links(self) -> list[tuple[int, int, float, float, str]]:
        return _native(self.topology).links

    @property
    def link_names(self) -> list[str]:
        """Names of the topology's links, by the index that ``arrays["link"]`` holds."""
        return [link[4] for link in self._links]

    @property
    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What became of each transfer, by its index in the schedule.

        ``start`` (s), ``end`` (s: its last byte has left, its place is free), ``done`` (s: it is at its
        destination, and added), ``link`` (index of the link that limited it the longest), ``reason``
        (index in REASONS: what it waited for last before it started), ``waited_for`` (the transfer it
        waited for, or -1).
        """
        names = ("start", "end", "done", "link", "reason", "waited_for")
        return {name: self._raw[name] for name in names}

    @cached_property
    def byte_starts(self) -> npt.NDArray[np.float64]:
        """By transfer, the second at which its overhead is over and its bytes begin to flow."""
        nodes, ranks = _native(self.topology).nodes, _native(self.topology).ranks
        overhead = np.array([nodes[node][3] for node in ranks])
        transfers = self.schedule.transfers
        order = np.argsort(transfers["round"], kind="stable")
        messages = transfers[["round", "src", "dst"]][order]
        opens: npt.NDArray[np.bool_] = np.zeros(len(transfers), dtype=bool)
        opens[order[np.unique(messages, return_index=True)[1]]] = True
        held = np.where(opens, overhead[transfers["src"]], 0.0)
        starts: npt.NDArray[np.float64] = self._raw["start"]
        ends: npt.NDArray[np.float64] = self._raw["end"]
        return np.minimum(starts + held, ends)

    @cached_property
    def link_bytes(self) -> dict[str, float]:
        """Bytes that each link carries, by its name; links that carry none are left out."""
        carried = self._raw["link_bytes"]
        return {self._links[i][4]: float(carried[i]) for i in np.flatnonzero(carried)}

    @cached_property
    def link_busy(self) -> dict[str, float]:
        """By link, the share (0..1) of what it could carry in ``time`` that it does carry.

        The busiest first; links that carry nothing are left out.
        """
        if self.time == 0:
            return {}
        carried = self._raw["link_bytes"]
        shares = {
            self._links[i][4]: float(carried[i]) / (self._links[i][2] * self.time)
            for i in np.flatnonzero(carried)
        }
        return dict(sorted(shares.items(), key=lambda item: -item[1]))

    @cached_property
    def critical_path(self) -> tuple[CriticalTransfer, ...]:
        """The transfers that the total time is made of, in order of time; see CriticalTransfer."""
        transfers = self.schedule.transfers
        path = []
        for (
            transfer,
            reason,
            waited_for,
            link,
            start,
            overhead,
            transmission,
            latency,
            addition,
            end,
        ) in self._raw["critical_path"]:
            round_, src, dst, piece, _ = transfers[transfer].item()
            path.append(
                CriticalTransfer(
                    transfer=transfer,
                    round=round_,
                    src=src,
                    dst=dst,
                    piece=piece,
                    start=start,
                    end=end,
                    reason=REASONS[reason],
                    waited_for=waited_for if waited_for >= 0 else None,
                    link=self._links[link][4],
                    overhead=overhead,
                    transmission=transmission,
                    latency=latency,
                    addition=addition,
                )
            )
        return tuple(path)

    @cached_property
    def critical_links(self) -> dict[str, float]:
        """Seconds of the critical path in which transfers move at the rate that this link leaves them.

        The most first. Each transfer's transmission counts for the link that limited it the longest.
        """
        seconds: dict[str, float] = {}
        for row in self.critical_path:
            if row.transmission > 0:
                seconds[row.link] = seconds.get(row.link, 0.0) + row.transmission
        busy = self.link_busy
        # Nanosecond's fractions are rounding: between equals, the busier one.
        return dict(
            sorted(seconds.items(), key=lambda item: (-round(item[1] / self.time, 9), -busy[item[0]]))
        )

    @property
    def binding_link(self) -> str | None:
        """The link that the critical path spends most time on, of equal ones the busiest.

        A faster one would help first. None where the time is latency and overhead only.
        """
        return next(iter(self.critical_links), None)

    @cached_property
    def composition(self) -> Composition:
        """The seconds of arrival, overhead, bandwidth, latency and addition that ``time`` is made of."""
        path = self.critical_path
        return Composition(
            arrival=path[0].start if path else self.time,
            overhead=sum(row.overhead for row in path),
            bandwidth=sum(row.transmission for row in path),
            latency=sum(row.latency for row in path),
            addition=sum(row.addition for row in path),
        )

    @property
    def algbw(self) -> float:
        """size / time, bytes/s."""
        return self.size / self.time if self.time > 0 else math.inf

    @property
    def busbw(self) -> float:
        """algbw times nccl-tests' factor (allreduce: 2(n-1)/n), bytes/s."""
        from pycoll.bench.results import bus_factor

        return self.algbw * bus_factor(self.schedule.collective, self.schedule.ranks)

    def to_dict(self, *, transfers: bool = False) -> dict[str, Any]:
        """The result as plain numbers, texts, lists and dicts, for JSON.

        ``transfers``: also start, end and done of every transfer.
        """
        composition = self.composition
        out: dict[str, Any] = {
            "algorithm": self.schedule.algorithm,
            "collective": self.schedule.collective,
            "ranks": self.schedule.ranks,
            "pieces": self.schedule.pieces,
            "topology": self.topology.name,
            "size_bytes": self.size,
            "routing": self.routing,
            "seed": self.seed,
            "start_s": list(self.start),
            "time_s": self.time,
            "algbw_bytes_per_s": self.algbw,
            "busbw_bytes_per_s": self.busbw,
            "rank_times_s": self.rank_times.tolist(),
            "binding_link": self.binding_link,
            "composition_s": {
                "arrival": composition.arrival,
                "overhead": composition.overhead,
                "bandwidth": composition.bandwidth,
                "latency": composition.latency,
                "addition": composition.addition,
            },
            "link_busy": dict(self.link_busy),
            "critical_links_s": dict(self.critical_links),
            "critical_path": [row._asdict() for row in self.critical_path],
        }
        if transfers:
            out["transfers"] = {f"{name}_s": self._raw[name].tolist() for name in ("start", "end", "done")}
        return out

    def draw(self, path: str | PathLike[str] | None = None, *, dpi: int = 150) -> Figure:
        """Draws a timeline, a row a rank and a bar a transfer that it sends, and how busy the links are.

        The critical path stands out. Writes the picture to ``path`` (png, pdf, svg: by its ending) where
        given, and returns matplotlib's figure. Raises Unsupported where matplotlib is not installed.
        """
        from pycoll.simulation_drawing import draw_simulation

        return draw_simulation(self, path, dpi=dpi)

    def __repr__(self) -> str:
        return (
            f"<Simulation of {self.schedule.algorithm!r} on {self.topology.name!r}: "
            f"{seconds_text(self.time)} for {format_size(round(self.size))}>"
        )

    def __str__(self) -> str:
        return "\n".join(f"{name:<14}{text}" for name, text in summary(self))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.table import Table

        table = Table.grid(padding=(0, 2))
        table.add_column(style="bold", no_wrap=True)
        table.add_column()
        for name, text in summary(self):
            table.add_row(name, text)
        yield table

    @property
    def made_of(self) -> str:
        """The composition in words: "18 us overhead (0.5%), 3.889 ms bandwidth (99.5%)"."""
        return made_of(self)


def simulate(
    schedule: _core.Schedule,
    topology: AnyTopology,
    size: float,
    *,
    routing: str = "spread",
    seed: int = 0,
    start: Sequence[float] | None = None,
) -> Simulation:
    """What :meth:`pycoll.Schedule.simulate` does, without verifying the schedule."""
    native = _native(topology)
    if isinstance(size, bool) or not isinstance(size, int | float | np.integer | np.floating):
        raise InvalidArgument(f"size must be a number of bytes, not {size!r}")
    try:
        arrivals = tuple(float(seconds) for seconds in start) if start is not None else ()
    except (TypeError, ValueError):
        raise InvalidArgument(f"start must be a number of seconds a rank, not {start!r}") from None
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 1 << 64:
        raise InvalidArgument(f"seed must be an integer between 0 and 2**64 - 1, not {seed!r}")
    seed = int(seed)
    raw = _plan(schedule, native, routing, seed).run(float(size), list(arrivals))
    return Simulation(
        schedule, topology, float(size), routing, seed, arrivals or (0.0,) * schedule.ranks, raw
    )


# Plans are kept where they are small: one schedule is often timed for many sizes.
_KEPT_TRANSFERS = 100_000
_last_plan: tuple[object, object, str, int, _core.SimulationPlan] | None = None


def _plan(
    schedule: _core.Schedule, topology: _core.Topology, routing: str, seed: int
) -> _core.SimulationPlan:
    global _last_plan
    last = _last_plan
    if last is not None and last[0] is schedule and last[1] is topology and last[2:4] == (routing, seed):
        return last[4]
    plan = _core.SimulationPlan(schedule, topology, routing, seed)
    if len(schedule.transfers) <= _KEPT_TRANSFERS:
        _last_plan = (schedule, topology, routing, seed, plan)
    return plan


def _native(topology: object) -> _core.Topology:
    native = getattr(topology, "native", topology)
    if not isinstance(native, _core.Topology):
        raise InvalidArgument(f"topology must be a pycoll.Topology, not {type(topology).__name__}")
    return native
