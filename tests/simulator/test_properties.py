"""What holds of every simulation, whatever machine and schedule."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pycoll import Schedule, Simulation, Topology
from pycoll.topology import Link

from . import machines

SIZE = 24.0


def closely(values: object) -> object:
    return pytest.approx(values, rel=1e-9, abs=0)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Schedule, Topology]:
    ranks = draw(st.integers(2, 8))
    topology = draw(machines.topologies(ranks))
    return draw(machines.built_ins(ranks, topology)), topology


def run(schedule: Schedule, topology: Topology, size: float = SIZE, **options: object) -> Simulation:
    return schedule.simulate(topology, size, verify=False, **options)  # type: ignore[arg-type]


@settings(max_examples=60, deadline=None)
@given(cases())
def test_no_link_carries_more_than_it_can(case: tuple[Schedule, Topology]) -> None:
    schedule, topology = case
    result = run(schedule, topology)
    assert all(0 < share <= 1 + 1e-9 for share in result.link_busy.values())
    # What a rank receives cannot come in faster than all its links together let it.
    received = np.bincount(schedule.transfers["dst"], minlength=schedule.ranks) * SIZE / schedule.pieces
    inbound = np.zeros(schedule.ranks)
    for link in topology.links:
        if link.target < schedule.ranks:
            inbound[link.target] += link.bandwidth
    assert result.time >= max(received / inbound) * (1 - 1e-9)
    # Every byte is carried into its destination, over whichever of its links.
    carried = sum(result.link_bytes.get(k.name, 0.0) for k in topology.links if k.target < schedule.ranks)
    assert carried >= sum(received) * (1 - 1e-9)


@settings(max_examples=60, deadline=None)
@given(cases(), st.data())
def test_the_critical_path_is_the_time(case: tuple[Schedule, Topology], data: st.DataObject) -> None:
    schedule, topology = case
    n = schedule.ranks
    start = data.draw(st.none() | st.lists(machines.SECONDS, min_size=n, max_size=n))
    result = run(schedule, topology, start=start)
    path, arrays = result.critical_path, result.arrays
    assert result.time == max(result.rank_times)
    assert path[-1].end == result.time
    assert path[0].start in (start or [0.0])
    # In order: behind one that waited for a rank to come.
    assert path[0].reason in (("arrival", "send order", "receive order") if path[0].start else ("nothing",))
    assert result.composition.total == closely(result.time)
    for row, following in itertools.pairwise(path):
        assert row.end == following.start
        assert following.reason not in ("nothing", "arrival")
        if following.reason not in ("send order", "receive order"):
            assert following.waited_for == row.transfer
    for row in path:
        assert row.start == arrays["start"][row.transfer]
        parts = row.overhead + row.transmission + row.latency + row.addition
        assert parts == closely(row.end - row.start) or abs(parts - (row.end - row.start)) < 1e-9
        assert min(row.overhead, row.transmission, row.latency, row.addition) >= 0
        if row.reason == "data":
            assert schedule.transfers["dst"][row.waited_for] == row.src
            assert schedule.transfers["piece"][row.waited_for] == row.piece
        if row.reason == "turn":
            assert schedule.transfers[["src", "dst"]][row.waited_for] == np.array(
                (row.src, row.dst), dtype=[("src", "i4"), ("dst", "i4")]
            )


@settings(max_examples=40, deadline=None)
@given(cases(), st.sampled_from([0.125, 3.0, 1e9]))
def test_a_machine_faster_throughout_is_faster_by_as_much(
    case: tuple[Schedule, Topology], factor: float
) -> None:
    schedule, topology = case
    nodes = [
        dataclasses.replace(n, overhead=n.overhead / factor, reduce_rate=n.reduce_rate * factor)
        for n in topology.nodes
    ]
    links = [
        dataclasses.replace(k, bandwidth=k.bandwidth * factor, latency=k.latency / factor)
        for k in topology.links
    ]
    faster = Topology("faster", tuple(nodes), tuple(links), topology.ranks)
    before, after = run(schedule, topology), run(schedule, faster)
    assert after.time * factor == closely(before.time)
    assert (after.arrays["end"] * factor).tolist() == closely(before.arrays["end"].tolist())
    # Twice the bytes at twice the rates, likewise.
    links = [dataclasses.replace(k, bandwidth=k.bandwidth * factor) for k in topology.links]
    nodes = [dataclasses.replace(n, reduce_rate=n.reduce_rate * factor) for n in topology.nodes]
    wider = Topology("wider", tuple(nodes), tuple(links), topology.ranks)
    assert run(schedule, wider, SIZE * factor).time == closely(before.time)


@settings(max_examples=40, deadline=None)
@given(cases(), st.data())
def test_a_link_that_no_route_uses_changes_nothing(
    case: tuple[Schedule, Topology], data: st.DataObject
) -> None:
    schedule, topology = case
    before = run(schedule, topology)
    # A slower one, however short: there is a wider way already.
    ends = data.draw(st.lists(st.integers(0, len(topology.nodes) - 1), min_size=2, max_size=2, unique=True))
    links = (*(dataclasses.replace(k, name="") for k in topology.links), Link(*ends, 1e-3, 0.0))
    more = Topology("more", topology.nodes, links, topology.ranks)
    unused = [k for k in topology.links if k.name not in before.link_bytes]
    machines_alike = [more]
    if unused:
        machines_alike.append(topology.scaled(data.draw(st.sampled_from(unused)).name, 0.5))
    for machine in machines_alike:
        after = run(schedule, machine)
        for name, values in before.arrays.items():
            assert after.arrays[name].tolist() == values.tolist(), name


@settings(max_examples=40, deadline=None)
@given(cases(), st.data())
def test_events_of_one_moment_have_no_order(case: tuple[Schedule, Topology], data: st.DataObject) -> None:
    """Nodes, links and ranks in another order, which is the order in which equal events are handled."""
    schedule, topology = case
    nodes = data.draw(st.permutations(range(len(topology.nodes))))
    new_index = {old: new for new, old in enumerate(nodes)}
    links = [
        dataclasses.replace(k, source=new_index[k.source], target=new_index[k.target], name="")
        for k in data.draw(st.permutations(topology.links))
    ]
    ranks = data.draw(st.permutations(range(schedule.ranks)))  # old rank r is called ranks[r] now
    devices = [0] * schedule.ranks
    for old, new in enumerate(ranks):
        devices[new] = new_index[topology.ranks[old]]
    other = Topology("other", tuple(topology.nodes[old] for old in nodes), tuple(links), tuple(devices))
    rows = [
        (r, ranks[src], ranks[dst], piece, red) for r, src, dst, piece, red in schedule.transfers.tolist()
    ]
    relabelled = Schedule.from_transfers(
        rows, collective="allreduce", ranks=schedule.ranks, pieces=schedule.pieces
    )
    before, after = run(schedule, topology), run(relabelled, other)
    for name in ("start", "end", "done"):
        assert after.arrays[name].tolist() == pytest.approx(before.arrays[name].tolist(), rel=1e-9, abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(cases(), st.sampled_from([0.0, 0.5, 7.0]))
def test_all_late_is_all_later(case: tuple[Schedule, Topology], late: float) -> None:
    schedule, topology = case
    before, after = run(schedule, topology), run(schedule, topology, start=[late] * schedule.ranks)
    assert (after.arrays["end"] - late).tolist() == pytest.approx(
        before.arrays["end"].tolist(), rel=1e-9, abs=1e-9
    )
    assert after.composition.arrival == late


@settings(max_examples=40, deadline=None)
@given(cases(), st.integers(0, 2**64 - 1))
def test_hashing_is_repeatable_and_keeps_to_one_path(case: tuple[Schedule, Topology], seed: int) -> None:
    schedule, topology = case
    first, again = (run(schedule, topology, routing="hash", seed=seed) for _ in range(2))
    assert first.arrays["end"].tolist() == again.arrays["end"].tolist()
    for src, dst in {(int(t["src"]), int(t["dst"])) for t in schedule.transfers}:
        latency, hops = topology.native.route(src, dst, "hash", seed)
        spread_latency, spread = topology.native.route(src, dst)
        assert latency == closely(spread_latency) or abs(latency - spread_latency) < 1e-12
        assert {link for link, _ in hops} <= {link for link, _ in spread}
        assert all(share == 1 for _, share in hops)
        node = topology.ranks[dst]
        for link, _ in hops:  # from the destination back
            assert topology.links[link].target == node
            node = topology.links[link].source
        assert node == topology.ranks[src]


def test_bound_holds() -> None:
    bounds = pytest.importorskip("pycoll.bounds")
    assert bounds is not None

    @settings(max_examples=40, deadline=None)
    @given(cases())
    def holds(case: tuple[Schedule, Topology]) -> None:
        schedule, topology = case
        least = topology.bound(schedule.collective, SIZE)
        assert run(schedule, topology).time >= least * (1 - 1e-9)

    holds()
