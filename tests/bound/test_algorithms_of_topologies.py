"""Schedules that fit themselves to a topology: verified, and as quick as they promise, simulated."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pycoll
from pycoll.topology import Link, Node, Topology

from .machines import Edges, machine, machines, pod, torus

FITTED = ("ring", "binary_tree", "double_binary_tree", "hierarchical", "torus_ring", "packed_trees")


def share(
    topology: Topology, algorithm: str, collective: str = "allreduce", size: float = 2.0**30, **kw: object
) -> float:
    schedule = pycoll.build(
        algorithm,
        collective=collective,
        ranks=len(topology.ranks),
        topology=topology,
        **kw,  # type: ignore[arg-type]
    )
    schedule.verify()
    return pycoll.bound(topology, collective, size).seconds / schedule.simulate(topology, size).time


@settings(max_examples=40, deadline=None)
@given(machines(), st.sampled_from(FITTED))
def test_no_schedule_beats_the_bound(drawn: tuple[int, int, Edges], algorithm: str) -> None:
    topology = machine(*drawn)
    for collective in ("allreduce", "broadcast", "reduce", "all_gather", "reduce_scatter"):
        if collective in pycoll.algorithms()[algorithm].collectives:
            assert share(topology, algorithm, collective, 1e6) <= 1 + 1e-9


@pytest.mark.parametrize("collective", ["allreduce", "broadcast", "reduce"])
def test_every_root_of_a_rooted_collective(collective: str) -> None:
    topology = pod(2, gpus=3)
    for root in range(6 if collective != "allreduce" else 1):
        for algorithm in ("ring", "binary_tree", "double_binary_tree", "packed_trees"):
            pycoll.build(
                algorithm, collective=collective, ranks=6, root=root, topology=topology, pieces=5
            ).verify()


@pytest.mark.parametrize("sides", [(4, 4), (3, 3, 3), (8,)])
@pytest.mark.parametrize("collective", ["allreduce", "reduce_scatter", "all_gather"])
def test_torus_ring_reaches_the_bound(sides: tuple[int, ...], collective: str) -> None:
    """Whatever the order of the ranks: the torus is found in the graph."""
    topology = torus(*sides)
    order = list(range(len(topology.ranks)))
    random.Random(1).shuffle(order)
    n, buckets = len(order), 2 * len(sides)
    assert share(topology.place(order), "torus_ring", collective, pieces=4 * n * buckets) > 0.99


def test_torus_ring_of_given_sides_and_of_none() -> None:
    assert pycoll.build("torus_ring", ranks=12, sides="3x4").rounds == 2 * (2 + 3)
    assert pycoll.build("torus_ring", ranks=12).rounds == 2 * 11
    uneven = torus(2, 3, 4)
    assert pycoll.build("torus_ring", ranks=24, topology=uneven).rounds == 2 * (1 + 2 + 3)
    for wrong in ("3x5", "x", "-3x-4", "3x4x", "0x12"):
        with pytest.raises(pycoll.InvalidArgument, match=r"parameter 'sides' must be .* 12"):
            pycoll.build("torus_ring", ranks=12, sides=wrong)


def test_hierarchical_finds_its_levels() -> None:
    """Two racks of three hosts of four: 4 - 1, 3 - 1 and 2 - 1 transfers a piece and level, in any order."""
    nodes, links = [Node("core", "switch")], []

    def join(a: int, b: int, bandwidth: float) -> None:
        links.extend([Link(a, b, bandwidth, 1e-6), Link(b, a, bandwidth, 1e-6)])

    ranks = []
    for rack in range(2):
        leaf = len(nodes)
        nodes.append(Node(f"leaf{rack}", "switch"))
        join(0, leaf, 4e9)
        for host in range(3):
            inner = len(nodes)
            nodes.append(Node(f"r{rack}.h{host}", "switch"))
            join(inner, leaf, 10e9)
            for gpu in range(4):
                ranks.append(len(nodes))
                nodes.append(Node(f"r{rack}.h{host}.g{gpu}"))
                join(ranks[-1], inner, 100e9)
    topology = Topology("racks", tuple(nodes), tuple(links), tuple(ranks))
    order = list(range(24))
    random.Random(2).shuffle(order)
    for placed in (topology, topology.place(order)):
        schedule = pycoll.build("hierarchical", ranks=24, pieces=24, topology=placed)
        report = schedule.verify()
        assert report.depth == 6
        crossing = [
            (t["piece"], t["reduce"])
            for t in schedule.transfers
            if placed.nodes[placed.ranks[t["src"]]].name[:2] != placed.nodes[placed.ranks[t["dst"]]].name[:2]
        ]
        assert len(crossing) == len(set(crossing)) == 48  # each piece once up, once down
        assert share(placed, "hierarchical", pieces=24 * 16) > 0.95


def test_large_machines() -> None:
    """Beyond 128 ranks groups are found from what one rank of each sees."""
    topology = pod(20)
    order = list(range(160))
    random.Random(3).shuffle(order)
    placed = topology.place(order)
    schedule = pycoll.build("hierarchical", ranks=160, pieces=160, topology=placed)
    assert schedule.verify().depth == 4
    host = [placed.nodes[node].name.split(".")[0] for node in placed.ranks]
    rows = pycoll.build("ring", ranks=160, topology=placed, collective="all_gather").transfers
    first = rows[rows["piece"] == 0]
    assert sum(host[t["src"]] != host[t["dst"]] for t in first) <= 20
    with pytest.raises(pycoll.Unsupported, match="up to 128 ranks, not 160"):
        pycoll.build("packed_trees", ranks=160, topology=topology)
    assert pycoll.build("hierarchical", ranks=130, topology=Topology.flat(130, 1e9)).verify().depth == 2


def test_hierarchical_with_groups_of_unequal_sizes() -> None:
    whole = pod(3, gpus=4)
    for kept in ([0, 1, 2, 3, 4, 5, 8], [0, 4, 5, 6, 8, 9], [11, 3, 2, 7, 0]):
        topology = whole.place(kept)
        for collective in ("allreduce", "reduce_scatter", "all_gather"):
            for step in ("direct", "ring"):
                pycoll.build(
                    "hierarchical", collective=collective, ranks=len(kept), topology=topology, step=step
                ).verify()


@pytest.mark.parametrize("hosts", [2, 4])
def test_hierarchical_keeps_all_levels_busy(hosts: int) -> None:
    topology = pod(hosts)
    assert share(topology, "hierarchical", pieces=8 * hosts * 32) > 0.85
    flat = pycoll.build("direct_two_shot", ranks=8 * hosts)
    assert (
        flat.simulate(topology, 2**30).time
        > 2 * pycoll.build("hierarchical", ranks=8 * hosts, topology=topology).simulate(topology, 2**30).time
    )


@pytest.mark.parametrize("seed", range(3))
def test_rings_and_trees_cross_each_slow_link_once(seed: int) -> None:
    order = list(range(24))
    random.Random(seed).shuffle(order)
    topology = pod(3).place(order)
    host = [topology.nodes[node].name.split(".")[0] for node in topology.ranks]

    def crossings(algorithm: str, collective: str) -> int:
        rows = pycoll.build(
            algorithm, collective=collective, ranks=24, pieces=24, topology=topology
        ).transfers
        return sum(host[t["src"]] != host[t["dst"]] for t in rows[rows["piece"] == 0])

    assert crossings("ring", "all_gather") <= 3
    assert crossings("ring", "broadcast") == 2
    assert crossings("binary_tree", "reduce") == 2
    assert crossings("binomial_tree", "broadcast") == 2


def test_packed_trees_fill_a_machine_with_links_of_many_speeds() -> None:
    """No symmetry to lean on: a ring of hosts, each link of another speed, and a switch for all."""
    edges = [(i, (i + 1) % 5, 10 * (i + 1)) for i in range(5)] + [(i, 5, 40) for i in range(5)]
    both = [(a, b, c * 10**8) for x, y, c in edges for a, b in ((x, y), (y, x))]
    topology = machine(5, 1, both)
    assert share(topology, "packed_trees", pieces=2000) > share(topology, "ring")


def test_bad_parameters() -> None:
    topology = pod(2)
    with pytest.raises(pycoll.InvalidArgument, match="has 16 ranks, the schedule 8"):
        pycoll.build("ring", ranks=8, topology=topology)
    with pytest.raises(pycoll.InvalidArgument, match="'gap' must be a whole number between 1 and"):
        pycoll.build("hierarchical", ranks=16, topology=topology, gap="x")
    with pytest.raises(pycoll.InvalidArgument, match="'step' must be one of 'direct' 'ring', not 'up'"):
        pycoll.build("hierarchical", ranks=16, step="up")
    with pytest.raises(pycoll.InvalidArgument, match="'pace' must be a number between"):
        pycoll.build("packed_trees", ranks=16, pace=-1)
    with pytest.raises(pycoll.InvalidArgument, match="has no parameter 'speed'; it takes"):
        pycoll.build("packed_trees", ranks=16, speed=1)
