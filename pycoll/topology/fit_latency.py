"""The latencies of a tree's links, and the overheads of its ranks, from latencies between pairs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pycoll.topology.matrix import LinkMatrix
from pycoll.topology.measure import PING_BYTES, Flow
from pycoll.topology.tree_links import TreeLinks

__all__ = ["Delays", "fit_delays"]

_EQUAL = 0.25
_REWEIGHTINGS = 8


@dataclass
class Delays:
    """Seconds: a sender's overhead, of each rank's link, of each cluster's way out; each way the same."""

    overhead: list[float]
    rank: list[float]
    cluster: list[float]

    def between(self, links: TreeLinks, flow: Flow) -> float:
        """Half the round trip between two ranks."""
        top = links.meeting(flow)
        total = 0.0
        for end in flow:
            left = links.around(end)
            total += self.overhead[end] / 2 + self.rank[end]
            total += sum(self.cluster[cluster] for cluster in left[: left.index(top)])
        return total


def fit_delays(matrix: LinkMatrix, links: TreeLinks) -> Delays:
    """Least squares of relative errors, reweighted so that single outliers count less; nothing is negative.

    What a pair's latency is made of cannot be told link by link where links are only crossed together (the
    two ways out of two clusters): they share it equally then.
    """
    from pycoll.topology.fit import pooled

    ranks, clusters = matrix.ranks, len(links.clusters)
    known = ~np.isnan(matrix.alpha)
    # Even a small message has bytes.
    transmission = PING_BYTES * np.nan_to_num(matrix.beta)
    alpha = np.maximum(matrix.alpha - transmission, 0)
    overheads = []
    for rank in range(ranks):
        gaps = np.maximum(matrix.gap - transmission, 0)[rank][known[rank]]
        alphas = alpha[rank][known[rank]]
        overheads.append(min(float(np.median(gaps)), float(alphas.min())) if len(alphas) else 0.0)
    overheads = pooled(overheads, _EQUAL)

    pairs = [Flow(a, b) for a, b in np.argwhere(known).tolist()]
    crossed = np.zeros((len(pairs), ranks + clusters))
    measured = np.array([matrix.alpha[pair] for pair in pairs])
    for row, flow in enumerate(pairs):
        top = links.meeting(flow)
        for end in flow:
            left = links.around(end)
            crossed[row, [end, *(ranks + cluster for cluster in left[: left.index(top)])]] += 1
    rest = np.array([alpha[pair] for pair in pairs])
    rest = np.maximum(rest - [(overheads[a] + overheads[b]) / 2 for a, b in pairs], 0)
    found = _non_negative(crossed / measured[:, None], rest / measured)
    values = found.tolist()
    return Delays(overheads, pooled(values[:ranks], _EQUAL), _levels(values[ranks:], links))


def _levels(delays: list[float], links: TreeLinks) -> list[float]:
    """Ways out of clusters of one level that take about as long take as long."""
    from pycoll.topology.fit import pooled

    result = list(delays)
    depth = [len(links.chain(cluster)) for cluster in range(len(delays))]
    for level in set(depth):
        clusters = [c for c in range(len(delays)) if depth[c] == level]
        values = [delays[c] for c in clusters]
        for c, value in zip(clusters, pooled(values, _EQUAL), strict=True):
            result[c] = value
    return result


def _non_negative(columns: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The least-squares solution of least norm, without what would be negative."""
    weights = np.ones(len(wanted))
    solution = np.zeros(columns.shape[1])
    for _ in range(_REWEIGHTINGS):
        free = np.arange(columns.shape[1])
        while True:
            weighted = columns[:, free] * weights[:, None]
            values = np.linalg.lstsq(weighted, wanted * weights, rcond=1e-9)[0]
            if (values >= 0).all() or len(free) == 1:
                break
            free = free[values >= 0]
            if not len(free):
                break
        solution = np.zeros(columns.shape[1])
        if len(free):
            solution[free] = np.maximum(values, 0)
        errors = np.abs(columns @ solution - wanted)
        scale = max(float(np.median(errors)) * 2, 1e-6)
        weights = 1 / np.sqrt(1 + (errors / scale) ** 2)
    return solution
