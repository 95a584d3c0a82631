"""Machines for tests of the bound: random small ones, and the textbooks'."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from fractions import Fraction

from hypothesis import strategies as st

import pycoll
from pycoll.topology import Link, Node, Topology

Edges = list[tuple[int, int, int]]  # from, to, bandwidth


def machine(devices: int, switches: int, edges: Edges, forwards: bool = False) -> Topology:
    """Devices d0.. with a rank each, then switches s0..; bandwidths in bytes/s."""
    nodes = [Node(f"d{i}", "device", forwards=forwards) for i in range(devices)]
    nodes += [Node(f"s{i}", "switch") for i in range(switches)]
    links = tuple(Link(a, b, float(bandwidth)) for a, b, bandwidth in edges)
    return Topology("random", tuple(nodes), links, tuple(range(devices)))


def both_ways(edges: Edges) -> Edges:
    return [(a, b, c) for x, y, c in edges for a, b in ((x, y), (y, x))]


def torus(*sides: int, bandwidth: float = 50e9) -> Topology:
    cells = list(itertools.product(*(range(side) for side in sides)))
    index = {cell: i for i, cell in enumerate(cells)}
    nodes = tuple(Node("t" + ".".join(map(str, cell)), forwards=True) for cell in cells)
    links = []
    for cell, axis in itertools.product(cells, range(len(sides))):
        if sides[axis] > 1:
            near = (*cell[:axis], (cell[axis] + 1) % sides[axis], *cell[axis + 1 :])
            links += [
                Link(index[cell], index[near], bandwidth, 1e-6),
                Link(index[near], index[cell], bandwidth, 1e-6),
            ]
    return Topology("torus", nodes, tuple(links), tuple(range(len(cells))))


def pod(hosts: int, gpus: int = 8, inside: float = 450e9, outside: float = 50e9) -> Topology:
    """Hosts of GPUs on a switch of their own; GPU i of every host on rail i, the rails on a spine."""
    nodes, links, ranks = [Node(f"rail{i}", "switch") for i in range(gpus)], [], []
    nodes.append(Node("spine", "switch"))
    for rail in range(gpus):
        links += [Link(rail, gpus, hosts * outside, 1e-6), Link(gpus, rail, hosts * outside, 1e-6)]
    for host in range(hosts):
        switch = len(nodes)
        nodes.append(Node(f"n{host}.switch", "switch"))
        for gpu in range(gpus):
            ranks.append(len(nodes))
            nodes.append(Node(f"n{host}.gpu{gpu}"))
            for far, bandwidth in ((switch, inside), (gpu, outside)):
                links += [Link(ranks[-1], far, bandwidth, 1e-6), Link(far, ranks[-1], bandwidth, 1e-6)]
    return Topology("pod", tuple(nodes), tuple(links), tuple(ranks))


@st.composite
def machines(draw: st.DrawFn, symmetric: bool | None = None) -> tuple[int, int, Edges]:
    """At most 6 devices and 2 switches, connected: (devices, switches, edges)."""
    devices, switches = draw(st.integers(2, 6)), draw(st.integers(0, 2))
    both = draw(st.booleans()) if symmetric is None else symmetric
    nodes = devices + switches
    # A tree through nodes that forward keeps every pair of devices connected.
    hub = devices if switches else 0
    speed = st.integers(1, 9)
    edges: Edges = []
    for node in range(nodes):
        if node == hub:
            continue
        if switches:
            edges += [(node, hub, draw(speed)), (hub, node, draw(speed))]
    if not switches:
        edges += [(a, b, draw(speed)) for a in range(devices) for b in range(devices) if a != b]
    extra = st.tuples(st.integers(0, nodes - 1), st.integers(0, nodes - 1), speed)
    edges += [edge for edge in draw(st.lists(extra, max_size=8)) if edge[0] != edge[1]]
    if both:
        edges = both_ways([edge for edge in edges if edge[0] < edge[1]])
    return devices, switches, edges


def capacity_into(devices: int, switches: int, edges: Edges, inside: frozenset[int]) -> int:
    """f(inside), over every placement of the switches."""
    best = math.inf
    for placed in itertools.product((False, True), repeat=switches):
        side = inside | {devices + i for i, within in enumerate(placed) if within}
        best = min(best, sum(c for a, b, c in edges if a not in side and b in side))
    return int(best)


def partitions(items: list[int]) -> Iterator[list[list[int]]]:
    if not items:
        yield []
        return
    for rest in partitions(items[1:]):
        yield [[items[0]], *rest]
        for i, part in enumerate(rest):
            yield [*rest[:i], [items[0], *part], *rest[i + 1 :]]


def brute_force(devices: int, switches: int, edges: Edges, collective: str, root: int) -> Fraction:
    """The bandwidth bound of a buffer of one byte, over all sets and all partitions."""
    everyone = range(devices)
    into = {
        frozenset(some): capacity_into(devices, switches, edges, frozenset(some))
        for count in range(1, devices)
        for some in itertools.combinations(everyone, count)
    }
    worst = Fraction(0)
    for some, capacity in into.items():
        share, rest = Fraction(len(some), devices), Fraction(devices - len(some), devices)
        bytes_in = {
            "allreduce": Fraction(1),
            "all_gather": rest,
            "reduce_scatter": share,
            "broadcast": Fraction(root not in some),
            "reduce": Fraction(root in some),
            "scatter": share * (root not in some),
            "gather": rest * (root in some),
            "all_to_all": share * rest,
        }[collective]
        worst = max(worst, bytes_in / capacity)
    if collective == "allreduce":
        for partition in partitions(list(everyone)):
            if len(partition) > 1:
                total = sum(into[frozenset(part)] for part in partition)
                worst = max(worst, Fraction(2 * (len(partition) - 1), total))
    return worst


def bandwidth_bound(topology: Topology, collective: str, root: int = 0) -> float:
    return pycoll.bound(topology, collective, 1.0, root=root).bandwidth_seconds
