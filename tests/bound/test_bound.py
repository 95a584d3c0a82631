"""The bound against all sets and partitions by brute force, and against closed forms."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pycoll
from pycoll.bounds import bound, compact, partition_text
from pycoll.topology import Link, Node, Topology

from .machines import Edges, bandwidth_bound, brute_force, machine, machines, pod, torus

COLLECTIVES = ("allreduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "scatter", "gather")


@settings(max_examples=60, deadline=None)
@given(machines(), st.integers(0, 5))
def test_is_the_worst_of_all_sets_and_partitions(drawn: tuple[int, int, Edges], root: int) -> None:
    devices, switches, edges = drawn
    topology = machine(devices, switches, edges)
    root %= devices
    for collective in COLLECTIVES:
        where = root if collective in ("broadcast", "reduce", "scatter", "gather") else 0
        expected = brute_force(devices, switches, edges, collective, where)
        assert bandwidth_bound(topology, collective, where) == pytest.approx(float(expected), rel=1e-12)
    worst = brute_force(devices, switches, edges, "all_to_all", 0)
    assert bandwidth_bound(topology, "all_to_all") <= float(worst) * (1 + 1e-12)


@settings(max_examples=40, deadline=None)
@given(machines(), st.sampled_from((0.5, 3.0, 1e9 / 7)))
def test_scales_with_bandwidths(drawn: tuple[int, int, Edges], factor: float) -> None:
    topology = machine(*drawn)
    for collective in COLLECTIVES:
        fast = bandwidth_bound(topology.scaled("*", factor), collective)
        assert fast * factor == pytest.approx(bandwidth_bound(topology, collective), rel=1e-9)


@pytest.mark.parametrize("ranks", [2, 3, 8, 64])
def test_one_switch(ranks: int) -> None:
    """The port bound of the textbooks."""
    topology = Topology.flat(ranks, 1e9, latency=2e-6, overhead=1e-6)
    size = 2.0**30
    found = bound(topology, "allreduce", size)
    assert found.bandwidth_seconds == pytest.approx(2 * (ranks - 1) / ranks * size / 1e9)
    assert found.seconds == pytest.approx(found.bandwidth_seconds + 3e-6)  # the first byte needs alpha
    for collective in ("all_gather", "reduce_scatter"):
        assert bandwidth_bound(topology, collective) == pytest.approx((ranks - 1) / ranks / 1e9)
    for collective in ("broadcast", "reduce"):
        assert bandwidth_bound(topology, collective) == pytest.approx(1 / 1e9)
    for collective in ("scatter", "gather"):
        assert bandwidth_bound(topology, collective) == pytest.approx((ranks - 1) / ranks / 1e9)
    assert bandwidth_bound(topology, "all_to_all") == pytest.approx((ranks - 1) / ranks**2 / 1e9)
    barrier = bound(topology, "barrier", 0)
    assert barrier.bandwidth_seconds == 0
    assert barrier.parts == ()


def test_ports_let_knowledge_double_at_best() -> None:
    topology = Topology.flat(8, 1e9, latency=0, ports=1, overhead=1e-6)
    assert bound(topology, "allreduce", 0).seconds == pytest.approx(3e-6)
    assert bound(topology, "broadcast", 0, root=5).seconds == pytest.approx(3e-6)
    assert bound(topology, "scatter", 0).seconds == pytest.approx(1e-6)
    # LogP with latency 3 times the overhead: told at 4, 5, 6, 7 by the root, at 8 twice, and so on.
    slow = Topology.flat(8, 1e9, latency=3e-6, ports=1, overhead=1e-6)
    assert bound(slow, "allreduce", 0).seconds == pytest.approx(9e-6)
    assert bound(Topology.flat(8, 1e9, latency=3e-6, ports=0, overhead=1e-6), "allreduce", 0).seconds == (
        pytest.approx(4e-6)
    )


def two_racks() -> Topology:
    """The link between the racks is half as fast as the hosts': 2 S against 2 * 7/8 S over one port."""
    nodes = [Node(f"h{i}") for i in range(8)] + [Node("tor0", "switch"), Node("tor1", "switch")]
    pairs = [(i, 8 + i // 4) for i in range(8)] + [(8, 9)]
    links = [
        Link(a, b, 125e6 / (2 if a > 7 and b > 7 else 1), 30e-6)
        for x, y in pairs
        for a, b in ((x, y), (y, x))
    ]
    return Topology("two racks", tuple(nodes), tuple(links), tuple(range(8)))


def test_two_racks() -> None:
    found = bound(two_racks(), "allreduce", 1e9)
    assert found.parts == (("h0", "h1", "h2", "h3"), ("h4", "h5", "h6", "h7"))
    assert found.partition == "h[0-3] | h[4-7]"
    assert set(found.binding) == {"tor0->tor1", "tor1->tor0"}
    assert found.bandwidth_seconds == pytest.approx(1e9 / 62.5e6)
    assert found.seconds == pytest.approx(1e9 / 62.5e6 + 90e-6)
    assert found.latency_seconds == pytest.approx(90e-6)
    assert "h[0-3] | h[4-7] through tor0->tor1, tor1->tor0" in str(found)
    out = bound(two_racks(), "gather", 1e9, root=1)
    assert out.binding == ("tor1->tor0",)
    assert out.bandwidth_seconds == pytest.approx(4 / 8 * 1e9 / 62.5e6)


def test_many_hosts_are_the_parts_of_a_pod() -> None:
    found = bound(pod(8), "allreduce", 1e9)
    assert len(found.parts) == 8
    assert found.partition == "8 parts: n0.gpu[0-7] | n1.gpu[0-7] | ... | n7.gpu[0-7]"
    assert found.bandwidth_seconds == pytest.approx(2 * 7 / 8 * 1e9 / 400e9)
    # With two hosts the GPUs' own links bind before the hosts' rails.
    assert bound(pod(2), "allreduce", 1e9).partition == "each of n[0-1].gpu[0-7] alone"


@pytest.mark.parametrize("sides", [(4,), (4, 4), (3, 4, 5)])
def test_torus(sides: tuple[int, ...]) -> None:
    topology = torus(*sides)
    n, degree = len(topology.ranks), 2 * len(sides)
    assert bandwidth_bound(topology, "allreduce") == pytest.approx(2 * (n - 1) / n / (degree * 50e9))


def test_a_link_that_is_slow_one_way() -> None:
    """Every device must be entered by the whole buffer at least: 9 bytes/s out do not make up for 1 in."""
    topology = machine(2, 0, [(0, 1, 1), (1, 0, 9)])
    assert bandwidth_bound(topology, "allreduce") == 1.0
    assert bound(topology, "broadcast", 1.0, root=1).bandwidth_seconds == pytest.approx(1 / 9)
    assert bound(topology, "broadcast", 1.0, root=0).binding == ("d0->d1",)


def test_devices_without_ranks_carry_nothing_unless_they_forward() -> None:
    nodes = (Node("a"), Node("b"), Node("idle"), Node("s", "switch"))
    pairs = [(0, 3, 1.0), (1, 3, 1.0), (0, 2, 5.0), (1, 2, 5.0)]
    links = tuple(Link(a, b, c) for x, y, c in pairs for a, b in ((x, y), (y, x)))
    assert bandwidth_bound(Topology("t", nodes, links, (0, 1)), "broadcast") == 1.0
    nodes = (*nodes[:2], Node("router", forwards=True), nodes[3])
    assert bandwidth_bound(Topology("t", nodes, links, (0, 1)), "broadcast") == pytest.approx(1 / 6)


def test_one_rank_needs_no_time() -> None:
    found = bound(Topology.flat(1, 1e9), "allreduce", 1e9)
    assert (found.seconds, found.parts, found.binding) == (0, (), ())


def test_bad_input() -> None:
    topology = Topology.flat(2, 1e9)
    with pytest.raises(pycoll.InvalidArgument, match="0 or more, not -1"):
        bound(topology, "allreduce", -1)
    with pytest.raises(pycoll.InvalidArgument, match="root must be between 0 and 1, not 2"):
        bound(topology, "broadcast", 1, root=2)
    with pytest.raises(pycoll.InvalidArgument, match="no collective 'sum'"):
        bound(topology, "sum", 1)


def test_names_in_short() -> None:
    assert compact(["h0", "h1", "h2", "h7"]) == "h[0-2,7]"
    assert compact([f"n{i}.gpu{j}" for i in range(2) for j in range(8)]) == "n[0-1].gpu[0-7]"
    assert compact(["n0.gpu0", "n0.gpu1", "n1.gpu0"]) == "n0.gpu[0-1], n1.gpu0"
    assert compact(["a", "b"]) == "a, b"
    assert compact(["h00", "h01"]) == "h00, h01"
    assert partition_text([["a0"], ["a1"]]) == "each of a[0-1] alone"
