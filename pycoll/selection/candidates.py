"""The ways to run a collective that are worth comparing: every registered algorithm, with a few numbers of
pieces."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from pycoll.errors import Error
from pycoll.selection.decisions import FAST_PATH, split_way, way_name

if TYPE_CHECKING:
    from pycoll.schedule import Schedule
    from pycoll.topology import Topology

#: Multiples of an algorithm's own number of pieces. More pieces fill a pipeline better, and cost more steps.
GRID = (1, 4, 16)
#: Schedules with more transfers than this take too long to simulate for a choice.
MOST_TRANSFERS = 1 << 17


def ways(collective: str, ranks: int, topology: Topology | None = None) -> list[str]:
    """Names as `Decision.way` has them. Without a topology the ranks share memory, and the engine's fast path
    is the first of them; with one, algorithms that fit themselves to the machine are built for it."""
    from pycoll.schedule import algorithms

    found = [FAST_PATH] if topology is None else []
    seen: set[int] = set()  # several algorithms come to the same on small or flat machines
    if collective == "barrier" or ranks == 1:
        return found or ["direct/1"]
    for name, info in algorithms().items():
        if collective not in info.collectives or not info.accepts(ranks) or info.for_late_ranks:
            continue
        try:
            own = schedule_of(way_name(name, 0), collective, ranks, 0, topology)
        except Error:
            continue  # not on this machine
        for factor in GRID:
            if factor > 1 and len(own.transfers) * factor > MOST_TRANSFERS:
                break
            way = way_name(name, own.pieces * factor)
            made = own if factor == 1 else schedule_of(way, collective, ranks, 0, topology)
            if made.hash in seen:
                continue
            seen.add(made.hash)
            # The name alone means the algorithm's own number, but "direct" alone means the fast path.
            explicit = factor > 1 or name == FAST_PATH
            found.append(way if explicit else name)
    return found


@lru_cache(maxsize=512)
def schedule_of(
    way: str, collective: str, ranks: int, root: int = 0, topology: Topology | None = None
) -> Schedule:
    """The schedule of a way that is not the fast path, built once."""
    from pycoll.schedule import build

    algorithm, pieces = split_way(way)
    return build(
        algorithm, collective=collective, ranks=ranks, pieces=pieces or None, root=root, topology=topology
    )


@lru_cache(maxsize=1024)
def work_of(schedule: Schedule) -> tuple[int, int, int, int]:
    """What a schedule asks: (rounds, and of the busiest rank transfers sent, transfers sent or received,
    transfers reduced)."""
    rows, ranks = schedule.transfers, schedule.ranks
    sent = np.bincount(rows["src"], minlength=ranks)
    received = np.bincount(rows["dst"], minlength=ranks)
    reduced = np.bincount(rows["dst"][rows["reduce"]], minlength=ranks)
    busiest = int(np.argmax(sent + received))
    both = int((sent + received)[busiest])
    return schedule.rounds, int(sent.max(initial=0)), both, int(reduced[busiest])


def adds_alike_everywhere(schedule: Schedule) -> bool:
    """Whether every piece is added up in the same order, and on every rank: then neither the buffer's layout
    nor the number of pieces changes a bit of the result."""
    values = {(rank, piece): rank + 1 for rank in range(schedule.ranks) for piece in range(schedule.pieces)}
    for first, last in _rounds(schedule):
        rows = schedule.transfers[first:last]
        before = {(int(row["src"]), int(row["piece"])): 0 for row in rows}
        before = {key: values[key] for key in before}
        for row in rows:
            target, value = (int(row["dst"]), int(row["piece"])), before[int(row["src"]), int(row["piece"])]
            values[target] = hash(frozenset((values[target], value))) if row["reduce"] else value
    finished = schedule.collective == "reduce"
    at = [schedule.root] if finished else range(schedule.ranks)
    if schedule.collective == "reduce_scatter":
        each = schedule.pieces // schedule.ranks
        return len({values[piece // each, piece] for piece in range(schedule.pieces)}) == 1
    return len({values[rank, piece] for rank in at for piece in range(schedule.pieces)}) == 1


def _rounds(schedule: Schedule) -> Iterator[tuple[int, int]]:
    """Where each round's transfers begin and end; builders give them in the order of rounds."""
    rounds = schedule.transfers["round"]
    edges = [0, *(np.flatnonzero(np.diff(rounds)) + 1).tolist(), len(rounds)]
    yield from pairwise(edges)
