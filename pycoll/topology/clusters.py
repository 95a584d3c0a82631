"""Which ranks are near each other: a tree of clusters, from latencies and rates between pairs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Cluster", "Partition", "cluster_tree", "partition", "sampled_tree"]

Matrix: TypeAlias = npt.NDArray[np.float64]

#: Two levels of latency differ by more than this (a logarithm), measured medians of one level by less.
LATENCY_GAP = math.log(1.22)
#: Rates under load differ within one level too, as the load does.
RATE_GAP = math.log(1.35)


@dataclass(frozen=True)
class Cluster:
    """Ranks under one switch: its members are ranks, and clusters that have a switch of their own."""

    members: tuple[Cluster | int, ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        found: list[int] = []
        for member in self.members:
            found += [member] if isinstance(member, int) else member.ranks
        return tuple(sorted(found))

    def parts(self) -> list[tuple[int, ...]]:
        """The ranks of each member."""
        return [(member,) if isinstance(member, int) else member.ranks for member in self.members]

    def walk(self) -> Iterator[Cluster]:
        """This cluster and all inside of it, the outer before the inner ones."""
        yield self
        for member in self.members:
            if isinstance(member, Cluster):
                yield from member.walk()

    def nested(self) -> list[Any]:
        """As lists in lists, for JSON."""
        return [member if isinstance(member, int) else member.nested() for member in self.members]

    @classmethod
    def from_nested(cls, nested: Sequence[Any]) -> Cluster:
        """What :meth:`nested` wrote."""
        return cls(tuple(each if isinstance(each, int) else cls.from_nested(each) for each in nested))


class Partition(NamedTuple):
    """Indices in groups, and by how much (in the distances' unit) the merges that would join groups lie above
    those inside of them; 0 where there is one group."""

    groups: list[list[int]]
    gap: float

    def within(self, other: Partition) -> bool:
        """Whether each of these groups lies inside one of the other's."""
        return all(any(set(group) <= set(theirs) for theirs in other.groups) for group in self.groups)


def partition(distance: Matrix, gap: float) -> Partition:
    """What agglomerative clustering (average linkage) merges below the highest gap.

    ``distance`` is symmetric. A gap is where the sorted heights of merges rise by more than ``gap`` at once.
    One group where there is none.
    """
    groups = [[index] for index in range(len(distance))]
    merges: list[tuple[float, int, int]] = []
    between = distance.astype(np.float64).copy()
    np.fill_diagonal(between, np.inf)
    sizes = np.ones(len(distance))
    while len(merges) < len(distance) - 1:
        a, b = divmod(int(np.argmin(between)), len(between))
        merges.append((float(between[a, b]), a, b))
        row = (sizes[a] * between[a] + sizes[b] * between[b]) / (sizes[a] + sizes[b])
        between[a], between[:, a] = row, row
        between[b], between[:, b] = np.inf, np.inf
        between[a, a] = np.inf
        sizes[a] += sizes[b]

    heights = [height for height, _, _ in merges]
    cut, found = len(merges), 0.0
    for index in range(len(merges) - 1, 0, -1):
        if heights[index] - heights[index - 1] > gap:
            cut, found = index, heights[index] - heights[index - 1]
            break
    for _, a, b in merges[:cut]:
        groups[a], groups[b] = groups[a] + groups[b], []
    return Partition(sorted(sorted(group) for group in groups if group), found)


def cluster_tree(
    latency: Matrix, rate: Matrix | None = None, latency_varies: float = 0.0, rate_varies: float = 0.0
) -> Cluster:
    """The tree of clusters of ranks 0..n-1, level by level from the outermost.

    ``latency`` and ``rate`` (any unit; rate: under load) are [source, destination]. Where both tell ranks
    apart, the coarser division is the outer one; where they contradict each other, the clearer one holds.
    What varies is the share by which a figure differs from itself when measured again: only what differs
    by more than twice that is a difference.
    """
    if len(latency) == 1:
        return Cluster((0,))
    far = np.log(np.fmin(latency, latency.T))  # half a round trip either way: what disturbs it adds to it
    there_and_back = np.abs(np.log(latency / latency.T))[~np.eye(len(latency), dtype=bool)]
    latency_varies = max(latency_varies, float(np.median(there_and_back)))
    slow = None if rate is None else (np.log(1 / rate) + np.log(1 / rate).T) / 2
    gaps = max(LATENCY_GAP, 2 * latency_varies), max(RATE_GAP, 2 * rate_varies)
    return _tree(list(range(len(latency))), far, slow, gaps)


def _tree(ranks: list[int], far: Matrix, slow: Matrix | None, gaps: tuple[float, float]) -> Cluster:
    square = np.ix_(ranks, ranks)
    parts = _outermost(far[square], None if slow is None else slow[square], gaps)
    if len(parts) == 1:
        return Cluster(tuple(ranks))
    members: list[Cluster | int] = []
    for part in parts:
        inside = [ranks[index] for index in part]
        members.append(_tree(inside, far, slow, gaps) if len(inside) > 1 else inside[0])
    return Cluster(tuple(members))


def _outermost(far: Matrix, slow: Matrix | None, gaps: tuple[float, float]) -> list[list[int]]:
    by_latency = partition(far, gaps[0])
    if slow is None:
        return by_latency.groups
    by_rate = partition(slow, gaps[1])
    # One rank apart from the others has a slow link itself.
    if sum(len(group) > 1 for group in by_rate.groups) < 2:
        return by_latency.groups
    if len(by_latency.groups) == 1:
        return by_rate.groups
    if by_latency.within(by_rate) or by_rate.within(by_latency):
        return min(by_latency.groups, by_rate.groups, key=len)
    return max((by_latency, gaps[0]), (by_rate, gaps[1]), key=lambda each: each[0].gap / each[1])[0].groups


def sampled_tree(ranks: int, latency: Callable[[int, int], float]) -> Cluster:
    """The tree of clusters, from the latencies of few pairs; each is asked for at most once.

    Rank 0's latency to all, and all neighbours', show the levels there are. Then ranks join a cluster one by
    one (the leader algorithm; Hartigan, Clustering Algorithms, 1975): a rank is compared with the first rank
    of a cluster only where all that is known lets it be a member, the likeliest cluster first. The clusters'
    first ranks are then clustered as in :func:`cluster_tree`.
    """
    known: dict[tuple[int, int], float] = {}

    def far(a: int, b: int) -> float:
        key = (min(a, b), max(a, b))
        if key not in known:
            known[key] = math.log(latency(*key))
        return known[key]

    levels = sorted([far(0, rank) for rank in range(1, ranks)] + [far(r - 1, r) for r in range(2, ranks)])
    near = next((low for low, high in _steps(levels) if high - low > LATENCY_GAP), None)
    if near is None:
        return Cluster(tuple(range(ranks)))
    near += LATENCY_GAP / 2

    groups: list[list[int]] = [[0]]
    home = {0: 0}  # rank -> group
    follower: dict[int, int] = {}  # group -> the one that came after it last time
    for rank in range(1, ranks):
        before = home[rank - 1]
        group = _join(rank, before, follower.get(before), groups, near, far, known)
        if group is None:
            group = len(groups)
            groups.append([])
        groups[group].append(rank)
        home[rank] = group
        follower[before] = group
    return _over_groups(groups, far, known)


def _steps(values: Sequence[float]) -> Iterator[tuple[float, float]]:
    return pairwise(values)


def _join(
    rank: int,
    before: int,
    follower: int | None,
    groups: list[list[int]],
    near: float,
    far: Callable[[int, int], float],
    known: dict[tuple[int, int], float],
) -> int | None:
    """The group whose first rank is near, if there is one."""
    if far(rank - 1, rank) <= near:
        return before
    order = sorted(range(len(groups)), key=lambda group: (group != 0, group != follower, -groups[group][-1]))
    leaders = [group[0] for group in groups]
    seen: dict[int, float] = {}  # leader -> how far the rank is from it
    for group in order:
        leader = leaders[group]
        # A member would see other leaders as far as this one does.
        told = [(seen[other], known.get((min(leader, other), max(leader, other)))) for other in seen]
        if group == before or any(
            theirs is not None and abs(mine - theirs) > LATENCY_GAP for mine, theirs in told
        ):
            continue
        seen[leader] = far(leader, rank)
        if seen[leader] <= near:
            return group
    return None


def _over_groups(
    groups: list[list[int]], far: Callable[[int, int], float], known: dict[tuple[int, int], float]
) -> Cluster:
    """The tree over groups of which each is one cluster."""
    leaders = [group[0] for group in groups]
    between = np.zeros((len(groups), len(groups)))
    for a, b in combinations(range(len(groups)), 2):
        between[a, b] = between[b, a] = known.get((leaders[a], leaders[b]), math.nan)
    np.fill_diagonal(between, math.nan)
    for a, b in combinations(range(len(groups)), 2):
        if not math.isnan(between[a, b]):
            continue
        # In a tree, who is at different distances from a third is as far from the other as the farther.
        apart = np.nan_to_num(np.abs(between[a] - between[b]))
        third = int(np.argmax(apart))
        told = apart[third] > LATENCY_GAP
        value = max(between[a, third], between[b, third]) if told else far(leaders[a], leaders[b])
        between[a, b] = between[b, a] = value
    np.fill_diagonal(between, 0)
    tree = cluster_tree(np.exp(between))
    return _expand(tree, groups)


def _expand(tree: Cluster, groups: list[list[int]]) -> Cluster:
    members: list[Cluster | int] = []
    for member in tree.members:
        if isinstance(member, Cluster):
            members.append(_expand(member, groups))
        else:
            group = groups[member]
            members.append(group[0] if len(group) == 1 else Cluster(tuple(group)))
    return members[0] if len(members) == 1 and isinstance(members[0], Cluster) else Cluster(tuple(members))
