"""Times before and after: closed forms, what must not change, and sentences that say why."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

import pycoll
from pycoll import InvalidArgument, Topology, whatif
from pycoll.whatif import Change, Scenario
from pycoll.whatif.evaluate import Evaluator

ALPHA, RATE, SIZE = 3e-6, 450.0 * (1 << 30), 1 << 30


def flat(ranks: int) -> Topology:
    """StragglAR's cluster (arXiv 2505.23523): one port, 3 us, 450 GiB/s."""
    return Topology.flat(ranks, RATE, ports=1, overhead=ALPHA)


def exactly(value: float) -> object:
    return pytest.approx(value, rel=1e-9, abs=0)


def ring(ranks: int, rate: float, alpha: float = ALPHA) -> float:
    return 2 * (ranks - 1) * (alpha + SIZE / ranks / rate)


@pytest.mark.parametrize("ranks", [4, 8, 16, 64, 256])
def test_closed_forms_before_and_after(ranks: int) -> None:
    row = whatif.compare(flat(ranks), [whatif.Slow("*", 0.5)], "allreduce", SIZE, "ring").rows[0]
    assert row.before is not None
    assert row.after is not None
    assert row.before.time == exactly(ring(ranks, RATE))
    assert row.after.time == exactly(ring(ranks, RATE / 2))
    halving = whatif.compare(flat(ranks), [], "allreduce", SIZE, "recursive_halving_doubling").rows[0].before
    assert halving is not None
    assert halving.time == exactly(2 * math.log2(ranks) * ALPHA + 2 * (ranks - 1) / ranks * SIZE / RATE)


def test_doubling_every_bandwidth_halves_the_bandwidth_part() -> None:
    for machine in (Topology.load("two_racks"), flat(6)):
        row = whatif.compare(machine, [whatif.Slow("*", 2)], "allreduce", "256MiB", "ring").rows[0]
        assert row.before is not None
        assert row.after is not None
        saved = row.before.composition["bandwidth"] / 2
        assert row.after.composition["bandwidth"] == exactly(saved)
        assert row.after.time == exactly(row.before.time - saved)


def test_a_late_rank_delays_a_ring_by_its_lateness() -> None:
    row = whatif.compare(flat(8), [whatif.Late(3, 5e-3)], "allreduce", SIZE, "ring").rows[0]
    assert row.before is not None
    assert row.after is not None
    assert row.after.time == exactly(row.before.time + 5e-3)
    assert "5 ms of it passes before the late rank comes" in row.why


def test_a_link_that_nothing_uses_changes_nothing() -> None:
    rail = Topology.load("hgx-h100-4-rail")
    row = whatif.compare(rail, [whatif.Fail("link:leaf0-spine1")], "allreduce", "64MiB", "ring").rows[0]
    busy = Evaluator(Scenario(rail)).outcome("ring", "allreduce", 1 << 26).loads
    unused = [name for name in ("leaf0->spine1", "leaf0->spine1#0") if not busy.get(name)]
    assert unused
    assert row.before is not None
    assert row.after is not None
    assert row.after.time == row.before.time


def test_failing_a_node_is_the_machine_without_it() -> None:
    racks = Topology.load("two_racks")
    row = whatif.compare(racks, [whatif.Fail("h3")], "allreduce", "25MiB").rows[0]
    assert row.after is not None
    choice = pycoll.Selector(racks.without("h3")).choose("allreduce", 25 << 20)
    assert (row.after.way, row.after.time) == (choice.way, choice.predicted)


def test_flows_of_one_path_change_nothing_and_of_several_help() -> None:
    one = whatif.compare("two_racks", [whatif.Ecmp(1), whatif.Flows(4)], "allreduce", "8MiB", "ring").rows[0]
    assert one.before is not None
    assert one.after is not None
    assert one.after.time == exactly(one.before.time)
    pod = Topology.load("hgx-h100-4-fat")
    times = []
    for flows in (1, 4):
        changes: list[Change] = [whatif.Place("interleaved"), whatif.Ecmp(0), whatif.Flows(flows)]
        row = whatif.compare(pod, changes, "allreduce", "64MiB", "ring").rows[0]
        assert row.after is not None
        times.append(row.after.time)
    assert times[1] <= times[0]


def test_spreading_is_compared_with_the_hashing_that_is_asked_for() -> None:
    pod = Topology.load("hgx-h100-4-fat")
    dealt = whatif.Place("interleaved")

    def before(*changes: Change) -> float:
        made = [dealt, *changes, whatif.Spread()]
        row = whatif.compare(pod, made, "allreduce", "64MiB", "direct_two_shot/32").rows[0]
        assert row.before is not None
        return row.before.time

    def hashed(*changes: Change) -> float:
        return whatif.time(pod, "allreduce", "64MiB", algorithm="direct_two_shot/32", changes=changes)

    assert before() == hashed(whatif.Ecmp(0))
    assert before(whatif.Ecmp(3)) == hashed(whatif.Ecmp(3))
    assert before(whatif.Flows(4)) == hashed(whatif.Ecmp(0), whatif.Flows(4))
    assert len({hashed(whatif.Ecmp(0)), hashed(whatif.Ecmp(3)), hashed(whatif.Ecmp(0), whatif.Flows(4))}) == 3
    with pytest.raises(InvalidArgument, match="give --ecmp seed=0 too"):
        whatif.compare(pod, [whatif.Flows(4)])


def test_a_barrier_moves_nothing() -> None:
    (row,) = whatif.compare("two_racks", [whatif.Latency("tor0-tor1", 1e-3)], "barrier").rows
    assert row.before is not None
    assert row.after is not None
    assert (row.size, row.before.busbw) == (0, 0)
    assert row.before.time == exactly(90e-6)  # three links of 30 us
    assert row.after.time == exactly(1090e-6)
    assert whatif.time("two_racks", "barrier", 0) == row.before.time


def test_lines_of_one_machine_stand_together() -> None:
    text = str(whatif.compare("two_racks", [], "allreduce", "1KiB,64KiB", "all"))
    sizes = [line.strip()[:6] for line in text.splitlines()[3:]]
    assert sizes.count("") == 1  # between the sizes
    assert len(sizes) > 15


def test_sentences() -> None:
    rows = whatif.compare("two_racks", [whatif.Slow("tor0-tor1", 0.25)], "allreduce", "25MiB").rows
    before, after = rows[0].before, rows[0].after
    assert before is not None
    assert after is not None
    why = rows[0].why
    assert why.startswith("25 MiB: slower by ")
    assert before.algorithm == after.algorithm or f"flips from {before.way} to {after.way}" in why
    assert f"{after.binding} binds" in why
    assert "tor0->tor1" in why
    same = whatif.compare("two_racks", [whatif.Slow("tor0-tor1", 8)], "allreduce", "25MiB", "ring")
    assert "nothing changes" in same.why
    fewer = whatif.compare("two_racks", [whatif.Fail("h3")], "allreduce", "25MiB")
    assert "with 7 ranks in place of 8" in fewer.why


def test_all_algorithms_and_rows_for_programs() -> None:
    comparison = whatif.compare("two_racks", [whatif.Late(3, 1e-3)], "allreduce", "64KiB,1MiB", "all")
    names = [row.after.algorithm for row in comparison.rows if row.after is not None and row.size == 1 << 20]
    assert len(names) == len(set(names)) > 4
    flat_rows = comparison.flat()
    assert {row["side"] for row in flat_rows} == {"before", "after"}
    lines = comparison.to_csv().splitlines()
    assert len(lines) == len(flat_rows) + 1
    assert lines[0].startswith("topology,changes,collective,size_bytes,side,algorithm")


def test_time_for_planners() -> None:
    packed = whatif.time("two_racks", "allreduce", "25MiB", group=4)
    assert packed == whatif.time(Topology.load("two_racks").first(4), "allreduce", 25 << 20)
    assert whatif.time("two_racks", "allreduce", "25MiB", group=4, placement="interleaved") > packed
    assert whatif.time("two_racks", "allreduce", "25MiB", group=[0, 4]) > 0
    with pytest.raises(InvalidArgument, match="there is no collective 'allsum'"):
        whatif.time("two_racks", "allsum", 8)
    with pytest.raises(InvalidArgument, match="there is no algorithm 'rings'"):
        whatif.compare("two_racks", [], "allreduce", 8, "rings")


# ---- properties

#: Two racks with two ways between them, so that there is something to break, to hash and to spread.
PLANES = Topology.from_yaml("""
pycoll: 1
name: two racks, two spines
nodes:
  - {name: "h[0-7]", kind: device}
  - {name: "tor[0-1]", kind: switch}
  - {name: "spine[0-1]", kind: switch}
links:
  - {between: ["h[0-3]", tor0], bandwidth: 1 GB/s, latency: 2 us}
  - {between: ["h[4-7]", tor1], bandwidth: 1 GB/s, latency: 2 us}
  - {between: ["tor[0-1]", "spine[0-1]"], bandwidth: 1 GB/s, latency: 1 us}
ranks: ["h[0-7]"]
""")
LINKS = ["tor0-spine0", "spine1", "h0", "h*-tor1", "tor0->spine1"]
FACTORS = st.floats(0.05, 4)
CHANGES = st.one_of(
    st.builds(whatif.Slow, st.sampled_from(LINKS), FACTORS),
    st.builds(whatif.Busy, st.sampled_from(LINKS), st.floats(0, 0.9)),
    st.builds(whatif.Latency, st.sampled_from(LINKS), st.floats(0, 1e-2)),
    st.builds(whatif.Fail, st.sampled_from(["link:tor0-spine1", "node:spine0", "node:h3", "link:h2-tor0"])),
    st.builds(whatif.Late, st.integers(0, 5), st.floats(0, 1e-2)),
    st.builds(
        whatif.LateDist,
        st.sampled_from([whatif.Lateness(each, 1e-3, 0, 3) for each in ("exponential", "uniform", "normal")]),
    ),
    st.builds(whatif.Add, st.sampled_from(["h0", "h7", "tor1"])),
    st.builds(whatif.Remove, st.sampled_from(["h5", "h6"])),
    st.builds(whatif.Place, st.just("interleaved")),
    st.builds(whatif.Oversubscribe, st.floats(0.5, 8)),
    st.builds(whatif.Ecmp, st.integers(0, 9)),
    st.just(whatif.Spread()),
    st.builds(whatif.Flows, st.integers(1, 3)),
)
SCENARIOS = st.lists(CHANGES, max_size=4)
ALGORITHMS = st.sampled_from(["ring", "recursive_halving_doubling", "binary_tree", "direct"])


def after(changes: list[Change]) -> Scenario:
    """The machine after changes that go together; examples of others are passed over."""
    try:
        return whatif.apply(Scenario(PLANES), changes)
    except pycoll.Error:  # what a change names is gone, or ranks are cut off
        reject()


@settings(max_examples=40, deadline=None)
@given(SCENARIOS, ALGORITHMS)
def test_no_time_is_below_the_bound(changes: list[Change], algorithm: str) -> None:
    outcome = Evaluator(after(changes)).outcome(algorithm, "allreduce", 1 << 20)
    assert outcome.time >= outcome.bound * (1 - 1e-9)


@settings(max_examples=40, deadline=None)
@given(SCENARIOS, st.sampled_from(LINKS), st.floats(0.05, 1))
def test_slowing_never_lowers_the_bound(changes: list[Change], links: str, factor: float) -> None:
    before = after(changes)
    try:
        slowed = whatif.apply(before, [whatif.Slow(links, factor)])
    except pycoll.Error:
        reject()
    fast, slow = (pycoll.bound(each.topology, "allreduce", 1 << 20) for each in (before, slowed))
    assert slow.bandwidth_seconds >= fast.bandwidth_seconds * (1 - 1e-9)
    assert slow.latency_seconds >= fast.latency_seconds * (1 - 1e-9)


@settings(max_examples=40, deadline=None)
@given(SCENARIOS, ALGORITHMS, st.floats(0.05, 1))
def test_slowing_links_that_no_route_uses_changes_nothing(
    changes: list[Change], algorithm: str, factor: float
) -> None:
    """A faster one may: routers prefer the wider of two equal ways."""
    before = after(changes)
    evaluator = Evaluator(before)
    schedule = evaluator.schedule(algorithm, "allreduce")
    run = evaluator.run(schedule, "allreduce", 1 << 20)
    idle = [link.name for link in before.topology.links if not run.loads.get(link.name)]
    slowed = whatif.apply(before, [whatif.Slow(name, factor) for name in idle])
    assert Evaluator(slowed).run(schedule, "allreduce", 1 << 20).seconds == exactly(run.seconds)


FLAT = st.one_of(
    st.builds(whatif.Slow, st.just("*"), FACTORS),
    st.builds(whatif.Busy, st.just("*"), st.floats(0, 0.9)),
    st.builds(whatif.Latency, st.just("*"), st.floats(0, 1e-2)),
    st.builds(whatif.Fail, st.sampled_from(["node:r1", "node:r3"])),
    st.builds(whatif.Add, st.just("r0"), st.integers(1, 3)),
    st.builds(whatif.Late, st.just("r0"), st.floats(0, 1e-2)),
    st.builds(whatif.Ecmp, st.integers(0, 9)),
)


@settings(max_examples=40, deadline=None)
@given(st.integers(5, 9), st.lists(FLAT, max_size=5))
def test_a_ring_on_a_flat_switch_follows_its_closed_form_through_all_changes(
    ranks: int, changes: list[Change]
) -> None:
    start = Scenario(Topology.flat(ranks, 1e9, latency=1e-5))
    rate, latency, late = 1e9, 1e-5, 0.0
    gone = {change.what for change in changes if isinstance(change, whatif.Fail)}
    if len(gone) < sum(isinstance(change, whatif.Fail) for change in changes):
        reject()  # it is gone already
    for change in changes:
        match change:
            case whatif.Slow(_, factor):
                rate *= factor
            case whatif.Busy(_, share):
                rate *= 1 - share
            case whatif.Latency(_, seconds):
                latency += 2 * seconds  # of a transfer: up and down
            case whatif.Add(_, count):
                ranks += count
            case whatif.Fail():
                ranks -= 1
            case whatif.Late(_, seconds):
                late += seconds
    scenario = whatif.apply(start, changes)
    schedule = pycoll.build("ring", collective="allreduce", ranks=ranks)
    run = Evaluator(scenario).run(schedule, "allreduce", SIZE)
    assert run.seconds == exactly(late + 2 * (ranks - 1) * (latency + SIZE / ranks / rate))
