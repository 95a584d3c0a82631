"""Random machines and schedules."""

from __future__ import annotations

import math

from hypothesis import strategies as st

import pycoll
from pycoll import Schedule, Topology
from pycoll.topology import Link, Node

RATES = st.sampled_from([1.0, 2.0, 3.0, 5.0, 8.0])
PORTS = st.sampled_from([0, 0, 1, 2])
SECONDS = st.sampled_from([0.0, 0.0, 0.25, 1.0, 1.5])


@st.composite
def topologies(
    draw: st.DrawFn,
    ranks: int,
    *,
    ports: st.SearchStrategy[int] = PORTS,
    additions: bool = True,
    tree: bool = False,
) -> Topology:
    """Devices on up to three switches that are joined in a tree, and, unless `tree`, some more links."""
    switches = draw(st.integers(1, 3))
    reduce_rates = st.sampled_from([math.inf, math.inf, 2.0, 7.0]) if additions else st.just(math.inf)
    nodes = [
        Node(
            f"d{rank}",
            "device",
            ports=draw(ports),
            overhead=draw(SECONDS),
            reduce_rate=draw(reduce_rates),
            forwards=not tree and draw(st.booleans()),
        )
        for rank in range(ranks)
    ]
    nodes += [Node(f"s{index}", "switch") for index in range(switches)]
    links: list[Link] = []

    def join(a: int, b: int) -> None:
        if draw(st.booleans()):
            bandwidth, latency = draw(RATES), draw(SECONDS)
            links.extend((Link(a, b, bandwidth, latency), Link(b, a, bandwidth, latency)))
        else:
            links.append(Link(a, b, draw(RATES), draw(SECONDS)))
            links.append(Link(b, a, draw(RATES), draw(SECONDS)))

    for rank in range(ranks):
        join(rank, ranks + draw(st.integers(0, switches - 1)))
    for switch in range(1, switches):
        join(ranks + switch, ranks + draw(st.integers(0, switch - 1)))
    if not tree:
        for _ in range(draw(st.integers(0, 3))):
            a, b = draw(st.lists(st.integers(0, len(nodes) - 1), min_size=2, max_size=2, unique=True))
            join(a, b)
    return Topology("random", tuple(nodes), tuple(links), tuple(range(ranks)))


@st.composite
def transfer_lists(draw: st.DrawFn, ranks: int) -> Schedule:
    """Any transfers, for simulating without verifying."""
    pieces = draw(st.integers(1, 3))
    rank = st.integers(0, ranks - 1)
    row = st.tuples(st.integers(0, 4), rank, rank, st.integers(0, pieces - 1), st.booleans())
    rows = draw(st.lists(row.filter(lambda r: r[1] != r[2]), min_size=1, max_size=12))
    return Schedule.from_transfers(rows, collective="allreduce", ranks=ranks, pieces=pieces)


def built_ins(ranks: int, topology: Topology | None = None) -> st.SearchStrategy[Schedule]:
    """Schedules of the registered algorithms, made for the topology where they are made for one."""
    cases = []
    for name, info in pycoll.algorithms().items():
        if not info.builtin or not info.accepts(ranks):
            continue
        cases += [(name, collective) for collective in info.collectives if collective != "barrier"]
    return st.sampled_from(cases).map(
        lambda case: pycoll.build(case[0], collective=case[1], ranks=ranks, topology=topology)
    )
