"""A tree of clusters as links with capacities: who crosses what, and what each flow gets."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from pycoll.topology.clusters import Cluster
from pycoll.topology.measure import Flow

__all__ = ["Load", "Share", "TreeLink", "TreeLinks", "fair_shares"]


class TreeLink(NamedTuple):
    """One direction of a link of the tree.

    ``kind``: "rank" (between a rank and the switch of its innermost cluster), "cluster" (between a cluster's
    switch and the one around it), "lane" (from a rank past its cluster's switch straight to the way out of
    that cluster, as from a GPU to a network card of its own), "fabric" (inside a switch: what all its
    traffic shares). ``owner`` is the rank's or the cluster's number, ``around`` the cluster that a lane
    leads out of.
    """

    kind: str
    owner: int
    up: bool = True
    around: int = -1


class Share(NamedTuple):
    """What a flow gets, in bytes/s, and the link that lets it have no more."""

    rate: float
    link: TreeLink | None


class TreeLinks:
    """The links of a tree, by rank and by cluster; clusters are numbered as :meth:`Cluster.walk` meets them,
    the root 0."""

    def __init__(self, tree: Cluster) -> None:
        self.tree = tree
        self.clusters = list(tree.walk())
        self.ranks_of = [frozenset(cluster.ranks) for cluster in self.clusters]
        self.parent = [-1] * len(self.clusters)
        number = {id(cluster): index for index, cluster in enumerate(self.clusters)}
        self.home: dict[int, int] = {}  # rank -> innermost cluster
        self.children: list[list[int]] = []
        for index, cluster in enumerate(self.clusters):
            inner = [number[id(member)] for member in cluster.members if isinstance(member, Cluster)]
            self.children.append(inner)
            for child in inner:
                self.parent[child] = index
            self.home |= {member: index for member in cluster.members if isinstance(member, int)}
        self._around = {rank: self.chain(home) for rank, home in self.home.items()}
        self.lanes: set[int] = set()  # clusters whose ranks have lanes out of them

    def chain(self, cluster: int) -> list[int]:
        """A cluster and those around it, the root last."""
        chain = [cluster]
        while self.parent[chain[-1]] >= 0:
            chain.append(self.parent[chain[-1]])
        return chain

    def around(self, rank: int) -> list[int]:
        """The clusters that a rank is in, innermost first."""
        return self._around[rank]

    def meeting(self, flow: Flow) -> int:
        """The innermost cluster that both ends are in."""
        return next(c for c in self.around(flow.src) if flow.dst in self.ranks_of[c])

    def path(self, flow: Flow) -> list[TreeLink]:
        """All links that a flow crosses, whether or not they are known to limit anything."""
        top = self.meeting(flow)
        return [
            *self._way_out(flow.src, top, True),
            TreeLink("fabric", top),
            *reversed(self._way_out(flow.dst, top, False)),
        ]

    def _way_out(self, rank: int, top: int, up: bool) -> list[TreeLink]:
        left = self.around(rank)
        left = left[: left.index(top)]
        laned = [cluster for cluster in left if cluster in self.lanes]
        if laned:
            first = TreeLink("lane", rank, up, laned[-1])
            left = left[left.index(laned[-1]) :]
        else:
            first = TreeLink("rank", rank, up)
        return [first, *(TreeLink("cluster", cluster, up) for cluster in left)]


def fair_shares(flows: Sequence[Flow], links: TreeLinks, capacity: Mapping[TreeLink, float]) -> list[Share]:
    """Max-min fair rates of flows at once. A link without capacity limits nobody."""
    return Load(flows, links, capacity).shares(capacity)


class Load:
    """Flows at once, and which of them crosses which limited link: for many capacities in turn."""

    def __init__(self, flows: Sequence[Flow], links: TreeLinks, limited: Container[TreeLink]) -> None:
        paths = [[link for link in links.path(flow) if link in limited] for flow in flows]
        self._links = list(dict.fromkeys(link for path in paths for link in path))
        index = {link: i for i, link in enumerate(self._links)}
        self._crosses = np.zeros((len(flows), len(self._links)))
        for flow, path in enumerate(paths):
            self._crosses[flow, [index[link] for link in path]] = 1

    def shares(self, capacity: Mapping[TreeLink, float]) -> list[Share]:
        """By progressive filling: Bertsekas and Gallager, Data Networks (1992), section 6.5.2."""
        shares = [Share(math.inf, None)] * len(self._crosses)
        if not self._links:
            return shares
        left = np.array([capacity[link] for link in self._links])
        if len(shares) == 1:
            tight = int(left.argmin())
            return [Share(float(left[tight]), self._links[tight])]
        waiting = self._crosses.copy()  # without the flows whose share is settled
        while (counts := waiting.sum(axis=0)).any():
            offers = np.divide(left, counts, out=np.full(len(left), math.inf), where=counts > 0)
            tight = int(offers.argmin())
            done = waiting[:, tight] > 0
            for flow in np.flatnonzero(done).tolist():
                shares[flow] = Share(float(offers[tight]), self._links[tight])
            left = np.maximum(left - offers[tight] * waiting[done].sum(axis=0), 0)
            waiting[done] = 0
        return shares
