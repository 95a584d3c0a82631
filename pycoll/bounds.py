"""The bound: the least time that any algorithm could take on a machine, and what binds it.

    b = pycoll.bound(topology, "allreduce", 2**30)
    print(b)              # 17.18 s: h[0-3] | h[4-7] through tor0->tor1, tor1->tor0

With no reduction inside switches, at least ``2 (m - 1) S`` bytes of an allreduce of S bytes must enter the m
parts of a partition of the devices; divided by the bandwidth that can enter them, that is a time no schedule
beats. The bound is the worst partition of all, found exactly. docs/bound.md says more.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pycoll import _core
from pycoll.errors import InvalidArgument, Unsupported

if TYPE_CHECKING:
    from pycoll.schedule import Schedule
    from pycoll.topology import Topology

__all__ = ["Best", "Bound", "best_schedule", "bound", "compact"]


@dataclass(frozen=True)
class Bound:
    """The least time of a collective on a machine.

    ``seconds`` is the whole: nothing enters a part before the first byte can be there.
    ``bandwidth_seconds`` is the time of the bytes alone, ``latency_seconds`` that of an empty buffer.
    ``parts`` names the devices of each part of the partition that binds (of a set and of all others, for
    collectives other than allreduce), ``binding`` the links that enter the parts through their least cuts.
    ``routed_seconds`` is the least time of the bytes if each pair of ranks keeps to the routes that transfers
    take in the simulator, rather than all ways there are; None where it was not looked for, or not proved.
    ``proved_tight`` is true where a fractional packing of spanning trees was found that takes no more than
    ``bandwidth_seconds``, to within a thousandth; false where none was, or none was looked for.
    """

    collective: str
    size: float
    seconds: float
    bandwidth_seconds: float
    latency_seconds: float
    parts: tuple[tuple[str, ...], ...]
    binding: tuple[str, ...]
    proved_tight: bool
    routed_seconds: float | None = None

    @property
    def partition(self) -> str:
        """The parts in short: ``"h[0-3] | h[4-7]"``."""
        return partition_text(self.parts)

    @property
    def through(self) -> str:
        """The binding links in short: ``"tor[0-1]->spine"``."""
        return compact(self.binding)

    def __str__(self) -> str:
        text = f"{self.seconds:.4g} s"
        if self.parts:
            text += f": {self.partition} through {self.through}"
        return text + ("; proved tight" if self.proved_tight else "")


def bound(topology: Topology, collective: str, size: float, root: int = 0, *, prove: bool = False) -> Bound:
    """The least seconds that any algorithm could take for a collective.

    ``size`` is the bytes of the logical buffer: the whole buffer for allreduce, reduce and broadcast, all
    shards together for the others. With ``prove``, a packing of spanning trees that reaches the bound is
    looked for (allreduce, reduce and broadcast of a size above 0, up to 128 ranks); see :class:`Bound`.

    Raises InvalidArgument for a size below 0, a root that is no rank, a collective that there is not.
    """
    if not isinstance(size, (int, float)) or not size >= 0:
        raise InvalidArgument(f"a buffer's size is a number of bytes, 0 or more, not {size!r}")
    found = _core.bound(topology.native, collective, float(size), root)
    rate = size / found.bandwidth_seconds if found.bandwidth_seconds > 0 else 0
    names = [topology.nodes[node].name for node in topology.ranks]
    reached, limit = _pack(topology, collective, root, rate) if prove else (False, math.inf)
    return Bound(
        collective=collective,
        size=float(size),
        seconds=found.seconds,
        bandwidth_seconds=found.bandwidth_seconds,
        latency_seconds=found.latency_seconds,
        parts=tuple(tuple(names[rank] for rank in part) for part in found.parts),
        binding=tuple(topology.links[link].name for link in found.binding),
        proved_tight=reached,
        routed_seconds=max(found.bandwidth_seconds, size / limit) if math.isfinite(limit) else None,
    )


_TREES_OF = ("allreduce", "broadcast", "reduce")
_MOST_RANKS = 128
_NEAR = 1e-3


def _pack(topology: Topology, collective: str, root: int, rate: float) -> tuple[bool, float]:
    """Whether spanning trees can be packed at the bound's rate, over transfers' routes or else over any; and
    the rate that no schedule over transfers' routes exceeds."""
    if collective not in _TREES_OF or rate == 0 or len(topology.ranks) > _MOST_RANKS:
        return False, math.inf
    enough = rate * (1 - _NEAR / 2)

    def packed(free_routes: bool) -> _core.TreePacking:
        return _core.pack_trees(topology.native, collective, root, free_routes, _NEAR / 10, enough, 20_000)

    routed = packed(False)
    least = rate * (1 - _NEAR)
    return routed.rate >= least or packed(True).rate >= least, routed.rate_limit


@dataclass(frozen=True)
class Best:
    """The quickest schedule of those that were simulated, its time, and that time's share of the bound."""

    schedule: Schedule
    seconds: float
    share: float


# These come first: one of them reaches nearly every machine's bound.
_LIKELY = ("torus_ring", "hierarchical", "ring", "direct_two_shot", "packed_trees")
# Multiples of an algorithm's own number of pieces: more fill a pipeline better.
_FACTORS = (1, 4, 16, 64)
# More would take a minute to simulate.
_MOST_TRANSFERS = 1 << 20


def best_schedule(
    topology: Topology, collective: str, size: float, root: int = 0, *, enough: float = 0.995
) -> Best:
    """The quickest schedule that pycoll's own algorithms have for a machine, by simulation.

    Goes on until a schedule reaches ``enough`` of the bound, through all algorithms that do the collective on
    so many ranks, each with 1, 4, 16, ... times its own number of pieces while that gains. Thorough rather
    than quick: seconds for 64 ranks. A :class:`pycoll.Selector` chooses in a fraction of the time.

    Raises InvalidArgument as :func:`bound` does, Unsupported where no algorithm does the collective.
    """
    least = bound(topology, collective, size, root).seconds
    best: Best | None = None
    for family in _schedules(topology, collective, root):
        own: Best | None = None
        for schedule in family:
            seconds = schedule.simulate(topology, size).time
            found = Best(schedule, seconds, least / seconds if seconds > 0 else 1.0)
            if own is not None and found.seconds >= own.seconds:
                break
            own = found
            if best is None or found.seconds < best.seconds:
                best = found
            if best.share >= enough:
                return best
            if found.share < best.share / 4:
                break
    if best is None:
        raise Unsupported(f"no algorithm does {collective} on {len(topology.ranks)} ranks")
    return best


def _schedules(topology: Topology, collective: str, root: int) -> Iterator[Iterator[Schedule]]:
    """An iterator an algorithm, over ever more pieces."""
    from pycoll.schedule import algorithms, build

    ranks = len(topology.ranks)
    names = [name for name, info in algorithms().items() if info.builtin and info.accepts(ranks)]
    names = [name for name in names if collective in algorithms()[name].collectives]
    names = [name for name in names if not algorithms()[name].for_late_ranks]
    names.sort(key=lambda name: _LIKELY.index(name) if name in _LIKELY else len(_LIKELY))

    def family(name: str) -> Iterator[Schedule]:
        own = build(name, collective=collective, ranks=ranks, root=root, topology=topology)
        yield own
        for factor in _FACTORS[1:]:
            if collective == "barrier" or len(own.transfers) * factor > _MOST_TRANSFERS:
                return
            pieces = own.pieces * factor
            yield build(name, collective=collective, ranks=ranks, pieces=pieces, root=root, topology=topology)

    for name in names:
        yield family(name)


def partition_text(parts: Sequence[Sequence[str]], most: int = 4) -> str:
    """Parts in short. Many alike are counted: ``"64 parts: gpu0 | gpu1 | ... | gpu63"``."""
    if len(parts) > 1 and all(len(part) == 1 for part in parts):
        return f"each of {compact([part[0] for part in parts])} alone"
    texts = [compact(part) for part in parts]
    if len(texts) <= most:
        return " | ".join(texts)
    return f"{len(texts)} parts: {texts[0]} | {texts[1]} | ... | {texts[-1]}"


_NUMBER = re.compile(r"(?<!\d)(?:0|[1-9]\d*)(?!\d)")  # with leading zeros it stays as it is


def compact(names: Iterable[str]) -> str:
    """Names in short, numbers that run on as ranges: ``h0, h1, h2, h7`` is ``h[0-2,7]``.

    Of names with several numbers, every one whose values combine with all of the others' is made a range:
    ``n[0-1].gpu[0-7]``.
    """
    rows: dict[tuple[str, ...], set[tuple[int, ...]]] = {}
    order: list[tuple[str, ...]] = []
    for name in names:
        frame = tuple(_NUMBER.split(name))
        if frame not in rows:
            rows[frame] = set()
            order.append(frame)
        rows[frame].add(tuple(int(number) for number in _NUMBER.findall(name)))
    texts = []
    for frame in order:
        for box in _boxes(rows[frame]):
            text = frame[0]
            for values, after in zip(box, frame[1:], strict=True):
                text += _range(values) + after
            texts.append(text)
    return ", ".join(texts)


_Box = tuple[tuple[int, ...], ...]


def _boxes(points: set[tuple[int, ...]]) -> list[_Box]:
    """Products of value lists that are these points together; coordinates are merged in turn, last first."""
    boxes: list[_Box] = [tuple((value,) for value in point) for point in sorted(points)]
    width = len(boxes[0]) if boxes else 0
    for axis in reversed(range(width)):
        merged: dict[tuple[tuple[int, ...], ...], set[int]] = {}
        for box in boxes:
            merged.setdefault(box[:axis] + box[axis + 1 :], set()).update(box[axis])
        boxes = [(*rest[:axis], tuple(sorted(values)), *rest[axis:]) for rest, values in merged.items()]
    return boxes


def _range(values: Sequence[int]) -> str:
    if len(values) == 1:
        return str(values[0])
    runs: list[list[int]] = []
    for value in values:
        if runs and value == runs[-1][1] + 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    return "[" + ",".join(f"{a}-{b}" if b > a else f"{a}" for a, b in runs) + "]"
