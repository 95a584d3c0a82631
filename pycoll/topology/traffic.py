"""Which flows a probe starts at once, so that what they share shows."""

from __future__ import annotations

from collections.abc import Iterator

from pycoll.topology.clusters import Cluster
from pycoll.topology.measure import Flow

__all__ = ["structured", "tournament"]

_FAN = 4


def tournament(ranks: int) -> Iterator[tuple[Flow, ...]]:
    """Rounds in which every rank meets one other, until all have met: each pair's flow in either direction.

    With a power of two, round k pairs rank i with i xor k, so that whole blocks of ranks meet at once; with
    other numbers it is the circle method of round-robin tournaments (an odd rank out rests).
    """
    for pairs in _xor_rounds(ranks) if ranks & (ranks - 1) == 0 else _circle_rounds(ranks):
        yield tuple(Flow(a, b) for a, b in pairs)
        yield tuple(Flow(b, a) for a, b in pairs)


def _xor_rounds(ranks: int) -> Iterator[list[tuple[int, int]]]:
    for key in range(1, ranks):
        yield [(rank, rank ^ key) for rank in range(ranks) if rank < rank ^ key]


def _circle_rounds(ranks: int) -> Iterator[list[tuple[int, int]]]:
    seats = ranks + ranks % 2
    for turn in range(seats - 1):
        around = [0] + [1 + (turn + seat) % (seats - 1) for seat in range(seats - 1)]
        pairs = [(around[seat], around[-1 - seat]) for seat in range(seats // 2)]
        yield [(min(pair), max(pair)) for pair in pairs if max(pair) < ranks]


def structured(tree: Cluster, sampled: bool) -> Iterator[tuple[str, tuple[Flow, ...]]]:
    """What the clusters make interesting: (kind, flows); see :class:`pycoll.topology.matrix.Together`.

    Where pairs are sampled, a cluster's ranks send to one neighbour cluster only, over pairs that meet
    anyway.
    """
    for cluster in tree.walk():
        parts = cluster.parts()
        shift = _shift(parts)
        yield "shift", shift
        if len(parts) > 2 or sampled:
            for part in (part for part in parts if len(part) > 1):
                others = _interleaved([other for other in parts if other is not part])
                out = [Flow(rank, others[i % len(others)]) for i, rank in enumerate(part)]
                into = [Flow(others[i % len(others)], rank) for i, rank in enumerate(part)]
                if sampled:
                    out = [flow for flow in shift if flow.src in part]
                    into = [flow for flow in shift if flow.dst in part]
                yield "exodus", tuple(out)
                yield "influx", tuple(into)
        elif len(cluster.ranks) > 2:
            forth = tuple(flow for flow in shift if flow.src in parts[0])
            yield "exodus", forth
            yield "influx", tuple(flow for flow in shift if flow.dst in parts[0])
    yield from _fans(tree, sampled)


def _shift(parts: list[tuple[int, ...]]) -> tuple[Flow, ...]:
    """Every rank sends to the next part, of two parts to the other one."""
    flows = []
    for index, part in enumerate(parts):
        onward = parts[(index + 1) % len(parts)]
        flows += [Flow(rank, onward[seat % len(onward)]) for seat, rank in enumerate(part)]
    return tuple(flows)


def _interleaved(parts: list[tuple[int, ...]]) -> list[int]:
    """One of each part, then the next of each."""
    longest = max(len(part) for part in parts)
    return [part[seat] for seat in range(longest) for part in parts if seat < len(part)]


def _fans(tree: Cluster, sampled: bool) -> Iterator[tuple[str, tuple[Flow, ...]]]:
    """One rank to several near ones, and several to one: of every rank, or of each cluster's first."""
    for cluster in tree.walk():
        near = [member for member in cluster.members if isinstance(member, int)]
        if len(near) < 3:
            continue
        for rank in near if len(tree.ranks) <= 8 and not sampled else near[:1]:
            at = near.index(rank)
            others = [near[(at + step) % len(near)] for step in range(1, min(_FAN + 1, len(near)))]
            yield "fan out", tuple(Flow(rank, other) for other in others)
            yield "fan in", tuple(Flow(other, rank) for other in others)
