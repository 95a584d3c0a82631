"""A fitted tree written as a topology: devices, switches, links."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np

from pycoll.topology.fit_latency import Delays
from pycoll.topology.matrix import LinkMatrix
from pycoll.topology.model import Link, Node, Topology
from pycoll.topology.tree_links import TreeLink, TreeLinks

__all__ = ["cluster_names", "rank_ranges", "topology_of"]


def cluster_names(matrix: LinkMatrix, links: TreeLinks) -> list[str]:
    """A cluster that is a host is called as the host is; others s0 (the outermost), s1, ..."""
    names: list[str] = []
    for index, ranks in enumerate(links.ranks_of):
        hosts = {matrix.hosts[rank] for rank in ranks}
        whole = len(hosts) == 1 and sum(host in hosts for host in matrix.hosts) == len(ranks)
        name = re.sub(r"[^A-Za-z0-9._-]", "-", next(iter(hosts))) if whole and len(ranks) > 1 else ""
        names.append(
            name if name and name not in names and not re.fullmatch(r"[rs]\d+", name) else f"s{index}"
        )
    return names


def topology_of(
    title: str, matrix: LinkMatrix, links: TreeLinks, capacity: dict[TreeLink, float], delays: Delays
) -> Topology:
    """Ranks are r0, r1, ...; a switch with a limited fabric is two nodes with that limit between them."""
    builder = _Builder(cluster_names(matrix, links), links, capacity, delays)
    return builder.build(title, matrix)


class _Builder:
    def __init__(
        self, names: Sequence[str], links: TreeLinks, capacity: dict[TreeLink, float], delays: Delays
    ) -> None:
        self._names, self._links, self._capacity, self._delays = names, links, capacity, delays
        self._nodes: list[Node] = []
        self._index: dict[str, int] = {}
        self._made: list[Link] = []

    def build(self, title: str, matrix: LinkMatrix) -> Topology:
        copy, reduce = _rates(matrix)
        for rank in range(matrix.ranks):
            overhead = self._delays.overhead[rank]
            self._add(Node(f"r{rank}", overhead=overhead, copy_rate=copy[rank], reduce_rate=reduce[rank]))
        fabrics = {link.owner: rate for link, rate in self._capacity.items() if link.kind == "fabric"}
        # Equal nodes one after the other, so that the file writes them as one.
        for cluster, name in enumerate(self._names):
            if cluster not in fabrics:
                self._add(Node(name, "switch"))
        for side in ("in", "out"):
            for cluster in sorted(fabrics):
                self._add(Node(f"{self._names[cluster]}.{side}", "switch"))
        for cluster in sorted(self._links.lanes):
            self._add(Node(f"{self._names[cluster]}.edge", "switch"))
        for cluster in sorted(fabrics):
            self._link(f"{self._names[cluster]}.in", f"{self._names[cluster]}.out", fabrics[cluster], 0.0)
        for link in sorted(
            self._capacity, key=lambda link: (link.kind == "cluster", link.around, link.owner)
        ):
            if link.kind != "fabric":
                self._tree_link(link, self._capacity[link])
        return Topology(
            title, tuple(self._nodes), tuple(self._made), tuple(range(matrix.ranks)), about=_about(matrix)
        )

    def _tree_link(self, link: TreeLink, bandwidth: float) -> None:
        if link.kind == "rank":
            lower, upper = f"r{link.owner}", self._switch(self._links.home[link.owner], link.up)
            latency = self._delays.rank[link.owner]
        elif link.kind == "lane":
            lower, upper = f"r{link.owner}", f"{self._names[link.around]}.edge"
            left = self._links.around(link.owner)
            inside = left[: left.index(link.around)]
            latency = self._delays.rank[link.owner] + sum(self._delays.cluster[c] for c in inside)
        else:
            edge = link.owner in self._links.lanes
            lower = f"{self._names[link.owner]}.edge" if edge else self._switch(link.owner, link.up)
            upper = self._switch(self._links.parent[link.owner], link.up)
            latency = self._delays.cluster[link.owner]
        source, target = (lower, upper) if link.up else (upper, lower)
        self._link(source, target, bandwidth, latency)

    def _switch(self, cluster: int, up: bool) -> str:
        """Where a way up ends, and a way down begins."""
        name = self._names[cluster]
        return name if name in self._index else f"{name}.in" if up else f"{name}.out"

    def _add(self, node: Node) -> None:
        self._index[node.name] = len(self._nodes)
        self._nodes.append(node)

    def _link(self, source: str, target: str, bandwidth: float, latency: float) -> None:
        self._made.append(Link(self._index[source], self._index[target], bandwidth, latency))


def _rates(matrix: LinkMatrix) -> tuple[list[float], list[float]]:
    """What ranks copy and add while all do, as in a collective; unlimited where it was not measured."""
    from pycoll.topology.fit import pooled

    both = []
    for together, alone in (
        (matrix.copy_rate_together, matrix.copy_rate),
        (matrix.reduce_rate_together, matrix.reduce_rate),
    ):
        rates = np.where(np.isnan(together), alone, together)
        known = rates[~np.isnan(rates)]
        rates = np.where(np.isnan(rates), np.median(known) if len(known) else math.inf, rates)
        both.append(pooled(rates.tolist(), 0.2) if len(known) else rates.tolist())
    return both[0], both[1]


def _about(matrix: LinkMatrix) -> str:
    ranks: dict[str, list[int]] = {}
    for rank, host in enumerate(matrix.hosts):
        ranks.setdefault(host, []).append(rank)
    where = [f"{rank_ranges(own)} on {host}" for host, own in ranks.items()]
    if len(where) > 8:
        where = [*where[:8], f"and so on, {len(where)} hosts"]
    stamp = matrix.stamp
    how = "a sample of pairs" if matrix.sampled else "all pairs"
    when = f"Measured by pycoll topo probe on {stamp.get('date', 'an unknown date')}"
    cpu = stamp.get("cpu", "unknown processor")
    return f"{when} ({how}, {matrix.seconds:.0f} s; {cpu}). {'; '.join(where)}."


def rank_ranges(ranks: Sequence[int]) -> str:
    """r0-r3, r8 of [0, 1, 2, 3, 8]."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    texts = [f"r{first}" if first == last else f"r{first}-r{last}" for first, last in runs]
    return ", ".join(texts[:4]) + (", ..." if len(texts) > 4 else "")
