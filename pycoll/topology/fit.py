"""From a matrix of measurements to a topology: clusters become switches, and figures their links.

    fitted = fit(matrix)
    fitted.topology.save("machine.yaml")
    print(fitted.quality)            # how well it explains what was measured

The tree has a switch for each cluster. What pairs get alone gives the links of ranks. Where several at once
get less than their links would let them have, something between them is shared: the way out of a cluster, or
a switch's own fabric (a link between its in and out sides; on one host, its memory or its processors). Then
all capacities are scaled, over and over, by the median ratio of measured to predicted rates of the flows
that each of them limits, until prediction and measurement agree.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from pycoll.errors import TopologyError
from pycoll.topology.clusters import Cluster
from pycoll.topology.fit_latency import Delays, fit_delays
from pycoll.topology.matrix import LinkMatrix
from pycoll.topology.measure import Flow
from pycoll.topology.model import Topology
from pycoll.topology.simulated import SimulatedMeasurer
from pycoll.topology.tree_links import Load, TreeLink, TreeLinks, fair_shares
from pycoll.topology.tree_topology import topology_of

__all__ = ["Fit", "Quality", "fit", "pooled", "quality_of"]

#: What gets less than this share of what was predicted shares something that was not.
SHARED = 0.85
#: Figures of one sort that differ by no more than this (a share), or than each varies, are taken to be equal.
EQUAL = 0.08
#: So many times one flow's rate is clearly more than one.
_SEVERAL = 1.3
#: Traffic is heavy for a switch from this share of the heaviest on.
_HEAVY = 0.7
#: Clusters are worth having if the error without them is so many times as large.
_PAYS = 1.3
#: Sorts of links that only one rank uses.
_OWN = ("rank", "lane")
_ROUNDS = 40


class Quality(NamedTuple):
    """Relative errors of what the simulator says of the fitted topology: median, worst, and where that is."""

    what: str
    median: float
    worst: float
    where: str
    figures: int

    def __str__(self) -> str:
        return (
            f"{self.what}: median error {self.median:.1%}, worst {self.worst:.1%} ({self.where}), "
            f"{self.figures} figures"
        )


@dataclass
class Fit:
    """A fitted machine: its topology, the links it is made of, and how well it explains the matrix."""

    topology: Topology
    links: TreeLinks
    capacity: dict[TreeLink, float]
    delays: Delays
    quality: list[Quality] = field(default_factory=list)


def fit(matrix: LinkMatrix, name: str = "") -> Fit:
    """The topology that explains a matrix best, of trees of switches.

    Raises TopologyError where the matrix has too little in it: a rank without any bandwidth.
    """
    tree = Cluster.from_nested(matrix.clusters) if matrix.clusters else Cluster(tuple(range(matrix.ranks)))
    if sorted(tree.ranks) != list(range(matrix.ranks)) or matrix.ranks < 2:
        raise TopologyError(f"matrix: its clusters are not of ranks 0 to {matrix.ranks - 1}, two or more")
    bandwidths, delays = _fitted(matrix, tree)
    if any(isinstance(member, Cluster) for member in tree.members) and not matrix.sampled:
        # Clusters that explain little more than a single switch does are noise.
        plain = _fitted(matrix, Cluster(tuple(range(matrix.ranks))))
        if _error(matrix, *plain) < _PAYS * _error(matrix, bandwidths, delays):
            bandwidths, delays = plain
    capacity = bandwidths.capacity
    hosts = list(dict.fromkeys(matrix.hosts))
    where = ", ".join(hosts[:3]) + (f" and {len(hosts) - 3} more hosts" if len(hosts) > 3 else "")
    title = name or f"{matrix.ranks} ranks on {where}, measured"
    topology = topology_of(title, matrix, bandwidths.links, capacity, delays)
    if len(hosts) > 1:
        topology = _named_by_host(topology, matrix.hosts)
    fitted = Fit(topology, bandwidths.links, capacity, delays)
    fitted.quality = _quality(topology, matrix, bandwidths.observed)
    return fitted


def _named_by_host(topology: Topology, hosts: Sequence[str]) -> Topology:
    """Each device called like its host, or "host.0", "host.1" where it has several: so a job whose ranks are
    dealt to the hosts otherwise finds its own places."""
    names = {}
    for rank, host in enumerate(hosts):
        number = list(hosts[:rank]).count(host)
        names[topology.ranks[rank]] = f"{host}.{number}" if list(hosts).count(host) > 1 else host
    taken = set(names.values())
    nodes = []
    for index, node in enumerate(topology.nodes):
        name = names.get(index, node.name)
        while index not in names and name in taken:
            name = f"switch-{name}"
        taken.add(name)
        nodes.append(replace(node, name=name))
    links = tuple(replace(link, name="") for link in topology.links)
    return replace(topology, nodes=tuple(nodes), links=links, text=None)


def _fitted(matrix: LinkMatrix, tree: Cluster) -> tuple[_Bandwidths, Delays]:
    bandwidths = _Bandwidths(matrix, TreeLinks(tree))
    bandwidths.fit()
    return bandwidths, fit_delays(matrix, bandwidths.links)


def _error(matrix: LinkMatrix, bandwidths: _Bandwidths, delays: Delays) -> float:
    """Mean relative error of latencies and of rates, either as much as the other."""
    links = bandwidths.links
    latencies = [
        abs(math.log(delays.between(links, Flow(a, b)) / matrix.alpha[a, b]))
        for a, b in np.argwhere(matrix.alpha > 0).tolist()
    ]
    rates = [
        abs(math.log(share.rate / rate))
        for each in bandwidths.observed
        for share, rate in zip(fair_shares(each.flows, links, bandwidths.capacity), each.rates, strict=True)
    ]
    return float(np.mean(latencies or [0.0]) + np.mean(rates))


class _Observed(NamedTuple):
    """Flows at once (or one alone), and what they got."""

    flows: tuple[Flow, ...]
    rates: tuple[float, ...]

    @property
    def total(self) -> float:
        return sum(self.rates)


def _alone(matrix: LinkMatrix) -> dict[Flow, float]:
    known = np.argwhere(~np.isnan(matrix.beta)).tolist()
    return {Flow(a, b): 1 / float(matrix.beta[a, b]) for a, b in known}


def _observed(matrix: LinkMatrix) -> list[_Observed]:
    single = [_Observed((flow,), (rate,)) for flow, rate in _alone(matrix).items()]
    return single + [_Observed(each.flows, each.rates) for each in matrix.together]


class _Bandwidths:
    """Finds the capacities of a tree's links."""

    def __init__(self, matrix: LinkMatrix, links: TreeLinks) -> None:
        self.matrix, self.links = matrix, links
        self.capacity: dict[TreeLink, float] = {}
        self.alone = _alone(matrix)
        self.sets = [_Observed(each.flows, each.rates) for each in matrix.together]
        self.observed = _observed(matrix)

    def fit(self) -> None:
        self._ranks()
        depth = {cluster: len(self.links.chain(cluster)) for cluster in range(1, len(self.links.clusters))}
        for level in sorted(set(depth.values()), reverse=True):  # inner clusters first
            self._ways_out([cluster for cluster in depth if depth[cluster] == level])
        for cluster in reversed(range(len(self.links.clusters))):
            self._fabric(cluster)
        self._refine()
        self._pool()
        self._fill()

    # First guesses, each from the traffic that shows it

    def _ranks(self) -> None:
        """A rank's link carries what its best pairs get, or several of its flows together."""
        for rank in range(self.matrix.ranks):
            for up in (True, False):
                rates = [rate for flow, rate in self.alone.items() if flow[0 if up else 1] == rank]
                if not rates:
                    raise TopologyError(f"matrix: no bandwidth {'from' if up else 'to'} rank {rank} is in it")
                fans = [
                    each.total
                    for each in self.sets
                    if len(each.flows) > 1 and all(flow[0 if up else 1] == rank for flow in each.flows)
                ]
                self.capacity[TreeLink("rank", rank, up)] = max(_saturated(rates), *fans, 0.0)

    def _ways_out(self, clusters: Sequence[int]) -> None:
        """Uplinks and downlinks of a level's clusters, whose ranks together get less than each could alone.

        Judged one and all before any is limited: two clusters' ways out may be crossed only together.
        """
        crossing: dict[TreeLink, list[_Observed]] = {}
        for link in (TreeLink("cluster", cluster, up) for cluster in clusters for up in (True, False)):
            over = [e for e in self.observed if all(link in self.links.path(flow) for flow in e.flows)]
            if over:
                crossing[link] = over
        most = {link: max(over, key=lambda each: len(each.flows)) for link, over in crossing.items()}
        laned = {link.owner for link, each in most.items() if self._each_its_own(each, crossing[link])}
        for cluster in sorted(laned):
            self._add_lanes(cluster)
        limited = [link for link, each in most.items() if self._falls_short(each)]
        for link in limited:
            alone = [each.total for each in crossing[link] if len(each.flows) == 1]
            self.capacity[link] = max(most[link].total, _saturated(alone))

    def _falls_short(self, each: _Observed) -> bool:
        return each.total < SHARED * self._predicted(each.flows)

    def _each_its_own(self, most: _Observed, crossing: Sequence[_Observed]) -> bool:
        """Whether one flow alone gets less out of its cluster than inside, and several get clearly more than
        it."""
        singles = [each for each in crossing if len(each.flows) == 1]
        if not singles or len(most.flows) < 2 or not self._falls_short(most):
            return False
        alone = float(np.median([each.total for each in singles]))
        inside = float(np.median([self._predicted(each.flows) for each in singles]))
        return alone < SHARED * inside and most.total > _SEVERAL * alone

    def _add_lanes(self, cluster: int) -> None:
        """Every rank of the cluster has a way out of it that is not its way to the others inside."""
        self.links.lanes.add(cluster)
        ranks = self.links.ranks_of[cluster]
        outside = {
            (end, up): [
                rate
                for flow, rate in self.alone.items()
                if flow[0 if up else 1] == end and flow[1 if up else 0] not in ranks
            ]
            for end in ranks
            for up in (True, False)
        }
        usual = _saturated([rate for rates in outside.values() for rate in rates])
        for (rank, up), rates in outside.items():
            self.capacity[TreeLink("lane", rank, up, cluster)] = _saturated(rates) if rates else usual

    def _fabric(self, cluster: int) -> None:
        """What all traffic inside a switch shares, if its heaviest gets less than the links around would let
        it."""
        loads = []  # predicted, measured
        for each in self.sets:
            inside = [i for i, flow in enumerate(each.flows) if self.links.meeting(flow) == cluster]
            if len(inside) > 1:
                shares = fair_shares(each.flows, self.links, self.capacity)
                loads.append((sum(shares[i].rate for i in inside), sum(each.rates[i] for i in inside)))
        heaviest = max((predicted for predicted, _ in loads), default=0.0)
        heavy = [(predicted, got) for predicted, got in loads if predicted > _HEAVY * heaviest]
        if heavy and np.median([got / predicted for predicted, got in heavy]) < SHARED:
            self.capacity[TreeLink("fabric", cluster)] = float(np.median([got for _, got in heavy]))

    def _predicted(self, flows: Sequence[Flow]) -> float:
        return sum(share.rate for share in fair_shares(flows, self.links, self.capacity))

    # All together

    def _refine(self) -> None:
        """Scales each link by the median of measured / predicted over the flows that it limits."""
        loads = [(Load(e.flows, self.links, self.capacity), e) for e in self.sets]
        for _ in range(_ROUNDS):
            ratios: dict[TreeLink, list[float]] = {}
            for load, each in loads:
                for share, rate in zip(load.shares(self.capacity), each.rates, strict=True):
                    if share.link is not None:
                        ratios.setdefault(share.link, []).append(rate / share.rate)
            alone: dict[TreeLink, list[float]] = {}
            for flow, rate in self.alone.items():
                for link in self._limits(flow):
                    own = link.kind in _OWN  # what a rank gets alone, nobody else has part in
                    (alone if own else ratios).setdefault(link, []).append(rate / self.capacity[link])
            largest = 0.0
            for link, values in (ratios | alone).items():
                step = float(np.median(values)) ** 0.7  # less than all of it: several links move at once
                self.capacity[link] *= step
                largest = max(largest, abs(step - 1))
            if largest < 0.003:
                return

    def _limits(self, flow: Flow) -> list[TreeLink]:
        """The link that limits a flow alone; of two ranks' links that are about equal, both."""
        path = [link for link in self.links.path(flow) if link in self.capacity]
        narrow = min(self.capacity[link] for link in path)
        about = [link for link in path if self.capacity[link] < 1.3 * narrow and link.kind in _OWN]
        tight = min(path, key=lambda link: self.capacity[link])
        return about if tight.kind in _OWN else [tight]

    def _pool(self) -> None:
        """Links of one sort that differ by no more than noise are equal: of ranks, of clusters of a level."""
        sorts: dict[object, list[TreeLink]] = {}
        for link in self.capacity:
            at = {"rank": 0, "lane": link.around}.get(link.kind, link.owner)
            depth = len(self.links.chain(at))
            sorts.setdefault((link.kind, depth), []).append(link)
        spreads = self.matrix.beta_spread[~np.isnan(self.matrix.beta_spread)]
        varies = float(np.median(spreads)) if len(spreads) else 0.0
        for group in sorts.values():
            values = pooled([self.capacity[link] for link in group], max(EQUAL, varies))
            self.capacity |= dict(zip(group, values, strict=True))

    def _fill(self) -> None:
        """A way out that never limited anything carries all that comes to it."""
        for cluster in reversed(range(1, len(self.links.clusters))):
            for up in (True, False):
                link = TreeLink("cluster", cluster, up)
                if link not in self.capacity:
                    self.capacity[link] = sum(self._into(cluster, up))

    def _into(self, cluster: int, up: bool) -> Iterable[float]:
        if cluster in self.links.lanes:
            ranks = self.links.ranks_of[cluster]
            return [self.capacity[TreeLink("lane", rank, up, cluster)] for rank in ranks]
        own = [rank for rank, home in self.links.home.items() if home == cluster]
        links = [TreeLink("rank", rank, up) for rank in own]
        links += [TreeLink("cluster", child, up) for child in self.links.children[cluster]]
        return [self.capacity[link] for link in links]


def _saturated(rates: Sequence[float]) -> float:
    """What a link carries, by flows of which some are limited elsewhere: the median of the best."""
    best = max(rates, default=0.0)
    return float(np.median([rate for rate in rates if rate >= SHARED * best])) if rates else 0.0


def pooled(values: Sequence[float], tolerance: float) -> list[float]:
    """Values, each replaced by the median of those that differ from it by no more than the tolerance, and
    rounded to three digits."""
    result = [math.nan] * len(values)
    order = sorted(range(len(values)), key=lambda index: values[index])
    while order:
        least = values[order[0]]
        group = [index for index in order if values[index] <= least * (1 + tolerance) ** 2]
        middle = float(np.median([values[index] for index in group]))
        for index in group:
            result[index] = float(f"{middle:.3g}")
        order = order[len(group) :]
    return result


def quality_of(topology: Topology, matrix: LinkMatrix) -> list[Quality]:
    """How far the simulator, on any topology of these ranks, is from what was measured."""
    return _quality(topology, matrix, _observed(matrix))


def _quality(topology: Topology, matrix: LinkMatrix, observed: Sequence[_Observed]) -> list[Quality]:
    """How far the simulator, on the topology, is from latency, bandwidth alone and several flows at once."""
    machine = SimulatedMeasurer(topology)
    sorts: dict[str, list[tuple[float, str]]] = {"latency": [], "bandwidth alone": [], "several at once": []}
    for a, b in np.argwhere(~np.isnan(matrix.alpha)).tolist():
        simulated = machine.ping(a, b, 1, 1)[0] / 2
        sorts["latency"].append((abs(simulated / matrix.alpha[a, b] - 1), f"r{a}->r{b}"))
    for each in observed:
        what = "bandwidth alone" if len(each.flows) == 1 else "several at once"
        beside = f" beside {len(each.flows) - 1} more" if len(each.flows) > 1 else ""
        for flow, simulated, rate in zip(each.flows, machine.rates(each.flows), each.rates, strict=True):
            sorts[what].append((abs(simulated / rate - 1), f"r{flow.src}->r{flow.dst}{beside}"))
    return [
        Quality(what, float(np.median([error for error, _ in entries])), *max(entries), figures=len(entries))
        for what, entries in sorts.items()
        if entries
    ]
