"""What a collective takes in a scenario: the time of every way to run it, the best of them, and what limits
it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from pycoll.bench.results import bus_factor
from pycoll.errors import Error, InvalidArgument
from pycoll.schedule import Schedule, algorithms
from pycoll.selection import candidates
from pycoll.selection.decisions import split_way
from pycoll.selection.models import Network, Prediction
from pycoll.simulation import Simulation
from pycoll.topology import Topology
from pycoll.whatif.lanes import laned_schedule, laned_topology
from pycoll.whatif.scenario import Scenario

__all__ = ["Evaluator", "Outcome", "Run", "outcome_from"]


#: Of more ranks than this only few ways are tried: those of many small steps take too long to simulate.
_LARGE = 256
_OF_LARGE = (
    "recursive_halving_doubling",
    "hierarchical",
    "double_binary_tree",
    "binomial_tree",
)
_BUDGET_OF_LARGE = 5_000_000


class Run(NamedTuple):
    """A schedule timed in a scenario; with drawn lateness, the mean time, and the draw nearest to it."""

    seconds: float
    worst: float
    simulation: Simulation
    loads: dict[str, float]  # share of the time that each link of the topology is busy, where it is at all
    binding: str | None


@dataclass(frozen=True)
class Outcome:
    """One collective of one size in one scenario, run in one way.

    Times are seconds, rates bytes/s. ``bound`` is the least time of any algorithm when nobody is late,
    ``binding`` the link that the time hangs on most (None: latency and overhead only), ``busy`` its share
    (0..1) of the time in use. ``estimated``: only a rough figure, as the way is far behind. ``worst`` is the
    greatest time where lateness is drawn.
    """

    collective: str
    size: int
    ranks: int
    way: str
    time: float
    bound: float
    bound_binding: str
    binding: str | None
    busy: float | None
    worst: float
    composition: dict[str, float]  # seconds of arrival, overhead, bandwidth, latency, addition
    estimated: bool = False
    loads: dict[str, float] = field(default_factory=dict, repr=False, compare=False)

    @property
    def algorithm(self) -> str:
        """Its name, without the number of pieces."""
        return split_way(self.way)[0]

    @property
    def algbw(self) -> float:
        """size / time."""
        return self.size / self.time if self.time else float("inf")

    @property
    def busbw(self) -> float:
        """algbw times nccl-tests' factor."""
        return self.algbw * bus_factor(self.collective, self.ranks)

    @property
    def share(self) -> float:
        """bound / time: 1 is as fast as any algorithm can be."""
        return min(1.0, self.bound / self.time) if self.time else 1.0

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and texts, for JSON; the unit stands in the name."""
        return {
            "algorithm": self.algorithm,
            "way": self.way,
            "ranks": self.ranks,
            "time_s": self.time,
            "worst_time_s": self.worst,
            "algbw_bytes_per_s": self.algbw,
            "busbw_bytes_per_s": self.busbw,
            "bound_s": self.bound,
            "bound_set_by": self.bound_binding,
            "share_of_bound": self.share,
            "binding_link": self.binding,
            "binding_link_busy": self.busy,
            "composition_s": self.composition,
            "estimated": self.estimated,
        }


def outcome_from(values: dict[str, Any], collective: str, size: int) -> Outcome:
    """The outcome that :meth:`Outcome.to_dict` wrote."""
    return Outcome(
        collective=collective,
        size=size,
        ranks=values["ranks"],
        way=values["way"],
        time=values["time_s"],
        bound=values["bound_s"],
        bound_binding=values["bound_set_by"],
        binding=values["binding_link"],
        busy=values["binding_link_busy"],
        worst=values["worst_time_s"],
        composition=values["composition_s"],
        estimated=values["estimated"],
    )


class Evaluator(Network):
    """Times collectives in one scenario; what was simulated is kept."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario.topology)
        self.scenario = scenario
        self._starts = scenario.starts()
        #: Flows differ by their paths only, and spread traffic has no paths of its own.
        self._lanes = scenario.flows if scenario.routing == "hash" else 1
        budget = Network.BUDGET if self._ranks <= _LARGE else _BUDGET_OF_LARGE
        self.BUDGET = budget // (self._lanes * len(self._starts))
        self._runs: dict[tuple[str, str, int, int], Run] = {}
        self._limits: dict[tuple[str, int, int], tuple[float, str]] = {}

    # ---- the ways

    def ways(self, collective: str, algorithm: str = "auto") -> list[str]:
        """The ways that ``algorithm`` (auto, all, a name, a name/pieces) stands for.

        Raises InvalidArgument for a name that is none or that does not do the collective on so many ranks.
        """
        if algorithm in ("auto", "all"):
            return self._candidates(collective)
        name, pieces = split_way(algorithm)
        if name not in algorithms():
            raise InvalidArgument(
                f"there is no algorithm {name!r}; write auto, all or one of {', '.join(algorithms())}"
            )
        if algorithms()[name].for_late_ranks and self._ranks > _LARGE:
            raise InvalidArgument(
                f"{name} is simulated for up to {_LARGE} ranks, not {self._ranks:,}: of more it takes from "
                f"minutes to hours; --ranks {_LARGE} prices a part of the machine"
            )
        try:
            own = self._schedule(algorithm, collective, 0)
        except Error as error:
            able = ", ".join(dict.fromkeys(split_way(way)[0] for way in self._candidates(collective)))
            raise InvalidArgument(
                f"{error} ({collective} of {self._ranks} ranks on {self.topology.name!r}); these run: {able}"
            ) from error
        if pieces:
            return [algorithm]
        most = candidates.MOST_TRANSFERS
        return [name] + [
            f"{name}/{own.pieces * factor}"
            for factor in candidates.GRID
            if factor > 1 and len(own.transfers) * factor <= most
        ]

    def _candidates(self, collective: str) -> list[str]:
        """Those of the selector; of large machines the few that are worth the minutes that building all
        takes."""
        if self._ranks <= _LARGE:
            return candidates.ways(collective, self._ranks, self.topology)
        found = []
        for name in _OF_LARGE:
            if name in algorithms() and collective in algorithms()[name].collectives:
                way = f"{name}/{self._ranks}" if name == "hierarchical" else name
                try:
                    self._schedule(way, collective, 0)
                except Error:
                    continue  # not on this machine
                found.append(way)
        return found or candidates.ways(collective, self._ranks, self.topology)

    def schedule(self, way: str, collective: str, root: int = 0) -> Schedule:
        """The schedule of a way here."""
        return self._schedule(way, collective, root)

    # ---- times

    def run(self, schedule: Schedule, collective: str, size: int) -> Run:
        """A schedule, timed in this scenario. Sizes are of the larger of a rank's two buffers."""
        topology, lanes = self.topology, self._lanes
        if lanes > 1:
            topology, schedule = laned_topology(topology, lanes), laned_schedule(schedule, lanes)
        found = []
        for start in self._starts:
            spread = None if start is None else np.repeat(start, lanes).tolist()
            found.append(
                schedule.simulate(
                    topology,
                    self._logical(collective, size),
                    routing=self.scenario.routing,
                    seed=self.scenario.seed,
                    start=spread,
                    verify=False,
                )
            )
        times = [each.time for each in found]
        mean = sum(times) / len(times)
        typical = min(found, key=lambda each: abs(each.time - mean))
        names = {
            link.name: mine.name for link, mine in zip(topology.links, self.topology.links, strict=False)
        }
        loads = {names[name]: busy for name, busy in typical.link_busy.items() if name in names}
        binding = names.get(typical.binding_link or "")
        return Run(mean, max(times), typical, loads, binding)

    def _simulate_on(self, topology: Topology, way: str, collective: str, size: int, root: int) -> Prediction:
        key = (way, collective, size, root)
        run = self.run(self._schedule(way, collective, root), collective, size)
        self._runs[key] = run
        return Prediction(run.seconds, run.binding, run.loads.get(run.binding or ""))

    def limit(self, collective: str, size: int, root: int = 0) -> tuple[float, str]:
        """The bound, and what sets it."""
        key = (collective, size, root)
        if key not in self._limits:
            found = self.bound(collective, size, root)
            self._limits[key] = (0.0, "") if found is None else (found.seconds, found.binding)
        return self._limits[key]

    # ---- outcomes

    def outcome(self, way: str, collective: str, size: int, root: int = 0) -> Outcome:
        """A way, simulated."""
        self._simulate(way, collective, size, root)
        return self._outcome(way, self._runs[way, collective, size, root], collective, size, root)

    def outcome_of(self, schedule: Schedule, way: str, collective: str, size: int, root: int = 0) -> Outcome:
        """A schedule that was built elsewhere, as for the machine before a change."""
        return self._outcome(way, self.run(schedule, collective, size), collective, size, root)

    def _outcome(self, way: str, run: Run, collective: str, size: int, root: int) -> Outcome:
        bound, by = self.limit(collective, size, root)
        made = run.simulation.composition
        return Outcome(
            collective=collective,
            size=size,
            ranks=self._ranks,
            way=way,
            time=run.seconds,
            bound=bound,
            bound_binding=by,
            binding=run.binding,
            busy=run.loads.get(run.binding or ""),
            worst=run.worst,
            composition={
                name: getattr(made, name)
                for name in ("arrival", "overhead", "bandwidth", "latency", "addition")
            },
            loads=run.loads,
        )

    def best_of(self, ways: Sequence[str], collective: str, size: int, root: int = 0) -> Outcome:
        """The outcome of the quickest of the ways."""
        return self.outcome(self.best(ways, collective, size, "float32", root), collective, size, root)

    def best(self, ways: Sequence[str], collective: str, size: int, dtype: str, root: int) -> str:
        """The quickest of the ways; within a percent, the one of fewest transfers."""
        found = None if len(ways) == 1 else super().best(ways, collective, size, dtype, root)
        return found or ways[0]

    def each_algorithm(self, ways: Sequence[str], collective: str, size: int, root: int = 0) -> list[Outcome]:
        """The best way of every algorithm, the quickest first; far behind ones are estimated only."""
        times = self.times(ways, collective, size, "float32", root)
        best: dict[str, str] = {}
        for way in sorted(times, key=lambda each: (times[each].estimated, times[each].seconds)):
            best.setdefault(split_way(way)[0], way)
        bound, by = self.limit(collective, size, root)
        rows = [
            Outcome(
                collective,
                size,
                self._ranks,
                way,
                times[way].seconds,
                bound,
                by,
                None,
                None,
                times[way].seconds,
                {},
                True,
            )
            if times[way].estimated
            else self.outcome(way, collective, size, root)
            for way in best.values()
        ]
        return sorted(rows, key=lambda row: row.time)
