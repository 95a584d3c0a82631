"""Where slowing a link can never speed a schedule up, and where it can.

Without sharing every transfer ends at a maximum of sums of the times of others (a max-plus system), and
a maximum of sums cannot fall when a term grows. With sharing it can: what slows one transfer leaves more of
a link to another, on which more depends. So Graham, Bounds on multiprocessing timing anomalies (1969), for
processors, and Braess (1968) for roads.
"""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pycoll
from pycoll import Schedule, Topology
from pycoll.topology import Link, Node

from . import machines

SIZE = 24.0


@st.composite
def meshes(draw: st.DrawFn, ranks: int) -> Topology:
    """A link from each device to each other one, so that no two pairs share any; any number of ports."""
    nodes = [Node(f"d{r}", "device", draw(machines.PORTS), draw(machines.SECONDS)) for r in range(ranks)]
    links = [
        Link(a, b, draw(machines.RATES), draw(machines.SECONDS))
        for a in range(ranks)
        for b in range(ranks)
        if a != b
    ]
    return Topology("mesh", tuple(nodes), tuple(links), tuple(range(ranks)))


@st.composite
def stars(draw: st.DrawFn, ranks: int) -> Topology:
    """Devices of one port on one switch: a link never has two transfers at once."""
    nodes = [Node(f"d{r}", "device", 1, draw(machines.SECONDS)) for r in range(ranks)]
    links = []
    for rank in range(ranks):
        for ends in ((rank, ranks), (ranks, rank)):
            links.append(Link(*ends, draw(machines.RATES), draw(machines.SECONDS)))
    return Topology("star", (*nodes, Node("s", "switch")), tuple(links), tuple(range(ranks)))


@st.composite
def slowed(draw: st.DrawFn, topology: Topology) -> Topology:
    """One link slower or longer, or one device's overhead longer."""
    links, nodes = list(topology.links), list(topology.nodes)
    change = draw(st.sampled_from(["bandwidth", "latency", "overhead"]))
    if change == "overhead":
        device = draw(st.sampled_from(topology.ranks))
        nodes[device] = dataclasses.replace(nodes[device], overhead=nodes[device].overhead + 0.7)
    else:
        index = draw(st.integers(0, len(links) - 1))
        link = links[index]
        if change == "bandwidth":
            links[index] = dataclasses.replace(link, bandwidth=link.bandwidth * draw(st.floats(0.01, 0.99)))
        else:
            links[index] = dataclasses.replace(link, latency=link.latency + draw(st.floats(0.01, 5)))
    return Topology("slowed", tuple(nodes), tuple(links), topology.ranks)


@settings(max_examples=150, deadline=None)
@given(st.data(), st.integers(2, 6), st.sampled_from([meshes, stars]))
def test_without_sharing_no_transfer_gets_earlier(data: st.DataObject, ranks: int, machine: object) -> None:
    topology = data.draw(machine(ranks))  # type: ignore[operator]
    schedule = data.draw(machines.transfer_lists(ranks) | machines.built_ins(ranks))
    slower = data.draw(slowed(topology))
    before, after = (schedule.simulate(t, SIZE, verify=False) for t in (topology, slower))
    for name in ("start", "end", "done"):
        assert (after.arrays[name] >= before.arrays[name] * (1 - 1e-12)).all()
    assert (after.rank_times >= before.rank_times * (1 - 1e-12)).all()


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(2, 6), st.sampled_from([meshes, stars]))
def test_without_sharing_a_late_rank_makes_nothing_earlier(
    data: st.DataObject, ranks: int, machine: object
) -> None:
    topology = data.draw(machine(ranks))  # type: ignore[operator]
    schedule = data.draw(machines.transfer_lists(ranks) | machines.built_ins(ranks))
    start = data.draw(st.lists(machines.SECONDS, min_size=ranks, max_size=ranks))
    later = list(start)
    later[data.draw(st.integers(0, ranks - 1))] += 0.9
    before, after = (schedule.simulate(topology, SIZE, start=s, verify=False) for s in (start, later))
    assert (after.arrays["end"] >= before.arrays["end"] * (1 - 1e-12)).all()


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 6, 7, 8, 12, 16])
@pytest.mark.parametrize("overhead", [0.0, 0.25])
@pytest.mark.parametrize("latency", [0.0, 0.25])
def test_built_in_algorithms_on_a_flat_switch(ranks: int, overhead: float, latency: float) -> None:
    """One port a device, equal links, one of which gets slower: no built-in algorithm gets faster."""
    topology = Topology.flat(ranks, 1.0, latency, ports=1, overhead=overhead)
    for name, info in pycoll.algorithms().items():
        if not info.builtin or not info.accepts(ranks):
            continue
        for collective in info.collectives:
            if collective == "barrier":
                continue
            schedule = pycoll.build(name, collective=collective, ranks=ranks)
            before = schedule.simulate(topology, SIZE, verify=False).time
            for link in ("r1->switch", f"switch->r{ranks - 1}"):
                after = schedule.simulate(topology.scaled(link, 0.3), SIZE, verify=False).time
                assert after >= before * (1 - 1e-12), schedule


def test_slowing_a_link_can_help_by_hand() -> None:
    """Rank 3 gathers; ranks 0 and 1 send through rank 2, where rank 1's piece is in nobody's way later on.

    At 1 byte/s, pieces of 1 byte: pieces 0 and 1 share the link to rank 2 and arrive at 2; then rank 2
    sends pieces 0, 2 and 1, and is done at 5. With rank 1's own link at 0.4 byte/s, piece 0 has 0.6 of the
    link to rank 2 and arrives at 5/3; piece 1 arrives at 2.5, long before its turn.
    """
    rows = [
        (0, 0, 2, 0, False),
        (0, 1, 2, 1, False),
        (1, 2, 3, 0, False),
        (2, 2, 3, 2, False),
        (3, 2, 3, 1, False),
    ]
    schedule = Schedule.from_transfers(rows, collective="gather", ranks=4, root=3)
    topology = Topology.flat(4, 1.0, ports=0)
    assert schedule.simulate(topology, 4).time == 5
    slower = topology.scaled("r1->switch", 0.4)
    assert schedule.simulate(slower, 4).time == pytest.approx(5 - 1 / 3, rel=1e-12)
    # With one port there is no sharing, and no such surprise: pieces come to rank 2 one after the other.
    topology = Topology.flat(4, 1.0, ports=1)
    assert schedule.simulate(topology, 4).time == 4
    assert schedule.simulate(topology.scaled("r1->switch", 0.4), 4).time == 4.5


def test_slowing_a_link_can_help_a_built_in_algorithm() -> None:
    """Recursive doubling of six ranks, the two surplus ones served by partners, on equal links."""
    schedule = pycoll.build("recursive_doubling", collective="all_gather", ranks=6)
    topology = Topology.flat(6, 1.0, ports=0, overhead=0.25)
    before = schedule.simulate(topology, SIZE).time
    after = schedule.simulate(topology.scaled("r4->switch", 0.5), SIZE).time
    assert before == pytest.approx(60.375)
    assert after == pytest.approx(56.9166666667)


def test_slowing_a_link_can_help_by_another_route() -> None:
    """The widest way is taken, not the quickest: once it is no longer the widest, latency may win."""
    nodes = (Node("a"), Node("b"), Node("s", "switch"))
    links = (Link(0, 2, 1.0, 50.0), Link(2, 1, 1.0, 50.0), Link(0, 1, 0.9, 0.0), Link(1, 0, 1.0, 0.0))
    topology = Topology("two ways", nodes, links, (0, 1))
    schedule = pycoll.build("direct", collective="broadcast", ranks=2)
    assert schedule.simulate(topology, 9.0).time == 109
    assert schedule.simulate(topology.scaled("a->s", 0.8), 9.0).time == pytest.approx(10)
