"""On a flat switch the simulator gives what the textbooks' formulas give, to the last digits.

Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH (2005).
"""

from __future__ import annotations

import itertools
import math

import pytest

import pycoll
from pycoll.topology import Link, Node

ALPHA = 3e-6
BANDWIDTH = 10e9
SIZE = 7_000_000.0
BETA = 1 / BANDWIDTH


def flat(ranks: int, *, overhead: float = ALPHA, latency: float = 0.0, ports: int = 1) -> pycoll.Topology:
    return pycoll.Topology.flat(ranks, BANDWIDTH, latency=latency, ports=ports, overhead=overhead)


def exactly(value: float) -> object:
    return pytest.approx(value, rel=1e-9, abs=0)


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8, 12, 33])
@pytest.mark.parametrize(
    ("overhead", "latency", "ports"), [(ALPHA, 0.0, 1), (1e-6, 2e-6, 0), (0.0, ALPHA, 0), (0.0, 0.0, 2)]
)
def test_ring(ranks: int, overhead: float, latency: float, ports: int) -> None:
    step = overhead + latency + SIZE / ranks * BETA
    topology = flat(ranks, overhead=overhead, latency=latency, ports=ports)
    for collective, steps in (
        ("allreduce", 2 * (ranks - 1)),
        ("reduce_scatter", ranks - 1),
        ("all_gather", ranks - 1),
    ):
        result = pycoll.build("ring", collective=collective, ranks=ranks).simulate(topology, SIZE)
        assert result.time == exactly(steps * step)
        assert result.rank_times.tolist() == [exactly(steps * step)] * ranks


@pytest.mark.parametrize("ranks", [2, 4, 8, 16, 64])
def test_recursive_halving_doubling(ranks: int) -> None:
    result = pycoll.build("recursive_halving_doubling", ranks=ranks).simulate(flat(ranks), SIZE)
    steps = 2 * math.log2(ranks)
    assert result.time == exactly(steps * ALPHA + 2 * (ranks - 1) / ranks * SIZE * BETA)
    assert result.composition.overhead == exactly(steps * ALPHA)


@pytest.mark.parametrize("ranks", [2, 4, 8, 32])
@pytest.mark.parametrize("ports", [0, 1])
def test_recursive_doubling(ranks: int, ports: int) -> None:
    topology = flat(ranks, overhead=1e-6, latency=2e-6, ports=ports)
    result = pycoll.build("recursive_doubling", ranks=ranks, pieces=1).simulate(topology, SIZE)
    assert result.time == exactly(math.log2(ranks) * (3e-6 + SIZE * BETA))


@pytest.mark.parametrize("ranks", [2, 3, 4, 7, 8, 16, 31])
@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
def test_binomial_tree_of_one_piece(ranks: int, collective: str) -> None:
    schedule = pycoll.build("binomial_tree", collective=collective, ranks=ranks, pieces=1)
    result = schedule.simulate(flat(ranks), SIZE)
    assert result.time == exactly(math.ceil(math.log2(ranks)) * (ALPHA + SIZE * BETA))


def test_direct_shares_its_links() -> None:
    """n-1 transfers at once leave each rank over one link, and none is ahead of the others."""
    ranks = 6
    result = pycoll.build("direct", ranks=ranks, pieces=1).simulate(flat(ranks, ports=0), SIZE)
    assert result.time == exactly(ALPHA + (ranks - 1) * SIZE * BETA)
    assert result.arrays["end"].tolist() == [exactly(result.time)] * (ranks * (ranks - 1))
    assert list(result.link_busy.values()) == [exactly(1 - ALPHA / result.time)] * (2 * ranks)


def test_direct_through_one_port() -> None:
    """The same bytes one after the other, each with its overhead, when no two ranks send to one at once."""
    ranks = 5
    rows = [(0, src, (src + step) % ranks, src, False) for step in range(1, ranks) for src in range(ranks)]
    schedule = pycoll.Schedule.from_transfers(rows, collective="all_gather", ranks=ranks)
    result = schedule.simulate(flat(ranks), SIZE)
    assert result.time == exactly((ranks - 1) * (ALPHA + SIZE / ranks * BETA))


@pytest.mark.parametrize("pieces", [1, 2, 5])
def test_pipelined_chain(pieces: int) -> None:
    """Piece p makes its hop h in step h + p: n - 2 + K steps of S/K."""
    ranks = 5
    schedule = pycoll.build("ring", collective="broadcast", ranks=ranks, pieces=pieces)
    result = schedule.simulate(flat(ranks), SIZE)
    assert result.time == exactly((ranks - 2 + pieces) * (ALPHA + SIZE / pieces * BETA))


def two_levels(groups: int, group: int, uplink: float, near: float, far: float) -> pycoll.Topology:
    """Groups on switches of their own, those on one more; `near`, `far`: latency of a link."""
    n = groups * group
    nodes = [Node(f"d{rank}", "device", overhead=ALPHA) for rank in range(n)]
    nodes += [Node(f"s{index}", "switch") for index in range(groups)] + [Node("top", "switch")]
    links = []
    for rank in range(n):
        switch = n + rank // group
        links += [Link(rank, switch, BANDWIDTH, near), Link(switch, rank, BANDWIDTH, near)]
    for switch in range(n, n + groups):
        links += [Link(switch, n + groups, uplink, far), Link(n + groups, switch, uplink, far)]
    return pycoll.Topology("two levels", tuple(nodes), tuple(links), tuple(range(n)))


@pytest.mark.parametrize(("groups", "group"), [(2, 2), (2, 8), (3, 4), (4, 4), (8, 8)])
@pytest.mark.parametrize("uplink", [BANDWIDTH / 4, BANDWIDTH / 16])
def test_hierarchical_on_two_levels(groups: int, group: int, uplink: float) -> None:
    """A piece a place in the group: to its place, to the first group's, and back.

    Within a group each rank sends and receives group - 1 pieces; then groups - 1 pieces for each place
    enter, and leave, the first group over its uplink.
    """
    near, far = 1e-6, 5e-6
    schedule = pycoll.build("hierarchical", ranks=groups * group, pieces=group, group=group)
    result = schedule.simulate(two_levels(groups, group, uplink, near, far), SIZE)
    within = ALPHA + 2 * near + (group - 1) * SIZE / group * BETA
    across = ALPHA + 2 * near + 2 * far + (groups - 1) * SIZE / uplink
    assert result.time == exactly(2 * within + 2 * across)
    assert result.binding_link in ("top->s0", "s0->top")


@pytest.mark.parametrize(("groups", "group"), [(2, 2), (2, 8), (4, 4), (8, 8)])
@pytest.mark.parametrize("uplink", [BANDWIDTH / 4, BANDWIDTH, 100 * BANDWIDTH])
def test_two_levels_with_exchanges(groups: int, group: int, uplink: float) -> None:
    """Reduce-scatter within groups, recursive doubling across them, all-gather within."""
    near, far = 1e-6, 5e-6
    steps = int(math.log2(groups))
    rows = []
    for base in range(0, groups * group, group):
        for place, peer in itertools.permutations(range(group), 2):
            rows.append((0, base + peer, base + place, place, True))
            rows.append((1 + steps, base + place, base + peer, place, False))
        for step, place in itertools.product(range(steps), range(group)):
            rows.append((1 + step, base + place, (base // group ^ 1 << step) * group + place, place, True))
    schedule = pycoll.Schedule.from_transfers(rows, collective="allreduce", ranks=groups * group)
    result = schedule.simulate(two_levels(groups, group, uplink, near, far), SIZE)
    within = ALPHA + 2 * near + (group - 1) * SIZE / group * BETA
    across = ALPHA + 2 * near + 2 * far + max(SIZE / uplink, SIZE / group * BETA)
    assert result.time == exactly(2 * within + steps * across)


def test_two_pieces_down_a_chain_by_hand() -> None:
    """a -> b at 4 bytes/s, b -> c at 1 byte/s; 8 bytes in two pieces of 4, latencies 0.5 and 0.25 s."""
    devices = [Node(name, "device", overhead=2.0, forwards=False) for name in "abc"]
    links = []
    for source, target, bandwidth, latency in ((0, 1, 4.0, 0.5), (1, 2, 1.0, 0.25), (2, 0, 1.0, 0.0)):
        links.append(Link(source, target, bandwidth, latency))
        links.append(Link(target, source, 1.0, 0.0))
    topology = pycoll.Topology("chain", tuple(devices), tuple(links), (0, 1, 2))
    rows = [(0, 0, 1, 0, False), (1, 0, 1, 1, False), (1, 1, 2, 0, False), (2, 1, 2, 1, False)]
    schedule = pycoll.Schedule.from_transfers(rows, collective="broadcast", ranks=3)
    result = schedule.simulate(topology, 8)
    arrays = result.arrays
    # Piece 0 leaves a at 2 + 4/4 = 3, is at b at 3.5, leaves b at 3.5 + 2 + 4 = 9.5, is at c at 9.75.
    # Piece 1 leaves a at 3 + 3 = 6, is at b at 6.5, waits there for its turn until 9.5, leaves at 15.5.
    assert arrays["start"].tolist() == [0, 3, 3.5, 9.5]
    assert arrays["end"].tolist() == [3, 6, 9.5, 15.5]
    assert arrays["done"].tolist() == [3.5, 6.5, 9.75, 15.75]
    assert result.time == 15.75
    assert result.rank_times.tolist() == [6, 15.5, 15.75]
    path = result.critical_path
    assert [(row.transfer, row.reason, row.waited_for) for row in path] == [
        (0, "nothing", None),
        (2, "data", 0),
        (3, "turn", 2),
    ]
    assert [(row.overhead, row.transmission, row.latency) for row in path] == [
        (2, 1, 0.5),
        (2, 4, 0),
        (2, 4, 0.25),
    ]
    assert result.binding_link == "b->c"
    assert result.critical_links == {"b->c": 8, "a->b": 1}
    assert result.link_busy == {"b->c": exactly(8 / 15.75), "a->b": exactly(2 / 15.75)}


# Speed-up of recursive halving and doubling over the ring as StragglAR's cost model (arXiv 2505.23523, its
# public script) prints it: alpha 3 us, 450 GiB/s, 1 GiB.
RHD_OVER_RING = {4: 1.002, 8: 1.006, 16: 1.016, 32: 1.036, 64: 1.078, 128: 1.162, 256: 1.331}


@pytest.mark.parametrize("ranks", RHD_OVER_RING)
def test_figures_of_stragglar(ranks: int) -> None:
    alpha, size, bandwidth = 3e-6, float(1 << 30), 450.0 * (1 << 30)
    topology = pycoll.Topology.flat(ranks, bandwidth, ports=1, overhead=alpha)
    ring = pycoll.build("ring", ranks=ranks).simulate(topology, size).time
    rhd = pycoll.build("recursive_halving_doubling", ranks=ranks).simulate(topology, size).time
    transfer = 2 * (ranks - 1) / ranks * size / bandwidth
    assert ring == exactly(2 * (ranks - 1) * alpha + transfer)
    assert rhd == exactly(2 * math.log2(ranks) * alpha + transfer)
    assert round(ring / rhd, 3) == RHD_OVER_RING[ranks]
