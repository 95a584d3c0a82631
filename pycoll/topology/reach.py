"""Which nodes of a topology reach which. Transfers pass through switches and through devices that forward."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Sequence

from pycoll.topology.graph import Link, Node

__all__ = ["distances", "parts", "unreachable"]


def parts(nodes: Sequence[Node], links: Iterable[Link], ranks: Sequence[int]) -> list[list[int]]:
    """Ranks in groups that can all reach each other, largest group first."""
    onward: list[list[int]] = [[] for _ in nodes]
    backward: list[list[int]] = [[] for _ in nodes]
    for link in links:
        onward[link.source].append(link.target)
        backward[link.target].append(link.source)
    # Nearly always some switch reaches all ranks and is reached by all: then so does every rank.
    hub = max(range(len(nodes)), key=lambda index: (_passes(nodes[index]), len(onward[index])))
    if _passes(nodes[hub]) and set(ranks) <= _reached(nodes, hub, onward) & _reached(nodes, hub, backward):
        return [list(range(len(ranks)))]

    reached = [_reached(nodes, index, onward) for index in ranks]
    groups: list[list[int]] = []
    for rank, here in enumerate(ranks):
        for group in groups:
            if all(ranks[near] in reached[rank] and here in reached[near] for near in group):
                group.append(rank)
                break
        else:
            groups.append([rank])
    return sorted(groups, key=len, reverse=True)


def unreachable(nodes: Sequence[Node], links: Iterable[Link], ranks: Sequence[int]) -> tuple[int, int]:
    """The first two ranks of which one does not reach the other; there must be some."""
    onward: list[list[int]] = [[] for _ in nodes]
    for link in links:
        onward[link.source].append(link.target)
    reached = (_reached(nodes, index, onward) for index in ranks)
    return next(
        (rank, other)
        for rank, seen in enumerate(reached)
        for other, index in enumerate(ranks)
        if index not in seen
    )


def distances(
    count: int, links: Iterable[Link], starts: Iterable[int], gone: Collection[int] = ()
) -> list[float]:
    """Links, of either direction, from each of ``count`` nodes to the nearest start, around what is gone."""
    neighbours: list[set[int]] = [set() for _ in range(count)]
    for link in links:
        neighbours[link.source].add(link.target)
        neighbours[link.target].add(link.source)
    found = [math.inf] * count
    queue = deque(starts)
    for start in queue:
        found[start] = 0
    while queue:
        at = queue.popleft()
        for near in neighbours[at]:
            if math.isinf(found[near]) and near not in gone:
                found[near] = found[at] + 1
                queue.append(near)
    return found


def _passes(node: Node) -> bool:
    """Whether transfers of others may pass through a node."""
    return node.kind == "switch" or node.forwards


def _reached(nodes: Sequence[Node], start: int, onward: list[list[int]]) -> set[int]:
    seen, queue = {start}, deque([start])
    while queue:
        at = queue.popleft()
        if at != start and not _passes(nodes[at]):
            continue
        for target in onward[at]:
            if target not in seen:
                seen.add(target)
                queue.append(target)
    return seen
