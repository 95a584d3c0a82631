"""Topology: what it refuses, and the same machine otherwise."""

from __future__ import annotations

import math
import pickle

import pytest

import pycoll
from pycoll import InvalidArgument, Topology, TopologyError
from pycoll.topology import Link, Node

RACKS = Topology.load("two_racks")


def names(topology: Topology) -> list[str]:
    return [topology.nodes[index].name for index in topology.ranks]


def test_flat_is_one_switch_with_the_latency_from_end_to_end() -> None:
    flat = Topology.flat(4, "1 Gbit/s", "30 us", ports=2, overhead=1e-6)
    assert flat.ranks == (0, 1, 2, 3)
    assert [node.kind for node in flat.nodes] == ["device"] * 4 + ["switch"]
    assert {(node.ports, node.overhead) for node in flat.nodes[:4]} == {(2, 1e-6)}
    assert {(link.bandwidth, link.latency) for link in flat.links} == {(1.25e8, 15e-6)}
    assert [link.name for link in flat.links[:2]] == ["r0->switch", "switch->r0"]
    assert flat == Topology.flat(4, 1.25e8, 30e-6, ports=2, overhead="1 us")
    with pytest.raises(InvalidArgument):
        Topology.flat(0, 1.0)


def test_parallel_links_are_numbered() -> None:
    nodes = (Node("a"), Node("b"))
    links = [Link(0, 1, 1.0), Link(1, 0, 1.0), Link(0, 1, 2.0)]
    topology = Topology("t", nodes, tuple(links), (0, 1))
    assert [link.name for link in topology.links] == ["a->b#0", "b->a", "a->b#1"]


@pytest.mark.parametrize(
    ("nodes", "links", "ranks", "says"),
    [
        ([Node("a"), Node("a")], [], [0], "2 nodes are called 'a'"),
        ([Node("a b")], [], [0], "'a b' cannot be a node's name"),
        ([Node("")], [], [0], "cannot be a node's name"),
        ([Node("a")], [], [], "has no ranks"),
        ([Node("a")], [], [1], "rank 0 lives on node 1 of 1"),
        ([Node("a")], [], [-1], "rank 0 lives on node -1"),
        ([Node("a", "switch")], [], [0], "rank 0 lives on a, a switch"),
        ([Node("a")], [], [0, 0], "ranks 0 and 1 both live on a"),
        ([Node("a", ports=-1)], [], [0], "ports must be 0"),
        ([Node("a", overhead=-1.0)], [], [0], "overhead must be"),
        ([Node("a", overhead=math.nan)], [], [0], "overhead must be"),
        ([Node("a", reduce_rate=0.0)], [], [0], "reduce rate must be positive"),
        ([Node("a"), Node("b")], [Link(0, 2, 1.0)], [0], "ends at node 2, but there are 2"),
        ([Node("a"), Node("b")], [Link(0, 0, 1.0)], [0], "from a node to itself"),
        ([Node("a"), Node("b")], [Link(0, 1, 0.0)], [0], "link a->b: bandwidth must be positive"),
        ([Node("a"), Node("b")], [Link(0, 1, math.inf)], [0], "bandwidth must be positive and finite"),
        ([Node("a"), Node("b")], [Link(0, 1, math.nan)], [0], "bandwidth must be"),
        ([Node("a"), Node("b")], [Link(0, 1, 1.0, -1.0)], [0], "latency must be"),
    ],
)
def test_what_is_no_machine(nodes: list[Node], links: list[Link], ranks: list[int], says: str) -> None:
    with pytest.raises(TopologyError, match=says):
        Topology("t", tuple(nodes), tuple(links), tuple(ranks))


def test_ranks_that_cannot_reach_each_other_are_found() -> None:
    def chain(forwards: bool) -> Topology:
        chained = (Node("a"), Node("b", forwards=forwards), Node("c"))
        links = [Link(*ends, 1.0) for ends in [(0, 1), (1, 0), (1, 2), (2, 1)]]
        return Topology("t", chained, tuple(links), (0, 1, 2))

    assert chain(forwards=True).parts() == [[0, 1, 2]]
    chain(forwards=True).check()
    assert len(chain(forwards=False).parts()) == 2  # a and c are two links apart, and b passes nothing on
    with pytest.raises(TopologyError, match="falls into 2 parts"):
        chain(forwards=False).check()
    one_way = Topology("t", (Node("a"), Node("b")), (Link(0, 1, 1.0),), (0, 1))
    assert one_way.parts() == [[0], [1]]


def test_place_takes_other_ranks() -> None:
    placed = RACKS.place([4, 0, 5])
    assert names(placed) == ["h4", "h0", "h5"]
    assert placed.nodes == RACKS.nodes
    assert placed.place([1]).ranks == (RACKS.ranks[0],)
    with pytest.raises(TopologyError, match="there is no rank 8"):
        RACKS.place([8])
    with pytest.raises(TopologyError, match="both live on h0"):
        RACKS.place([0, 0])


def test_first_keeps_the_switches_links() -> None:
    pod = Topology.load("hgx-h100-128-rail").first(64)
    kept = {node.name for node in pod.nodes}
    assert len(pod.ranks) == 64
    assert {f"spine{k}" for k in range(16)} <= kept
    assert {f"su0.leaf{k}" for k in range(8)} <= kept
    assert not any(name.startswith(("su1", "su0.s8")) for name in kept)
    assert sum(link.name.startswith("su0.leaf0->spine") for link in pod.links) == 32
    rack = RACKS.first(4)
    assert [node.name for node in rack.nodes] == ["h0", "h1", "h2", "h3", "tor0"]
    assert RACKS.first(5).nodes[-1].name == "tor1"
    assert RACKS.first(8) is RACKS
    assert RACKS.first(100) is RACKS


def test_first_can_fall_apart() -> None:
    others = [rank for rank in range(64) if rank not in (0, 27)]
    with pytest.raises(TopologyError, match=r"no path from t0\.0 to t3\.3"):
        Topology.load("torus-8x8").place([0, 27, *others]).first(2)  # what would forward between them is gone


def test_scaled_changes_the_links_that_match() -> None:
    slow = RACKS.scaled("tor0->tor1", 0.5)
    changed = {a.name for a, b in zip(RACKS.links, slow.links, strict=True) if a != b}
    assert changed == {"tor0->tor1"}
    assert RACKS.scaled("tor0<->tor1", 0.5).links[-1].bandwidth == 0.625e8
    assert {link.bandwidth for link in RACKS.scaled("*", 2).links} == {2.5e8}
    server = Topology.load("server-2s")
    assert {server.links[i].name for i in server.matching_links("s0.mesh<->s1.mesh#1")} == {
        "s0.mesh->s1.mesh#1",
        "s1.mesh->s0.mesh#1",
    }
    with pytest.raises(TopologyError, match="did you mean tor0->tor1"):
        RACKS.scaled("tor0->tor2", 0.5)
    for factor in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(InvalidArgument, match="positive"):
            RACKS.scaled("*", factor)


def test_without_breaks_nodes_and_links() -> None:
    assert names(RACKS.without("h2")) == ["h0", "h1", "h3", "h4", "h5", "h6", "h7"]
    pod = Topology.load("hgx-h100-4-rail")
    assert len(pod.without("spine0").links) == len(pod.links) - 16
    assert len(pod.without("leaf0<->spine[0-2]").links) == len(pod.links) - 6
    # Servers reach each other on rail 0 still, but GPU 0 of one no longer GPU 1 of another.
    with pytest.raises(TopologyError, match=r"no path from s0\.gpu0 to s1\.gpu1;"):
        pod.without("leaf0<->spine*")
    with pytest.raises(TopologyError, match="falls into 2 parts"):
        RACKS.without("tor0<->tor1")
    with pytest.raises(TopologyError, match="no node of topology"):
        RACKS.without("h9")
    with pytest.raises(TopologyError, match="has no ranks left"):
        RACKS.without("h*")


def test_it_is_a_value() -> None:
    again = Topology.from_yaml(RACKS.to_yaml())
    assert again == RACKS
    assert hash(again) == hash(RACKS)
    assert pickle.loads(pickle.dumps(RACKS)) == RACKS
    assert RACKS.scaled("tor0->tor1", 0.5) != RACKS
    with pytest.raises(AttributeError):
        RACKS.name = "other"  # type: ignore[misc]
    assert RACKS.index("tor1") == 9
    with pytest.raises(TopologyError, match="did you mean tor0"):
        RACKS.index("tro0")


def test_native_is_the_same_graph_and_made_once() -> None:
    assert RACKS.native is RACKS.native
    assert isinstance(RACKS.native, pycoll._core.Topology)
    assert pickle.loads(pickle.dumps(RACKS)) == RACKS  # also after that
