"""The bound: the least time that any algorithm could take on a machine, and what binds it.

    b = pycoll.bound(topology, "allreduce", 2**30)
    print(b)              # 17.18 s: h[0-3] | h[4-7] through tor0->tor1, tor1->tor0

With no reduction inside switches, at least ``2 (m - 1) S`` bytes of an allreduce of S bytes must enter the m
parts of a partition of the devices; divided by the bandwidth that can enter them, that is a time no schedule
beats. The bound is the worst partition of all, found exactly. docs/bound.md says more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pycoll import _core
from pycoll.errors import InvalidArgument

if TYPE_CHECKING:
    from pycoll.topology import Topology

__all__ = ["Bound", "bound", "compact"]


@dataclass(frozen=True)
class Bound:
    """The least time of a collective on a machine.

    ``seconds`` is the whole: nothing enters a part before the first byte can be there.
    ``bandwidth_seconds`` is the time of the bytes alone, ``latency_seconds`` that of an empty buffer.
    ``parts`` names the devices of each part of the partition that binds (of a set and of all others, for
    collectives other than allreduce), ``binding`` the links that enter the parts through their least cuts.
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
    return Bound(
        collective=collective,
        size=float(size),
        seconds=found.seconds,
        bandwidth_seconds=found.bandwidth_seconds,
        latency_seconds=found.latency_seconds,
        parts=tuple(tuple(names[rank] for rank in part) for part in found.parts),
        binding=tuple(topology.links[link].name for link in found.binding),
        proved_tight=prove and _packing_reaches(topology, collective, root, rate),
    )


_TREES_OF = ("allreduce", "broadcast", "reduce")
_MOST_RANKS = 128
_NEAR = 1e-3


def _packing_reaches(topology: Topology, collective: str, root: int, rate: float) -> bool:
    """Whether spanning trees can be packed at the bound's rate: over transfers' routes, or else over any."""
    if collective not in _TREES_OF or rate == 0 or len(topology.ranks) > _MOST_RANKS:
        return False
    enough = rate * (1 - _NEAR / 2)
    for free_routes in (False, True):
        packing = _core.pack_trees(topology.native, collective, root, free_routes, _NEAR / 10, enough, 20_000)
        if packing.rate >= rate * (1 - _NEAR):
            return True
    return False


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
