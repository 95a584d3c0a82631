"""Where the selector's predictions come from: a topology and the simulator, or shared memory, calibrated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pycoll.selection import candidates
from pycoll.selection.explanation import Flip

if TYPE_CHECKING:
    from pycoll.schedule import Schedule
    from pycoll.selection.calibration import Calibration
    from pycoll.simulation import Simulation
    from pycoll.topology import Link, Topology


_LONG = 100  # characters of a list of links that still help


class Prediction(NamedTuple):
    seconds: float
    binding: str | None = None  #: the link that limits it most
    busy: float | None = None  #: the share of the time in which that link is busy
    estimated: bool = False  #: too far behind to be worth a simulation


class Limit(NamedTuple):
    """The least time that any algorithm could take, and what sets it."""

    seconds: float
    binding: str


class Model(Protocol):
    """Predicts times of the ways to run a collective of `size` bytes (of the larger of a rank's buffers)."""

    name: str

    def time(self, way: str, collective: str, size: int, dtype: str, root: int) -> float | None: ...

    def times(
        self, ways: Sequence[str], collective: str, size: int, dtype: str, root: int
    ) -> dict[str, Prediction]: ...

    def best(self, ways: Sequence[str], collective: str, size: int, dtype: str, root: int) -> str | None: ...

    def bound(self, collective: str, size: int, root: int) -> Limit | None: ...

    def flips(
        self, way: str, ways: Sequence[str], collective: str, size: int, dtype: str, root: int
    ) -> Iterable[Flip]: ...

    def notes(self) -> Iterable[str]: ...


class FlatMemory:
    """Ranks that share one host's memory, by what was measured there; nothing is known without."""

    def __init__(self, calibration: Calibration | None, state: str = "") -> None:
        self.name = f"shared memory of one host{', processors ' * bool(state)}{state}"
        self._calibration = calibration

    def time(self, way: str, collective: str, size: int, dtype: str, root: int) -> float | None:
        if self._calibration is None:
            return None
        return self._calibration.predict(collective, way, size, dtype)

    def times(
        self, ways: Sequence[str], collective: str, size: int, dtype: str, root: int
    ) -> dict[str, Prediction]:
        predicted = {way: self.time(way, collective, size, dtype, root) for way in ways}
        return {way: Prediction(seconds) for way, seconds in predicted.items() if seconds is not None}

    def best(self, ways: Sequence[str], collective: str, size: int, dtype: str, root: int) -> str | None:
        times = self.times(ways, collective, size, dtype, root)
        # Without the fast path's own time there is nothing to beat it by.
        if ways[0] not in times:
            return None
        return min(times, key=lambda way: times[way].seconds)

    def bound(self, collective: str, size: int, root: int) -> Limit | None:
        return None

    def flips(
        self, way: str, ways: Sequence[str], collective: str, size: int, dtype: str, root: int
    ) -> Iterable[Flip]:
        return ()

    def notes(self) -> Iterable[str]:
        return ()


class Network:
    """A topology, by simulation: of every algorithm with its own number of pieces, and of the closest ones
    with others, in the order of a closed-form estimate, as many as a budget of transfers allows."""

    #: Transfers that may be simulated for one choice: about a second.
    BUDGET = 600_000
    #: Of how many algorithms other numbers of pieces are tried.
    CLOSEST = 4
    #: Within so many times the best time the schedule of fewest transfers is chosen.
    ALIKE = 1.01
    #: By how much a link is slowed, and latencies grow, in search of what flips a choice.
    SLOWER, LATER = (0.5, 0.25, 0.1), (0.25, 4.0, 10.0)

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.name = topology.name
        self._ranks = len(topology.ranks)
        self._simulated: dict[tuple[str, str, int, int], Prediction] = {}
        outgoing: dict[int, float] = {}
        for link in topology.links:
            outgoing[link.source] = outgoing.get(link.source, 0.0) + link.bandwidth
        devices = [topology.nodes[index] for index in topology.ranks]
        self._bandwidth = median(outgoing.get(index, float("inf")) for index in topology.ranks)
        self._alpha = 2 * median([link.latency for link in topology.links] or [0.0])
        self._overhead = median(device.overhead for device in devices)

    def time(self, way: str, collective: str, size: int, dtype: str, root: int) -> float | None:
        return self._simulate(way, collective, size, root).seconds

    def times(
        self, ways: Sequence[str], collective: str, size: int, dtype: str, root: int
    ) -> dict[str, Prediction]:
        times = {way: self._estimate(way, collective, size, root) for way in ways}
        families: dict[str, list[str]] = {}
        for way in ways:
            families.setdefault(way.partition("/")[0], []).append(way)
        left = self.BUDGET

        def simulate(some: Iterable[str]) -> None:
            nonlocal left
            for way in sorted(some, key=lambda way: times[way].seconds):
                cost = len(self._schedule(way, collective, root).transfers)
                if cost <= left or left == self.BUDGET:
                    left -= cost
                    times[way] = self._simulate(way, collective, size, root)

        # An algorithm that is far behind with its own number of pieces is so with any.
        simulate(own[0] for own in families.values())
        closest = sorted(families.values(), key=lambda own: (times[own[0]].estimated, times[own[0]].seconds))
        for own in closest[: self.CLOSEST]:
            simulate(own[1:])
        return times

    def best(self, ways: Sequence[str], collective: str, size: int, dtype: str, root: int) -> str | None:
        times = self.times(ways, collective, size, dtype, root)
        simulated = [way for way in ways if not times[way].estimated]
        limit = self.ALIKE * min(times[way].seconds for way in simulated)
        alike = [way for way in simulated if times[way].seconds <= limit]
        return min(alike, key=lambda way: len(self._schedule(way, collective, root).transfers))

    def _schedule(self, way: str, collective: str, root: int) -> Schedule:
        return candidates.schedule_of(way, collective, self._ranks, root, self.topology)

    def _estimate(self, way: str, collective: str, size: int, root: int) -> Prediction:
        """alpha a round, or the bytes through the busiest port: the time if nothing else made it wait."""
        schedule = self._schedule(way, collective, root)
        rounds, sent, _, _ = candidates.work_of(schedule)
        piece = self._logical(collective, size) / schedule.pieces / self._bandwidth
        chain = rounds * (self._alpha + self._overhead + piece)
        port = sent * (self._overhead + piece) + self._alpha
        return Prediction(max(chain, port), estimated=True)

    def _simulate(self, way: str, collective: str, size: int, root: int) -> Prediction:
        key = (way, collective, size, root)
        if key not in self._simulated:
            self._simulated[key] = self._simulate_on(self.topology, way, collective, size, root)
        return self._simulated[key]

    def _simulate_on(self, topology: Topology, way: str, collective: str, size: int, root: int) -> Prediction:
        run = self._run(topology, way, collective, size, root)
        return Prediction(run.time, run.binding_link, run.link_busy.get(run.binding_link or "", None))

    def _run(self, topology: Topology, way: str, collective: str, size: int, root: int) -> Simulation:
        schedule = self._schedule(way, collective, root)
        return schedule.simulate(topology, self._logical(collective, size), verify=False)

    def _logical(self, collective: str, size: int) -> int:
        return size * self._ranks if collective == "all_to_all" else size

    def bound(self, collective: str, size: int, root: int) -> Limit | None:
        from pycoll.bounds import bound

        found = bound(self.topology, collective, self._logical(collective, size), root)
        if not found.parts:
            return Limit(found.seconds, "latency")
        through = found.through if len(found.through) <= _LONG else f"{len(found.binding)} links"
        return Limit(found.seconds, f"{found.partition} through {through}")

    def flips(
        self, way: str, ways: Sequence[str], collective: str, size: int, dtype: str, root: int
    ) -> Iterable[Flip]:
        """The mildest change of each kind of links, and of all latencies, that makes another way quicker."""
        rivals = [way, *self._close_rivals(way, ways, collective, size, root)]
        if len(rivals) == 1:
            return
        for name, links in self._kinds_of_links(way, collective, size, root):
            for factor in self.SLOWER:
                slower = [
                    replace(link, bandwidth=link.bandwidth * factor) if index in links else link
                    for index, link in enumerate(self.topology.links)
                ]
                winner = self._winner(slower, rivals, collective, size, root)
                if winner != way:
                    yield Flip(f"{name} at {factor:g} of the bandwidth", f"{winner} is quicker")
                    break
            else:
                yield Flip(
                    f"{name} at {self.SLOWER[-1]:g} of the bandwidth",
                    f"still {way}, among those that are close",
                )
        for factor in self.LATER:
            later = [replace(link, latency=link.latency * factor) for link in self.topology.links]
            if not any(link.latency for link in later):
                return
            winner = self._winner(later, rivals, collective, size, root)
            if winner != way:
                yield Flip(f"all latencies {factor:g} times what they are", f"{winner} is quicker")
                if factor > 1:
                    return

    def _close_rivals(
        self, way: str, ways: Sequence[str], collective: str, size: int, root: int
    ) -> list[str]:
        """The best way of each other algorithm, at most four."""
        times = self.times(ways, collective, size, "float32", root)
        own = way.partition("/")[0]
        best: dict[str, str] = {}
        for other in sorted(times, key=lambda name: times[name].seconds):
            family = other.partition("/")[0]
            if family != own and not times[other].estimated:
                best.setdefault(family, other)
        return list(best.values())[:4]

    def _kinds_of_links(self, way: str, collective: str, size: int, root: int) -> list[tuple[str, set[int]]]:
        """Links of one bandwidth and latency between one kind of nodes, by index, with a name; those that the
        way keeps busiest, at most three."""
        from pycoll.bounds import compact

        kinds: dict[tuple[object, ...], set[int]] = {}
        for index, link in enumerate(self.topology.links):
            ends = sorted(self.topology.nodes[end].kind for end in (link.source, link.target))
            kinds.setdefault((link.bandwidth, link.latency, *ends), set()).add(index)
        run = self._run(self.topology, way, collective, size, root)
        busiest = {
            key: max(run.link_busy.get(self.topology.links[index].name, 0.0) for index in links)
            for key, links in kinds.items()
        }
        named = []
        for key in sorted(kinds, key=lambda key: -busiest[key])[:3]:
            names = [self.topology.links[index].name for index in sorted(kinds[key])]
            text = compact(names)
            if len(text) > _LONG / 2:
                text = f"{names[0]} and its like ({len(names)} links)"
            named.append((text, kinds[key]))
        return named

    #: Bytes below which latencies, not links, decide what is quickest, and transfers that may be simulated
    #: for each machine that might be.
    _BY_RATE, _SLOW_BUDGET = 1 << 18, 100_000

    def best_when_slow(self, ways: Sequence[str], collective: str, size: int) -> list[str]:
        """The quickest of the ways, built for the machine as it is, where a rank's links, and where those
        between switches, fall to a tenth of their bandwidth."""
        if size < self._BY_RATE:
            return []
        nodes, first = self.topology.nodes, self.topology.ranks[0]
        spine = {
            index
            for index, link in enumerate(self.topology.links)
            if nodes[link.source].kind == nodes[link.target].kind == "switch"
        }
        own = {i for i, link in enumerate(self.topology.links) if first in (link.source, link.target)}
        found = []
        for slow in filter(None, (own, spine)):
            links = tuple(
                replace(link, bandwidth=link.bandwidth / 10) if index in slow else link
                for index, link in enumerate(self.topology.links)
            )
            machine, left = replace(self.topology, links=links, text=None), self._SLOW_BUDGET
            times: dict[str, float] = {}
            for way in ways:
                left -= len(self._schedule(way, collective, 0).transfers)
                if times and left < 0:
                    break
                times[way] = self._simulate_on(machine, way, collective, size, 0).seconds
            if times:
                found.append(min(times, key=lambda way: times[way]))
        return list(dict.fromkeys(found))

    def _winner(self, links: list[Link], ways: list[str], collective: str, size: int, root: int) -> str:
        """The quickest of the ways with other links; the first unless one is clearly quicker."""
        topology = replace(self.topology, links=tuple(links), text=None)
        times = {way: self._simulate_on(topology, way, collective, size, root).seconds for way in ways}
        best = min(ways, key=lambda way: times[way])
        return best if times[best] * self.ALIKE < times[ways[0]] else ways[0]

    def notes(self) -> Iterable[str]:
        yield (
            "Predicted by simulation, flow by flow; 'about' marks a rough estimate of an algorithm that is "
            "too far behind to be simulated."
        )
