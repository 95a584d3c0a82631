"""Which way a transfer takes: the widest, then the shortest, then the quickest; equal ones in parallel."""

from __future__ import annotations

import collections

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pycoll
from pycoll import InvalidArgument, Topology
from pycoll.topology import Link, Node

from . import machines, reference


def graph(devices: int, switches: int, *edges: tuple[int, int, float, float]) -> Topology:
    """Nodes 0..devices-1 are devices, then come the switches; edges are full duplex."""
    nodes = [Node(f"d{i}") for i in range(devices)] + [Node(f"s{i}", "switch") for i in range(switches)]
    links = []
    for a, b, bandwidth, latency in edges:
        links += [Link(a, b, bandwidth, latency), Link(b, a, bandwidth, latency)]
    return Topology("graph", tuple(nodes), tuple(links), tuple(range(devices)))


def route(topology: Topology, src: int, dst: int, *options: object) -> dict[str, float]:
    _, hops = topology.native.route(src, dst, *options)
    return {topology.links[link].name: share for link, share in hops}


def test_the_widest_way_however_long() -> None:
    topology = graph(2, 2, (0, 1, 1.0, 0.0), (0, 2, 5.0, 1.0), (2, 3, 2.0, 1.0), (3, 1, 5.0, 1.0))
    assert route(topology, 0, 1) == {"d0->s0": 1, "s0->s1": 1, "s1->d1": 1}
    assert topology.native.route(0, 1)[0] == 3


def test_then_the_shortest_then_the_quickest() -> None:
    topology = graph(2, 3, (0, 1, 1.0, 9.0), (0, 2, 1.0, 0.0), (2, 1, 1.0, 0.0))
    assert route(topology, 0, 1) == {"d0->d1": 1}
    topology = graph(2, 2, (0, 2, 1.0, 2.0), (2, 1, 1.0, 2.0), (0, 3, 7.0, 1.0), (3, 1, 1.0, 2.0))
    assert route(topology, 0, 1) == {"d0->s1": 1, "s1->d1": 1}


def test_parallel_paths_are_shared_evenly() -> None:
    """Three paths: two over s0 (a double link behind it), one over s1."""
    topology = graph(
        2, 2, (0, 2, 6.0, 0.0), (0, 3, 6.0, 0.0), (2, 1, 6.0, 0.0), (2, 1, 6.0, 0.0), (3, 1, 6.0, 0.0)
    )
    assert route(topology, 0, 1) == {
        "d0->s0": pytest.approx(2 / 3),
        "d0->s1": pytest.approx(1 / 3),
        "s0->d1#0": pytest.approx(1 / 3),
        "s0->d1#1": pytest.approx(1 / 3),
        "s1->d1": pytest.approx(1 / 3),
    }
    schedule = pycoll.build("direct", collective="broadcast", ranks=2)
    result = schedule.simulate(topology, 90.0)
    # d0->s0 carries two thirds at 6 bytes/s: 9 bytes/s in all.
    assert result.time == pytest.approx(10)
    assert result.binding_link == "d0->s0"
    assert result.link_busy == {
        "d0->s0": pytest.approx(1),
        **{name: pytest.approx(1 / 2) for name in ("d0->s1", "s0->d1#0", "s0->d1#1", "s1->d1")},
    }


def test_a_hash_picks_each_path_as_often() -> None:
    topology = graph(
        2, 2, (0, 2, 6.0, 1.0), (0, 3, 6.0, 1.0), (2, 1, 6.0, 1.0), (2, 1, 6.0, 1.0), (3, 1, 6.0, 1.0)
    )
    taken = collections.Counter(frozenset(route(topology, 0, 1, "hash", seed)) for seed in range(900))
    assert set(map(frozenset, taken)) == {
        frozenset({"d0->s0", "s0->d1#0"}),
        frozenset({"d0->s0", "s0->d1#1"}),
        frozenset({"d0->s1", "s1->d1"}),
    }
    assert all(250 < count < 350 for count in taken.values())


def test_hash_collisions_cost_what_spreading_saves() -> None:
    """Two pairs, two parallel links between their switches: by hash both may take the same one."""
    topology = graph(
        4,
        2,
        (0, 4, 1.0, 0.0),
        (1, 4, 1.0, 0.0),
        (2, 5, 1.0, 0.0),
        (3, 5, 1.0, 0.0),
        (4, 5, 1.0, 0.0),
        (4, 5, 1.0, 0.0),
    )
    rows = [(0, 0, 2, 0, False), (0, 1, 3, 1, False)]
    schedule = pycoll.Schedule.from_transfers(rows, collective="all_gather", ranks=4)
    spread = schedule.simulate(topology, 4.0, verify=False)
    assert spread.time == 1
    times = [schedule.simulate(topology, 4.0, routing="hash", seed=s, verify=False).time for s in range(64)]
    assert set(times) == {1.0, 2.0}
    assert 16 < times.count(2.0) < 48


def test_routes_belong_to_devices_not_to_ranks() -> None:
    topology = graph(
        3, 2, (0, 3, 1.0, 0.0), (1, 3, 1.0, 0.0), (3, 4, 1.0, 0.0), (3, 4, 1.0, 0.0), (4, 2, 1.0, 0.0)
    )
    moved = topology.place([2, 0, 1])
    for seed in range(8):
        assert route(topology, 1, 2, "hash", seed) == route(moved, 2, 0, "hash", seed)


def test_devices_forward_only_where_they_say_so() -> None:
    links = tuple(Link(a, b, 1.0) for a, b in ((0, 1), (1, 2), (2, 0), (1, 0), (0, 2)))
    nodes = [Node(name) for name in "abc"]
    forwarding = [Node(name, forwards=True) for name in "abc"]
    ring = Topology("ring", tuple(forwarding), links[:3], (0, 1, 2))
    assert route(ring, 0, 2) == {"a->b": 1, "b->c": 1}
    with pytest.raises(pycoll.TopologyError, match=r"no way from rank 0 \('a'\) to rank 2 \('c'\)"):
        Topology("ring", tuple(nodes), links[:3], (0, 1, 2)).native  # noqa: B018


def test_bad_routes() -> None:
    topology = Topology.flat(3, 1.0)
    for ends in ((0, 0), (0, 3), (-1, 2)):
        with pytest.raises(InvalidArgument, match="from one rank to another"):
            topology.native.route(*ends)
    with pytest.raises(InvalidArgument, match="spread, hash"):
        topology.native.route(0, 1, "widest")


@settings(max_examples=80, deadline=None)
@given(st.data(), st.integers(2, 5))
def test_as_of_all_paths_written_out(data: st.DataObject, ranks: int) -> None:
    topology = data.draw(machines.topologies(ranks))
    src, dst = data.draw(st.lists(st.integers(0, ranks - 1), min_size=2, max_size=2, unique=True))
    best = reference.routes(topology, src, dst)
    shares: dict[int, float] = collections.defaultdict(float)
    for path in best:
        for link in path:
            shares[link] += 1 / len(best)
    latency, hops = topology.native.route(src, dst)
    assert dict(hops) == {link: pytest.approx(share) for link, share in shares.items()}
    assert latency == pytest.approx(sum(topology.links[link].latency for link in best[0]))
