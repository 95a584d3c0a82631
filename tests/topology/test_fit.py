"""Topologies are found again from what a noisy probe of them measures."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import pycoll
from pycoll import InvalidArgument, Timeout, Topology, TopologyError
from pycoll.topology.clusters import Cluster, cluster_tree, partition, sampled_tree
from pycoll.topology.findings import findings
from pycoll.topology.fit import Fit, fit, pooled
from pycoll.topology.matrix import Figure, LinkMatrix, Together
from pycoll.topology.measure import Flow
from pycoll.topology.probe import ProbeOptions, measure
from pycoll.topology.simulated import SimulatedMeasurer
from pycoll.topology.traffic import structured, tournament
from pycoll.topology.tree_links import TreeLink, TreeLinks, fair_shares

from .machines import gpu_hosts, tree, two_sockets

NOISE = 0.05


def probed(machine: Topology, seed: int = 1, **options: float) -> tuple[LinkMatrix, Fit]:
    matrix = measure(SimulatedMeasurer(machine, NOISE, seed), ProbeOptions(**options))
    return matrix, fit(matrix)


def near(value: float, share: float = 0.1) -> object:
    return pytest.approx(value, rel=share)


def blocks(counts: Sequence[int], first: int = 0) -> list:
    """The ranks of machines.tree as nested lists."""
    if len(counts) == 1:
        return list(range(first, first + counts[0]))
    size = math.prod(counts[1:])
    return [blocks(counts[1:], first + index * size) for index in range(counts[0])]


def of_kind(fitted: Fit, kind: str, depth: int = 1) -> list[float]:
    """Bandwidths of all links of a kind; of clusters so many levels below the root."""
    return [
        capacity
        for link, capacity in fitted.capacity.items()
        if link.kind == kind and (kind != "cluster" or len(fitted.links.chain(link.owner)) == depth + 1)
    ]


def explains(fitted: Fit) -> None:
    for quality in fitted.quality:
        assert quality.median < 0.04, quality
        assert quality.worst < 0.2, quality


def same_times(machine: Topology, fitted: Fit) -> None:
    """What the simulator says of collectives on the fitted machine is what it says on the true one."""
    ranks = len(machine.ranks)
    for algorithm, size in (("ring", 64 << 20), ("direct", 64 << 20), ("ring", 1 << 12)):
        schedule = pycoll.build(algorithm, ranks=ranks)
        true, found = (schedule.simulate(t, size).time for t in (machine, fitted.topology))
        assert found == near(true, 0.12), (algorithm, size)


# ---- known machines


def test_flat_switch() -> None:
    machine = Topology.flat(8, "10 GB/s", latency="5 us", ports=0, overhead="1 us")
    matrix, fitted = probed(machine)
    assert matrix.clusters == list(range(8))
    assert not matrix.sampled
    assert of_kind(fitted, "rank") == [near(10e9)] * 16
    assert {link.kind for link in fitted.capacity} == {"rank"}
    assert [node.overhead for node in fitted.topology.nodes[:8]] == [near(1e-6)] * 8
    assert [link.latency for link in fitted.topology.links] == [near(2.5e-6)] * 16
    explains(fitted)
    same_times(machine, fitted)
    said = " ".join(findings(matrix, fitted))
    assert "flows of one rank share its link" in said
    assert "the way out of s" not in said


def test_two_racks_with_a_slow_spine() -> None:
    matrix, fitted = probed(tree([2, 4], [125e6, 125e6], [15e-6, 15e-6]))
    assert matrix.clusters == blocks([2, 4])
    assert of_kind(fitted, "rank") == [near(125e6)] * 16
    assert of_kind(fitted, "cluster") == [near(125e6)] * 4
    explains(fitted)
    same_times(tree([2, 4], [125e6, 125e6], [15e-6, 15e-6]), fitted)
    said = [s for s in findings(matrix, fitted) if "share a bottleneck of" in s and "r0->r4" in s]
    assert len(said) == 1
    assert "links r0->r4, r1->r5, r2->r6, r3->r7 share a bottleneck of" in said[0]
    assert " Gbit/s (alone " in said[0]
    assert "four at once" in said[0]


def test_oversubscribed_four_to_one_that_latency_does_not_show() -> None:
    machine = tree([2, 4], [12.5e9, 12.5e9], [0, 1e-6])
    matrix, fitted = probed(machine)
    assert matrix.clusters == blocks([2, 4])
    assert of_kind(fitted, "cluster") == [near(12.5e9)] * 4
    explains(fitted)
    same_times(machine, fitted)


def test_four_racks_oversubscribed_four_to_one() -> None:
    machine = tree([4, 3], [9e9, 12e9], [2e-6, 1e-6])
    matrix, fitted = probed(machine)
    assert matrix.clusters == blocks([4, 3])
    assert of_kind(fitted, "rank") == [near(12e9)] * 24
    assert of_kind(fitted, "cluster") == [near(9e9)] * 8
    explains(fitted)
    same_times(machine, fitted)


def test_two_sockets() -> None:
    machine = two_sockets(4, core=10e9, memory=22e9, between=15e9)
    matrix, fitted = probed(machine)
    assert matrix.clusters == blocks([2, 4])
    assert of_kind(fitted, "rank") == [near(10e9)] * 16
    assert of_kind(fitted, "fabric") == [near(22e9)] * 2
    assert of_kind(fitted, "cluster") == [near(15e9)] * 4
    explains(fitted)
    same_times(machine, fitted)


@pytest.mark.parametrize(("spine", "sample_above"), [(200e9, 24), (100e9, 24), (200e9, 4)])
def test_hosts_of_gpus_with_a_card_each(spine: float, sample_above: int) -> None:
    machine = gpu_hosts(3, 4, card=50e9, cards=4, spine=spine)
    matrix, fitted = probed(machine, sample_above=sample_above)
    assert matrix.sampled == (sample_above < 12)
    assert matrix.clusters == blocks([3, 4])
    assert of_kind(fitted, "rank") == [near(300e9)] * 24
    assert of_kind(fitted, "lane") == [near(50e9)] * 24
    assert of_kind(fitted, "cluster") == [near(spine)] * 6
    explains(fitted)
    said = [said for said in findings(matrix, fitted) if "a way out of there of its own" in said]
    assert len(said) == 1
    assert said[0].startswith("each rank of s1, s2, s3 has")


def test_hosts_of_gpus_that_share_a_card() -> None:
    machine = gpu_hosts(3, 4, card=25e9, cards=1, spine=100e9)
    matrix, fitted = probed(machine)
    assert matrix.clusters == blocks([3, 4])
    assert of_kind(fitted, "rank") == [near(300e9)] * 24
    assert of_kind(fitted, "cluster") == [near(25e9)] * 6
    assert of_kind(fitted, "lane") == []
    explains(fitted)


def test_one_slow_cable() -> None:
    """It belongs to its rack all the same, and is said to be slow."""
    machine = tree([2, 4], [5e9, 5e9], [15e-6, 15e-6]).scaled("t.1.1->*", 0.25)
    matrix, fitted = probed(machine)
    assert matrix.clusters == blocks([2, 4])
    up = [fitted.capacity[TreeLink("rank", rank, True)] for rank in range(8)]
    down = [fitted.capacity[TreeLink("rank", rank, False)] for rank in range(8)]
    assert up == [near(1.25e9) if rank == 5 else near(5e9) for rank in range(8)]
    assert down == [near(5e9)] * 8
    slow = [said for said in findings(matrix, fitted) if said.startswith("r5 ")]
    assert len(slow) == 1
    assert "sends at 10" in slow[0] or "sends at 9." in slow[0]  # Gbit/s


def test_more_ranks_than_processors() -> None:
    """All flows of a host share its processors: what one gets alone, four get together."""
    matrix = LinkMatrix.empty(["laptop"] * 4)
    matrix.alpha[:], matrix.gap[:], matrix.beta[:] = 4e-6, 1e-6, 1 / 6e9
    for array in (matrix.alpha, matrix.gap, matrix.beta):
        np.fill_diagonal(array, math.nan)
    matrix.copy_rate[:], matrix.copy_rate_together[:] = 30e9, 15e9
    matrix.together = [
        Together("matching", flows, (6e9 / len(flows),) * len(flows), (0.0,) * len(flows))
        for flows in [*tournament(4), tuple(Flow(rank, (rank + 1) % 4) for rank in range(4))]
    ]
    fitted = fit(matrix)
    assert fitted.capacity[TreeLink("fabric", 0)] == near(6e9, 0.02)
    assert [node.copy_rate for node in fitted.topology.nodes[:4]] == [15e9] * 4
    assert [node.name for node in fitted.topology.nodes[4:]] == ["laptop.in", "laptop.out"]
    rates = SimulatedMeasurer(fitted.topology).rates([Flow(0, 1), Flow(1, 0), Flow(2, 3)])
    assert rates.tolist() == [near(2e9, 0.02)] * 3
    said = " ".join(findings(matrix, fitted))
    assert "what laptop has of memory bandwidth and processors" in said
    assert "copying, a rank alone does 30 GB/s, while all do 15 GB/s each" in said


def test_clusters_that_explain_nothing_are_noise() -> None:
    machine = Topology.flat(6, "3 GB/s", latency="4 us", ports=0)
    matrix, _ = probed(machine)
    matrix.clusters = [[0, 1, 2], [3, 4], 5]
    fitted = fit(matrix)
    assert len(fitted.links.clusters) == 1
    assert of_kind(fitted, "rank") == [near(3e9)] * 12


# ---- any machine


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[int], list[float], list[float]]:
    """Counts, bandwidths and latencies of a tree of two or three levels, the outermost first."""
    levels = draw(st.integers(2, 3))
    counts = [draw(st.integers(2, 4 if levels == 2 else 2))]
    counts += [draw(st.integers(2, 4 if levels == 2 else 3)) for _ in range(levels - 1)]
    bandwidth, latency = draw(st.floats(1e8, 5e10)), draw(st.floats(2e-7, 3e-6))
    bandwidths, latencies = [bandwidth], [latency]
    for count in reversed(counts[1:]):
        share = draw(st.sampled_from([0.25, 0.4, 0.6, 1.0]))
        bandwidths.insert(0, bandwidths[0] * count * share)
        latencies.insert(0, sum(latencies) * draw(st.floats(0.7, 5)))
    return counts, bandwidths, latencies


@settings(max_examples=6, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(trees(), st.integers(0, 1000))
def test_trees_are_found_again(machine: tuple[list[int], list[float], list[float]], seed: int) -> None:
    counts, bandwidths, latencies = machine
    true = tree(counts, bandwidths, latencies, overhead=latencies[-1] / 4)
    matrix, fitted = probed(true, seed)
    assert matrix.clusters == blocks(counts)
    best = bandwidths[-1]
    assert of_kind(fitted, "rank") == [near(best)] * (2 * math.prod(counts))
    for depth in range(1, len(counts)):
        found = of_kind(fitted, "cluster", depth)
        assert found == [near(bandwidths[depth - 1])] * (2 * math.prod(counts[:depth]))
    explains(fitted)
    same_times(true, fitted)


@pytest.mark.parametrize(
    ("counts", "bandwidths", "latencies"),
    [
        ([8, 8], [25e9, 12.5e9], [2e-6, 1e-6]),
        ([16, 4], [12.5e9, 12.5e9], [4e-6, 1e-6]),
        ([2, 4, 8], [50e9, 40e9, 12.5e9], [6e-6, 2e-6, 1e-6]),
    ],
)
def test_sixty_four_ranks_are_sampled(
    counts: list[int], bandwidths: list[float], latencies: list[float]
) -> None:
    matrix, fitted = probed(tree(counts, bandwidths, latencies))
    assert matrix.sampled
    assert matrix.pairs_measured < 64 * 64 / 5
    assert matrix.clusters == blocks(counts)
    assert of_kind(fitted, "rank") == [near(bandwidths[-1])] * 128
    for depth in range(1, len(counts)):
        found = of_kind(fitted, "cluster", depth)
        assert found == [near(bandwidths[depth - 1])] * (2 * math.prod(counts[:depth]))
    explains(fitted)
    assert "64 ranks are many: measured were" in findings(matrix, fitted)[0]


def test_sampling_a_flat_machine() -> None:
    matrix, fitted = probed(Topology.flat(32, "3 GB/s", latency="9 us", ports=0))
    assert matrix.clusters == list(range(32))
    assert matrix.pairs_measured < 32 * 32 / 5
    assert of_kind(fitted, "rank") == [near(3e9)] * 64


# ---- clusters


def as_sets(cluster: Cluster | int) -> object:
    if isinstance(cluster, int):
        return cluster
    return frozenset(as_sets(member) for member in cluster.members)


def latencies_of(home: Sequence[Sequence[int]], steps: Sequence[float], seed: int = 0) -> np.ndarray:
    """Latency of ranks whose addresses (outermost part first) differ from some level on: steps[level]."""
    n = len(home)
    noise = 1 + 0.02 * np.random.default_rng(seed).standard_normal((n, n))
    latency = np.ones((n, n))
    for a in range(n):
        for b in range(n):
            level = next((i for i, (x, y) in enumerate(zip(home[a], home[b], strict=True)) if x != y), None)
            latency[a, b] = 1.0 if level is None else steps[level]
    return latency * (noise + noise.T) / 2


def test_partition_cuts_at_the_highest_gap() -> None:
    distance = np.array([[0, 1, 5, 9], [1, 0, 5, 9], [5, 5, 0, 9], [9, 9, 9, 0]], float)
    assert partition(distance, 2.0) == ([[0, 1, 2], [3]], 4.0)
    assert partition(distance[:3, :3], 2.0) == ([[0, 1], [2]], 4.0)
    assert partition(distance[:2, :2], 2.0) == ([[0, 1]], 0.0)
    assert partition(distance, 10.0) == ([[0, 1, 2, 3]], 0.0)


def test_uneven_levels() -> None:
    """Two pairs that are near, a group whose members are farther, and a rank by itself."""
    latency = latencies_of([(0, 0), (0, 0), (0, 1), (0, 1), (1, 0), (1, 1), (1, 2), (2, 0)], [30.0, 4.0])
    assert as_sets(cluster_tree(latency)) == frozenset(
        {frozenset({frozenset({0, 1}), frozenset({2, 3})}), frozenset({4, 5, 6}), 7}
    )


@pytest.mark.parametrize("noisy", [[(0, 1)], [(0, 1), (2, 3), (4, 5)], [(3, 4)], [(0, 7), (1, 6)]])
def test_racks_are_told_apart_by_rates_though_latencies_say_otherwise(noisy: list[tuple[int, int]]) -> None:
    """Hosts of two racks are equally far, but for pairs that a disturbed probe saw nearer."""
    rack = np.arange(8) // 4
    rate = np.where(rack[:, None] == rack, 60.0, 15.0)
    latency = np.full((8, 8), 40.0)
    for a, b in noisy:
        latency[a, b] = latency[b, a] = 28.0
    outermost = [set(part) for part in cluster_tree(latency, rate).parts()]
    assert outermost == [{0, 1, 2, 3}, {4, 5, 6, 7}]


def test_rates_do_not_hide_what_latencies_tell() -> None:
    """Two hosts of four ranks, pairs of which share a link out: hosts outside, pairs inside of them."""
    latency = latencies_of([(rank // 4,) for rank in range(8)], [30.0])
    pair = np.arange(8) // 2
    rate = np.where(pair[:, None] == pair, 20.0, 5.0)
    assert as_sets(cluster_tree(latency, rate)) == frozenset(
        {frozenset({frozenset({0, 1}), frozenset({2, 3})}), frozenset({frozenset({4, 5}), frozenset({6, 7})})}
    )


@pytest.mark.parametrize("order", ["contiguous", "round robin", "shuffled"])
def test_sampled_tree_asks_for_few_pairs(order: str) -> None:
    address = [(rank // 32, rank // 4 % 8) for rank in range(64)]
    if order == "round robin":
        address = [address[rank % 16 * 4 + rank // 16] for rank in range(64)]
    if order == "shuffled":
        address = [address[i] for i in np.random.default_rng(3).permutation(64)]
    latency = latencies_of(address, [9.0, 3.0], seed=5)
    asked: list[tuple[int, int]] = []

    def ask(a: int, b: int) -> float:
        asked.append((a, b))
        return float(latency[a, b])

    found = sampled_tree(64, ask)
    assert as_sets(found) == as_sets(cluster_tree(latency))
    assert len({part for cluster in found.walk() for part in cluster.parts()}) == 64 + 16 + 2
    assert len(asked) == len(set(asked))
    # Neither kind of placement that launchers make costs more than a tenth of all pairs.
    assert len(asked) < 64 * 63 / 2 * (0.35 if order == "shuffled" else 0.16)


# ---- traffic


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 6, 7, 8, 12, 16])
def test_tournament_lets_all_pairs_meet_once(ranks: int) -> None:
    rounds = list(tournament(ranks))
    assert len(rounds) == 2 * (ranks - 1 + ranks % 2)
    met = [flow for flows in rounds for flow in flows]
    assert sorted(met) == [Flow(a, b) for a in range(ranks) for b in range(ranks) if a != b]
    for flows in rounds:
        busy = [end for flow in flows for end in flow]
        assert len(set(busy)) == len(busy)


def test_traffic_of_clusters() -> None:
    cluster = Cluster((Cluster((0, 1)), Cluster((2, 3)), Cluster((4, 5))))
    kinds: dict[str, list[tuple[Flow, ...]]] = {}
    for kind, flows in structured(cluster, sampled=False):
        kinds.setdefault(kind, []).append(flows)
        assert all(flow.src != flow.dst for flow in flows)
    assert (Flow(0, 2), Flow(1, 3), Flow(2, 4), Flow(3, 5), Flow(4, 0), Flow(5, 1)) in kinds["shift"]
    assert (Flow(0, 2), Flow(1, 4)) in kinds["exodus"]  # to all other clusters in turn
    assert (Flow(2, 0), Flow(4, 1)) in kinds["influx"]
    flat = list(structured(Cluster((0, 1, 2, 3)), sampled=False))
    assert ("fan out", (Flow(1, 2), Flow(1, 3), Flow(1, 0))) in flat
    assert ("fan in", (Flow(2, 1), Flow(3, 1), Flow(0, 1))) in flat


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_fair_shares_are_the_simulators(data: st.DataObject) -> None:
    counts = [2, data.draw(st.integers(2, 3))]
    bandwidths = [data.draw(st.floats(1, 50)), data.draw(st.floats(1, 50))]
    machine = tree(counts, bandwidths, [0, 0], overhead=0)
    ranks = math.prod(counts)
    links = TreeLinks(Cluster.from_nested(blocks(counts)))
    capacity = {TreeLink("rank", rank, up): bandwidths[1] for rank in range(ranks) for up in (True, False)}
    capacity |= {TreeLink("cluster", c, up): bandwidths[0] for c in (1, 2) for up in (True, False)}
    pairs = [Flow(a, b) for a in range(ranks) for b in range(ranks) if a != b]
    flows = data.draw(st.lists(st.sampled_from(pairs), min_size=1, max_size=8, unique=True))
    shares = fair_shares(flows, links, capacity)
    assert [share.rate for share in shares] == pytest.approx(
        SimulatedMeasurer(machine).rates(flows), rel=0.04
    )


# ---- budgets and files


def test_a_budget_too_small_says_what_is_missing() -> None:
    machine = Topology.flat(8, "1 GB/s", latency="100 us", ports=0)
    with pytest.raises(Timeout, match=r"of 0\.3 s was over .* not measured are: .*bandwidth alone \(5\d\)"):
        probed(machine, budget=0.3)


def test_without_time_for_flows_at_once_it_says_so() -> None:
    machine = tree([2, 2], [1e9, 1e9], [30e-6, 30e-6])
    matrix = measure(SimulatedMeasurer(machine, NOISE, 1), ProbeOptions(budget=0.65))
    assert any("not measured" in note and "matching" in note for note in matrix.unsettled)
    assert any("give a larger --budget" in said for said in findings(matrix, fit(matrix)))


class Moving(SimulatedMeasurer):
    """A machine whose processors are far apart, and everything slower, for a third of the time."""

    def distances(self) -> dict[str, float]:
        return dict.fromkeys(self.hosts, 150.0 if self.far() else 40.0)

    def far(self) -> bool:
        return self.elapsed() % 1.5 > 1.0

    def transfer(self, flow: Flow, size: int, repeats: int) -> np.ndarray:
        return super().transfer(flow, size, repeats) * (4 if self.far() else 1)

    def stream(self, *args, **kwargs) -> np.ndarray:  # type: ignore[no-untyped-def]
        return super().stream(*args, **kwargs) / (4 if self.far() else 1)


def test_only_the_usual_state_counts() -> None:
    machine = Topology.flat(4, "5 GB/s", latency="5 us", ports=0)
    matrix = measure(Moving(machine, 0.02, 1), ProbeOptions(budget=20))
    assert matrix.stamp["state"] == "near"
    assert matrix.stamp["measurements"]["far"] > 20
    fitted = fit(matrix)
    assert of_kind(fitted, "rank") == [near(5e9)] * 8
    explains(fitted)
    assert any("processors moved while it was measured" in said for said in findings(matrix, fitted))


@pytest.mark.parametrize("budget", [0, -1, math.nan, math.inf])
def test_a_budget_is_positive(budget: float) -> None:
    with pytest.raises(InvalidArgument, match="budget"):
        ProbeOptions(budget=budget)


def test_matrix_and_topology_files(tmp_path) -> None:
    matrix, fitted = probed(tree([2, 3], [1e9, 2e9], [9e-6, 3e-6]))
    matrix.save(tmp_path / "matrix.json")
    read = LinkMatrix.load(tmp_path / "matrix.json")
    assert read.to_json() == matrix.to_json()
    assert np.array_equal(read.alpha, matrix.alpha, equal_nan=True)
    assert read.together == matrix.together
    assert fit(read).topology == fitted.topology
    fitted.topology.save(tmp_path / "machine.yaml")
    again = Topology.load(tmp_path / "machine.yaml")
    assert again == fitted.topology
    assert "Measured by pycoll topo probe" in again.about


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", "no matrix"),
        ("{}", "no matrix"),
        ('{"pycoll_matrix": 9}', "version 9"),
        ('{"pycoll_matrix": 1, "ranks": 2}', "alpha"),
        ('{"pycoll_matrix": 1, "ranks": 2, "alpha": [[null, 1]]}', "alpha has shape"),
    ],
)
def test_matrix_files_that_are_wrong(text: str, says: str) -> None:
    with pytest.raises(TopologyError, match=says):
        LinkMatrix.from_json(text)


def test_a_matrix_without_bandwidths() -> None:
    with pytest.raises(TopologyError, match="no bandwidth from rank 0"):
        fit(LinkMatrix.empty(["a", "b"]))
    wrong = LinkMatrix.empty(["a", "b"])
    wrong.clusters = [0, 0]
    with pytest.raises(TopologyError, match="clusters"):
        fit(wrong)


def test_figures() -> None:
    figure = Figure()
    figure.add([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (figure.median, figure.spread) == (3.0, pytest.approx(1 / 3))
    assert math.isnan(Figure().median)
    assert Figure([1.0]).error == math.inf
    figure = Figure([1.0, 1.0, 9.0])
    figure.label("near")
    figure.add([5.0, 7.0])
    figure.label("far")
    figure.add([100.0])
    figure.state = "far"
    assert (figure.median, figure.used) == (6.0, [5.0, 7.0])
    figure.state = "near"
    assert figure.median == 1.0
    figure.state = "unheard of"
    assert figure.median == 6.0  # better than nothing
    assert pooled([1.0, 1.02, 5.0, 1.04], 0.05) == [1.02, 1.02, 5.0, 1.02]


def test_devices_are_named_like_their_hosts() -> None:
    machine = Topology.flat(4, 125e6, 50e-6)
    dealt = fit(measure(SimulatedMeasurer(machine, hosts=["b", "a", "a", "s0"]))).topology
    assert [dealt.nodes[index].name for index in dealt.ranks] == ["b", "a.0", "a.1", "s0"]
    assert dealt == Topology.from_yaml(dealt.to_yaml())
    alone = fit(measure(SimulatedMeasurer(machine, hosts=["a"] * 4))).topology
    assert [alone.nodes[index].name for index in alone.ranks] == ["r0", "r1", "r2", "r3"]
