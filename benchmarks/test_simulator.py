"""How fast the simulator is: `pytest benchmarks/test_simulator.py`. Nothing is judged.

The peak of memory is that of a process of its own, which does nothing else.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import pycoll
from pycoll import Topology
from pycoll.topology import Link, Node

GIB = float(1 << 30)


def three_tiers(
    ranks: int, *, per_leaf: int = 32, pods: int = 4, spines: int = 8, cores: int = 64
) -> Topology:
    """Devices under leaf switches, leaves under the spines of their pod, spines under core switches; 1:1."""
    leaves = ranks // per_leaf
    nodes = [Node(f"gpu{i}") for i in range(ranks)]
    links: list[Link] = []

    def switches(kind: str, count: int) -> range:
        nodes.extend(Node(f"{kind}{i}", "switch") for i in range(count))
        return range(len(nodes) - count, len(nodes))

    def join(a: int, b: int, bandwidth: float) -> None:
        links.extend((Link(a, b, bandwidth, 1e-6), Link(b, a, bandwidth, 1e-6)))

    leaf, spine, core = switches("leaf", leaves), switches("spine", pods * spines), switches("core", cores)
    for rank in range(ranks):
        join(rank, leaf[rank // per_leaf], 50e9)
    for index, switch in enumerate(leaf):
        for up in range(spines):
            join(switch, spine[index * pods // leaves * spines + up], 50e9 * per_leaf / spines)
    each = cores // spines
    for index, switch in enumerate(spine):
        for up in range(each):
            bandwidth = 50e9 * per_leaf / spines * leaves / pods / each
            join(switch, core[index % spines * each + up], bandwidth)
    return Topology("three tiers", tuple(nodes), tuple(links), tuple(range(ranks)))


@pytest.mark.parametrize(("ranks", "per_leaf"), [(64, 8), (1024, 32)])
def test_ring(ranks: int, per_leaf: int, benchmark: Any) -> None:
    """From the schedule to the result: verification, routes, dataflow, events."""
    topology = three_tiers(ranks, per_leaf=per_leaf)
    topology.native  # noqa: B018
    transfers = pycoll.build("ring", ranks=ranks)

    def fresh() -> tuple[tuple[pycoll.Schedule], dict[str, Any]]:
        return (pycoll.Schedule(transfers),), {}

    run = benchmark.pedantic(lambda s: s.simulate(topology, GIB), setup=fresh, rounds=5)
    assert len(run.rank_times) == ranks


@pytest.mark.parametrize("algorithm", ["recursive_halving_doubling", "direct_two_shot", "double_binary_tree"])
def test_shared_links(algorithm: str, benchmark: Any) -> None:
    """64 ranks whose transfers share links and end at different times, again and again for other sizes."""
    topology = three_tiers(64, per_leaf=8).scaled("leaf*->*", 0.25)
    schedule = pycoll.build(algorithm, ranks=64)
    benchmark(lambda: schedule.simulate(topology, GIB))


PEAK = """
import sys
sys.path[:0] = [{folder!r}]
import pycoll, test_simulator
pycoll.build("ring", ranks=1024).simulate(test_simulator.three_tiers(1024), float(1 << 30))
print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
"""


def test_memory_of_1024_ranks(request: pytest.FixtureRequest) -> None:
    program = PEAK.format(folder=str(request.path.parent))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    mib = int(done.stdout) >> 10
    print(f"\npeak of memory, schedule, interpreter and all: {mib} MiB")
    assert mib < 2048
