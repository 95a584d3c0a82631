"""The selector: which algorithm, with how many pieces, for which collective and size; and why.

    s = pycoll.Selector(pycoll.Topology.load("two_racks"))
    s.choose("allreduce", 2**20)            # -> Choice(way="ring/128", ...)
    print(s.explain("allreduce", 2**20))    # the candidates, what limits each, what would flip the choice

Candidates are the registered algorithms, each with a few numbers of pieces. What was measured beats what was
simulated. A choice is a function of the selector's arguments alone, so all ranks that make it make the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from pycoll.errors import InvalidArgument
from pycoll.selection import calibration, candidates
from pycoll.selection.decisions import DISTANCES, FAST_PATH, Decision, DecisionTable, dtype_class, split_way
from pycoll.selection.explanation import Candidate, Choice, Explanation, Flip
from pycoll.selection.late_choice import LateCase, late_case, the_late_rank
from pycoll.selection.models import FlatMemory, Model, Network

if TYPE_CHECKING:
    from pycoll.schedule import Schedule
    from pycoll.selection.profile import Profile
    from pycoll.topology import Topology

__all__ = ["Candidate", "Choice", "Explanation", "Flip", "Selector"]

_REDUCTIONS = ("allreduce", "reduce_scatter", "reduce")
#: Sizes over which a deterministic selector picks the one order that it keeps.
_TABLE_SIZES = tuple(4**power for power in range(1, 16))
#: Of larger machines, what lateness changes is worked out only where one asks.
_LATE_RANKS = 16
#: Ways that a row has beside its choice.
_OTHERS = 3
_REFERENCE_SIZES = (1 << 12, 1 << 20, 1 << 26)


class Selector:
    """Chooses for one machine.

    Args:
        topology: where the ranks live. None: they share one host's memory.
        measured: what `pycoll tune` measured there.
        pins: PYCOLL_ALGO's text, or a table: what they cover is not chosen but obeyed.
        deterministic: choose only what adds in an order that neither size, layout nor run changes, the same
            order at every size.
        ranks: how many, where neither topology nor profile says it.
        distance: "near" or "far", between the processors of one host: choose by what was measured so. Groups
            find out by themselves, and hold choices for both.
        cache: keep simulated choices in a file under the user's cache folder, and use those kept there.

    Raises InvalidArgument where they do not go together.
    """

    def __init__(
        self,
        topology: Topology | None = None,
        measured: Profile | None = None,
        pins: str | DecisionTable | None = None,
        deterministic: bool = False,
        *,
        ranks: int | None = None,
        distance: str = "near",
        cache: bool = False,
    ) -> None:
        counts = {
            "the topology has": None if topology is None else len(topology.ranks),
            "the profile is for": None if measured is None else measured.ranks,
            "ranks is": ranks,
        }
        known = {what: count for what, count in counts.items() if count is not None}
        if not known:
            raise InvalidArgument("Selector: give a topology, a profile, or ranks=")
        if len(set(known.values())) > 1:
            said = ", ".join(f"{what} {count}" for what, count in known.items())
            raise InvalidArgument(f"Selector: the numbers of ranks differ: {said}")
        self.ranks = next(iter(known.values()))
        self.topology = topology
        self.measured = measured
        self.deterministic = deterministic
        if isinstance(pins, str):
            from pycoll.selection.pins import parse_pins

            pins = parse_pins(pins, self.ranks)
        self.pins = pins or DecisionTable()
        if distance not in DISTANCES:
            raise InvalidArgument(f"Selector: distance is {distance!r}: it must be near or far")
        self.distance = distance
        self._state = distance if measured is not None and measured.tells_distances else ""
        fitted = None if measured is None else calibration.fit(measured, self._state)
        self.model: Model = FlatMemory(fitted, self._state) if topology is None else Network(topology)
        self._from_measured = DecisionTable() if measured is None else measured.decisions()
        self._orders: dict[tuple[str, int], str] = {}
        self._cache = None
        if cache and topology is not None:
            from pycoll.selection.choice_cache import ChoiceCache

            self._cache = ChoiceCache(topology)
        self._choices: dict[tuple[str, int, str, int], Choice] = {}

    # Choosing

    def choose(
        self,
        collective: str,
        size: int,
        dtype: str = "float32",
        op: str = "sum",
        root: int = 0,
        *,
        late: Mapping[int, float] | None = None,
    ) -> Choice:
        """What to run for `size` bytes (of the larger of a rank's two buffers).

        `op` makes no difference today. Cached: asking again takes about a microsecond. `late` names the one
        rank that comes late, and by how many seconds after the others (`{3: 0.005}`): then it is `late_rank`
        where that is predicted to be quicker from the arrival on, for an allreduce on a topology.
        """
        if late:
            return self._choose_late(collective, size, dtype, op, root, late)
        key = (collective, size, dtype_class(dtype), root)
        known = self._choices.get(key)
        if known is None:
            known = self._choices[key] = self._choose(collective, size, dtype, root)
        return known

    def _choose_late(
        self, collective: str, size: int, dtype: str, op: str, root: int, late: Mapping[int, float]
    ) -> Choice:
        on_time = self.choose(collective, size, dtype, op, root)
        rank, lateness = the_late_rank(late, self.ranks)
        case = self._late_case(collective, size, on_time, rank, lateness)
        if case is None or not case.pays or not case.used:
            return on_time
        assert case.schedule is not None
        way = f"late_rank/{case.schedule.pieces}"
        return Choice(way, case.schedule, case.seconds, None, "modelled", str(case))

    def _late_case(
        self, collective: str, size: int, on_time: Choice, late: int | None, lateness: float
    ) -> LateCase | None:
        """None where there is nothing to compare."""
        if collective != "allreduce" or self.topology is None or self.ranks < 3 or size == 0:
            return None
        if on_time.schedule is None or on_time.basis == "pin":
            return None
        on_time_way = (on_time.way, on_time.schedule)
        return late_case(self.topology, size, on_time_way, late, lateness, used=not self.deterministic)

    def _choose(self, collective: str, size: int, dtype: str, root: int) -> Choice:
        if size < 0:
            raise InvalidArgument(f"choose: a size of {size} bytes is none")
        pinned = self.pins.find(collective, size, dtype)
        if pinned is not None:
            return self._choice(
                collective, pinned.way, size, dtype, root, "pin", f"pinned by {pinned.reason}"
            )
        if self.deterministic and collective in _REDUCTIONS:
            way = self._fixed_order(collective, root)
            reason = "deterministic: it adds in one order, whatever the size and the buffer's layout"
            return self._choice(collective, way, size, dtype, root, "rule", reason)
        row = self._from_measured.find(collective, size, dtype, self.distance)
        if row is not None:
            reason = f"quickest of those measured here: {row.reason}"
            return self._choice(collective, row.way, size, dtype, root, "measured", reason)
        ways = self._ways(collective)
        best = self._best(ways, collective, size, dtype, root)
        if best is None:  # ranks share memory, and nothing was measured
            reason = "nothing was measured here yet; it needs one synchronisation where others need several"
            return self._choice(collective, FAST_PATH, size, dtype, root, "rule", reason)
        reason = "no other is predicted to be clearly quicker"
        return self._choice(collective, best, size, dtype, root, "modelled", reason)

    # What there is to choose from: GPUs have other ways

    def _ways(self, collective: str) -> list[str]:
        return candidates.ways(collective, self.ranks, self.topology)

    def _schedule(self, way: str, collective: str, root: int) -> Schedule | None:
        return candidates.schedule_of(way, collective, self.ranks, root, self.topology)

    def _best(self, ways: list[str], collective: str, size: int, dtype: str, root: int) -> str | None:
        """The model's choice; from the cache, where there is one that knows it."""
        if self._cache is None:
            return self.model.best(ways, collective, size, dtype, root)
        known = self._cache.get(collective, size, root)
        if known in ways:
            return known
        best = self.model.best(ways, collective, size, dtype, root)
        if best is not None:
            self._cache.put(best, collective, size, root)
        return best

    def _choice(
        self, collective: str, way: str, size: int, dtype: str, root: int, basis: str, reason: str
    ) -> Choice:
        schedule = None
        if way.startswith("@"):
            schedule = self.pins.schedules[way[1:]]
        elif way != FAST_PATH:
            schedule = self._schedule(way, collective, root)
        predicted = self.model.time(way, collective, size, dtype, root)
        return Choice(way, schedule, predicted, self._time(collective, way, size, dtype), basis, reason)

    def _time(self, collective: str, way: str, size: int, dtype: str) -> float | None:
        if self.measured is None:
            return None
        return self.measured.time(collective, way, size, dtype_class(dtype), self._state)

    def _fixed_order(self, collective: str, root: int) -> str:
        """The way that is best over the reference sizes, of those whose order of additions never changes."""
        if self.topology is None:
            return FAST_PATH  # adds in rank order
        if (collective, root) not in self._orders:
            self._orders[collective, root] = self._best_fixed_order(collective, root)
        return self._orders[collective, root]

    def _best_fixed_order(self, collective: str, root: int) -> str:
        alike = [
            way
            for way in self._ways(collective)
            if candidates.adds_alike_everywhere(
                candidates.schedule_of(way, collective, self.ranks, root, self.topology)
            )
        ]
        if not alike:
            raise InvalidArgument(
                f"no algorithm does {collective} of {self.ranks} ranks in an order that never changes"
            )
        scores = dict.fromkeys(alike, 1.0)
        for size in _REFERENCE_SIZES:
            times = self.model.times(alike, collective, size, "float32", root)
            for way in alike:
                scores[way] *= times[way].seconds
        return min(alike, key=lambda way: scores[way])

    def table(
        self,
        collectives: Iterable[str] = ("allreduce",),
        sizes: Sequence[int] = _TABLE_SIZES,
        dtypes: Iterable[str] = ("float32",),
    ) -> DecisionTable:
        """The choices at these sizes as a table that `Communicator.install` takes: each size's choice holds
        half way (in factors) to its neighbours. With a topology the table carries it, and the ways that come
        next to each choice, for the engine to try when the choice's time leaves its prediction."""
        if self.topology is None:
            return self._from_measured.merged_with(self.pins)
        rows: list[Decision] = []
        schedules = dict(self.pins.schedules)
        for collective in collectives:
            for dtype in dtypes:
                ordered = sorted(set(sizes))
                edges = [0, *(int((a * b) ** 0.5) + 1 for a, b in pairwise(ordered))]
                for size, begin, end in zip(ordered, edges, [*edges[1:], None], strict=True):
                    choice = self.choose(collective, size, dtype)
                    basis = "rule" if choice.basis == "pin" else choice.basis
                    alpha, beta = self._line(choice, collective, size, dtype)
                    others = self._next_best(choice, collective, size, dtype)
                    ways = [self._for_engine(way, collective, schedules) for way in (choice.way, *others)]
                    rows.append(
                        Decision(
                            collective,
                            begin,
                            end,
                            ways[0],
                            "any" if dtypes == ("float32",) else dtype_class(dtype),
                            basis=basis,
                            reason=choice.reason,
                            alpha=alpha,
                            beta=beta,
                            others=tuple(ways[1:]),
                        )
                    )
        return DecisionTable(rows, schedules, topology=self.topology).merged_with(self.pins)

    def _for_engine(self, way: str, collective: str, schedules: dict[str, Schedule]) -> str:
        """The engine builds what it has; algorithms of the user's own go along as schedules."""
        from pycoll.schedule import algorithms

        name = split_way(way)[0]
        if way.startswith("@") or algorithms()[name].builtin:
            return way
        made = candidates.schedule_of(way, collective, self.ranks, 0, self.topology)
        schedules[f"{name}-{made.hash:x}"] = made
        return f"@{name}-{made.hash:x}"

    def _line(self, choice: Choice, collective: str, size: int, dtype: str) -> tuple[float, float]:
        """Seconds, and seconds a byte, of the choice about a size."""
        seconds = choice.measured or choice.predicted or 0.0
        half = self.model.time(choice.way, collective, size // 2, dtype, 0) if choice.predicted else None
        if half is None or choice.measured or size < 2:
            return seconds, 0.0
        beta = min(max(seconds - half, 0.0) / (size - size // 2), seconds / size)
        return seconds - beta * size, beta

    def _next_best(self, choice: Choice, collective: str, size: int, dtype: str) -> list[str]:
        """Ways of other algorithms to turn to when the choice turns out slow: the quickest when one rank's
        links, or all between switches, have a tenth of their bandwidth, and the quickest as it is."""
        if choice.basis != "modelled" or not isinstance(self.model, Network):
            return []
        ways = self._ways(collective)
        times = self.model.times(ways, collective, size, dtype, 0)
        rivals = [
            way
            for way in sorted(times, key=lambda way: times[way].seconds)
            if not times[way].estimated and split_way(way)[0] != choice.algorithm
        ]
        found = self.model.best_when_slow(rivals, collective, size) + rivals[:1]
        return list(dict.fromkeys(found))[:_OTHERS]

    # Explaining

    def explain(
        self,
        collective: str,
        size: int,
        dtype: str = "float32",
        op: str = "sum",
        root: int = 0,
        *,
        late: Mapping[int, float] | None = None,
    ) -> Explanation:
        """All candidates for a size, and why one of them is chosen. Takes seconds for a large machine: it
        looks for what would change the choice. `late` as for `choose`; without it, the explanation says from
        which lateness of one rank on another choice would be made, for up to 16 ranks."""
        choice = self.choose(collective, size, dtype, op, root)
        ways = self._ways(collective)
        if choice.way not in ways:
            ways.append(choice.way)
        bound = self.model.bound(collective, size, root)
        times = self.model.times(ways, collective, size, dtype, root)
        rows = []
        for way in ways:
            prediction = times.get(way)
            measured = self._time(collective, way, size, dtype)
            time = measured if measured is not None else prediction and prediction.seconds
            rows.append(
                Candidate(
                    way,
                    prediction and prediction.seconds,
                    measured,
                    bound.seconds / time if bound is not None and time else None,
                    prediction and prediction.binding,
                    prediction and prediction.busy,
                    self._ratio(way, time, choice, collective, size, dtype),
                    bool(prediction and prediction.estimated),
                )
            )
        unknown = [row.way for row in rows if row.time is None and row.way != choice.way]
        kept = [row for row in rows if row.way not in unknown]
        infinity = float("inf")
        kept.sort(
            key=lambda row: (row.way != choice.way, row.estimated, row.ratio or infinity, row.time or 0)
        )
        case = None
        if late:
            case = self._late_case(collective, size, choice, *the_late_rank(late, self.ranks))
        elif self.ranks <= _LATE_RANKS:
            case = self._late_case(collective, size, choice, None, 0.0)
        return Explanation(
            collective,
            size,
            self.ranks,
            self.model.name,
            choice,
            tuple(kept),
            bound.seconds if bound is not None else None,
            bound.binding if bound is not None else "",
            tuple(self._flips(choice, collective, size, dtype, root, [row.way for row in kept])),
            tuple(self._notes(unknown, choice, collective, size, dtype)),
            case,
        )

    def _ratio(
        self,
        way: str,
        time: float | None,
        choice: Choice,
        collective: str,
        size: int,
        dtype: str,
    ) -> float | None:
        if self._time(collective, choice.way, size, dtype) is not None and self.measured is not None:
            of_two = [
                self.measured.relative(collective, each, size, dtype_class(dtype), self._state)
                for each in (way, choice.way)
            ]
            return of_two[0] / of_two[1] if of_two[0] is not None and of_two[1] is not None else None
        chosen = choice.measured or choice.predicted
        return time / chosen if time is not None and chosen else None

    def _flips(
        self, choice: Choice, collective: str, size: int, dtype: str, root: int, ways: list[str]
    ) -> Iterable[Flip]:
        if choice.basis in ("pin", "rule"):
            if choice.basis == "rule" and self.measured is None and self.topology is None:
                yield Flip("pycoll tune", "it measures all algorithms here, and groups use what it finds")
            return
        from pycoll.bench.units import format_size

        for direction, word in ((-1, "below"), (1, "above")):
            found = self._size_of_flip(choice, collective, size, dtype, root, direction)
            if found is not None:
                at, way = found
                yield Flip(f"{word} about {format_size(at)}", f"{way} is quicker")
        yield from self.model.flips(choice.way, ways, collective, size, dtype, root)

    def _size_of_flip(
        self, choice: Choice, collective: str, size: int, dtype: str, root: int, direction: int
    ) -> tuple[int, str] | None:
        """The nearest size, up to 256 times as small or large, at which another algorithm takes over."""
        inside, step = size, 4
        for _ in range(4):
            outside = inside * step if direction > 0 else inside // step
            if outside < 1:
                return None
            other = self.choose(collective, outside, dtype, "sum", root)
            if other.algorithm != choice.algorithm:
                break
            inside = outside
        else:
            return None
        way = other.way
        for _ in range(4):  # halve the interval, in factors
            middle = int((inside * outside) ** 0.5)
            if middle in (inside, outside):
                break
            between = self.choose(collective, middle, dtype, "sum", root)
            if between.algorithm == choice.algorithm:
                inside = middle
            else:
                outside, way = middle, between.way
        return outside, way

    def _notes(
        self, unknown: list[str], choice: Choice, collective: str, size: int, dtype: str
    ) -> Iterable[str]:
        if unknown:
            yield f"Nothing is known of the time of {', '.join(unknown)}."
        if self.topology is None and self.measured is not None:
            yield (
                f"Measured on {self.measured.machine}, {self.measured.made}. Predicted: the model that was "
                "fitted to every other size of these measurements."
            )
        if self._state:
            other = "far" if self.distance == "near" else "near"
            row = self._from_measured.find(collective, size, dtype, other)
            if row is not None and row.way != choice.way:
                yield (
                    f"This is for processors {self.distance} to each other. When they are {other}, which "
                    f"groups notice while they run, {row.way} runs: {row.reason}."
                )
        yield from self.model.notes()
