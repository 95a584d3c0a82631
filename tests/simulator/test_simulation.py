"""The result as people see it, and what is refused."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pycoll
from pycoll import InvalidArgument, Schedule, ScheduleError, Topology, Unsupported
from pycoll.topology import Link, Node

from . import machines

GIB = float(1 << 30)


@pytest.fixture(scope="module")
def result() -> pycoll.Simulation:
    topology = Topology.flat(4, "10 GB/s", "5 us", ports=1, overhead="2 us").scaled("switch->r2", 0.5)
    return pycoll.build("ring", ranks=4).simulate(topology, 1 << 20, start=[0, 0, 1e-4, 0])


def test_what_it_prints(result: pycoll.Simulation) -> None:
    text = str(result)
    assert "ring: allreduce, 4 ranks, 4 pieces, 1 MiB on 4 ranks on one switch" in text
    for part in ("waiting for ranks to come", "overhead", "bandwidth", "latency"):
        assert part in text
    assert result.binding_link == "switch->r2"
    assert "limited by    switch->r2" in text
    assert "critical path" in text
    assert repr(result).startswith("<Simulation of 'ring' on '4 ranks on one switch': ")


def test_what_rich_prints(result: pycoll.Simulation) -> None:
    from rich.console import Console

    console = Console(width=100)
    with console.capture() as capture:
        console.print(result)
    assert "switch->r2" in capture.get()


def test_as_json(result: pycoll.Simulation) -> None:
    out = json.loads(json.dumps(result.to_dict(transfers=True)))
    assert out["time_s"] == result.time
    assert out["start_s"] == [0, 0, 1e-4, 0]
    assert out["busbw_bytes_per_s"] == pytest.approx((1 << 20) / result.time * 1.5)
    assert sum(out["composition_s"].values()) == pytest.approx(result.time)
    assert out["critical_path"][-1]["end"] == result.time
    assert len(out["transfers"]["start_s"]) == len(result.schedule.transfers)
    assert "transfers" not in result.to_dict()


def test_a_late_rank(result: pycoll.Simulation) -> None:
    """Nothing goes from or to it before it comes, and what needs it comes later still."""
    arrays, transfers = result.arrays, result.schedule.transfers
    touched = (transfers["src"] == 2) | (transfers["dst"] == 2)
    assert arrays["start"][touched].min() == 1e-4
    assert arrays["start"][~touched].min() == 0
    assert result.critical_path[0].reason == "arrival"
    assert result.composition.arrival == 1e-4


def test_reductions_take_turns() -> None:
    """Three arrive at once at a device that adds 1 byte/s."""
    nodes = (Node("a", reduce_rate=1.0), *(Node(name) for name in "bcd"))
    links = tuple(Link(i, j, 4.0, 0.5) for i in range(4) for j in range(4) if i != j)
    topology = Topology("mesh", nodes, links, (0, 1, 2, 3))
    schedule = pycoll.build("direct", collective="reduce", ranks=4)
    result = schedule.simulate(topology, 4.0)
    assert sorted(result.arrays["done"].tolist()) == [5.5, 9.5, 13.5]
    assert result.time == 13.5
    assert result.composition.addition == 12
    assert result.composition.total == 13.5


def test_an_exchange_does_not_wait_for_itself() -> None:
    """Two ranks reduce one piece into each other: each sends what it had, whichever bytes come first."""
    nodes = (Node("a", overhead=5.0), Node("b"))
    topology = Topology("pair", nodes, (Link(0, 1, 1.0), Link(1, 0, 1.0)), (0, 1))
    rows = [(0, 0, 1, 0, True), (0, 1, 0, 0, True)]
    schedule = Schedule.from_transfers(rows, collective="allreduce", ranks=2)
    result = schedule.simulate(topology, 1.0)
    assert result.arrays["end"].tolist() == [6, 1]
    assert result.rank_times.tolist() == [6, 6]


def test_what_is_sent_again_waits_for_readers_of_what_it_replaces() -> None:
    """Rank 1 holds a partial sum that it still sends, slowly, to rank 2 when the full one comes."""
    rows = [
        (0, 0, 1, 0, True),
        (1, 1, 2, 0, True),
        (2, 2, 0, 0, False),
        (3, 0, 1, 0, False),
        (4, 1, 3, 0, False),
    ]
    links = [(0, 1, 1.0), (1, 2, 1.0), (2, 0, 1.0), (1, 3, 1.0), (3, 0, 1.0)]
    nodes = tuple(Node(name, forwards=True) for name in "abcd")
    topology = Topology("chain", nodes, tuple(Link(*link) for link in links), (0, 1, 2, 3))
    schedule = Schedule.from_transfers(rows, collective="allreduce", ranks=4)
    result = schedule.simulate(topology, 1.0, verify=False)
    assert result.arrays["start"].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("size", [0, -1, math.nan, math.inf, -math.inf])
def test_sizes_that_are_none(size: float) -> None:
    with pytest.raises(InvalidArgument, match="size must be a number of bytes above 0"):
        pycoll.build("ring", ranks=2).simulate(Topology.flat(2, 1.0), size)


@pytest.mark.parametrize("size", ["1 GiB", None, True, [1]])
def test_sizes_that_are_no_numbers(size: object) -> None:
    with pytest.raises(InvalidArgument, match="size must be a number of bytes"):
        pycoll.build("ring", ranks=2).simulate(Topology.flat(2, 1.0), size)  # type: ignore[arg-type]


def test_a_barrier_has_no_bytes() -> None:
    schedule = pycoll.build("recursive_doubling", collective="barrier", ranks=8)
    topology = Topology.flat(8, 1.0, latency=0.5, overhead=0.25)
    result = schedule.simulate(topology, 0)
    assert result.time == 3 * 0.75
    assert result.binding_link is None
    assert result.link_busy == {}
    assert "bandwidth" not in result.made_of
    with pytest.raises(InvalidArgument, match="a barrier moves no bytes"):
        schedule.simulate(topology, 4)


def test_one_rank_is_done_at_once() -> None:
    result = pycoll.build("ring", ranks=1).simulate(Topology.flat(1, 1.0), 8)
    assert (result.time, result.critical_path, result.link_busy) == (0, (), {})
    assert "0 s" in str(result)
    json.dumps(result.to_dict())


def test_ranks_that_do_not_fit() -> None:
    with pytest.raises(InvalidArgument, match="is for 4 ranks, but topology '5 ranks on one switch' has 5"):
        pycoll.build("ring", ranks=4).simulate(Topology.flat(5, 1.0), 8)


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ([0, 0], "start has 2 times for 3 ranks"),
        ([0, -1, 0], "rank 1 starts at -1"),
        ([0, 0, math.nan], "rank 2 starts at nan"),
        ("now", "start must be a number of seconds a rank"),
        (3.0, "start must be a number of seconds a rank"),
    ],
)
def test_starts_that_do_not_fit(start: object, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        pycoll.build("ring", ranks=3).simulate(Topology.flat(3, 1.0), 8, start=start)  # type: ignore[arg-type]


def test_other_arguments_that_do_not_fit() -> None:
    schedule, topology = pycoll.build("ring", ranks=2), Topology.flat(2, 1.0)
    with pytest.raises(InvalidArgument, match="there is no routing 'ecmp'; there are: spread, hash"):
        schedule.simulate(topology, 8, routing="ecmp")
    for seed in (-1, 1 << 64, 0.5, True):
        with pytest.raises(InvalidArgument, match="seed must be an integer between"):
            schedule.simulate(topology, 8, routing="hash", seed=seed)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=r"topology must be a pycoll\.Topology, not dict"):
        schedule.simulate({}, 8)  # type: ignore[arg-type]


def test_wrong_schedules_are_refused_unless_told_not_to() -> None:
    topology = Topology.flat(3, 1.0)
    partial = Schedule.from_transfers([(0, 0, 1, 0, False)], collective="broadcast", ranks=3)
    with pytest.raises(ScheduleError, match="rank 2 is owed piece 0"):
        partial.simulate(topology, 8)
    assert partial.simulate(topology, 8, verify=False).time == 8
    nowhere = Schedule.from_transfers([(0, 0, 7, 0, False)], collective="broadcast", ranks=3)
    with pytest.raises(ScheduleError, match="names what does not exist"):
        nowhere.simulate(topology, 8, verify=False)


def test_disconnected_machines_are_refused() -> None:
    nodes = (Node("a"), Node("b"), Node("c"))
    topology = Topology("islands", nodes, (Link(0, 1, 1.0), Link(1, 0, 1.0)), (0, 1, 2))
    with pytest.raises(pycoll.TopologyError, match=r"no way from rank 0 \('a'\) to rank 2 \('c'\)"):
        pycoll.build("ring", ranks=3).simulate(topology, 8)


# ---- what users of other simulators ran into


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(2, 9))
def test_busbw_is_never_above_the_configured_link(data: st.DataObject, ranks: int) -> None:
    """However clever the algorithm: 2(n-1)/n S must go through each rank's link."""
    ports = data.draw(st.sampled_from([0, 1]))
    topology = Topology.flat(ranks, 10e9, data.draw(st.sampled_from([0, 1e-6])), ports=ports)
    schedule = data.draw(machines.built_ins(ranks).filter(lambda s: s.collective == "allreduce"))
    assert schedule.simulate(topology, data.draw(st.sampled_from([8, GIB]))).busbw <= 10e9 * (1 + 1e-9)


def test_the_answer_moves_with_the_topology() -> None:
    """Slower, longer, oversubscribed, reordered: each gives another time, and the right one."""
    schedule = pycoll.build("ring", ranks=8)
    base = schedule.simulate(Topology.flat(8, 1e9), GIB).time
    assert schedule.simulate(Topology.flat(8, 2e9), GIB).time == pytest.approx(base / 2)
    assert schedule.simulate(Topology.flat(8, 1e9, 1e-3), GIB).time == pytest.approx(base + 14e-3)
    nodes = [Node(f"d{i}") for i in range(8)] + [Node("s0", "switch"), Node("s1", "switch")]
    links = []
    for i in range(8):
        links += [Link(i, 8 + i // 4, 1e9), Link(8 + i // 4, i, 1e9)]
    links += [Link(8, 9, 0.25e9), Link(9, 8, 0.25e9)]
    racks = Topology("racks", tuple(nodes), tuple(links), tuple(range(8)))
    across = schedule.simulate(racks, GIB)
    assert across.time == pytest.approx(4 * base)  # one transfer a step crosses each way
    assert across.binding_link in ("s0->s1", "s1->s0")
    zigzag = schedule.simulate(racks.place([0, 4, 1, 5, 2, 6, 3, 7]), GIB)
    assert zigzag.time == pytest.approx(16 * base)  # four do


def test_an_algorithm_that_is_not_there_is_an_error() -> None:
    with pytest.raises(InvalidArgument, match="there is no algorithm 'halving_doubling'"):
        pycoll.build("halving_doubling", ranks=4)
    with pytest.raises(Unsupported, match="does not do all_to_all"):
        pycoll.build("ring", collective="all_to_all", ranks=4)


def test_64_ranks_are_not_32() -> None:
    """Neither in time nor in what is carried, and a machine of 64 takes no schedule of 32."""
    results = {n: pycoll.build("ring", ranks=n).simulate(Topology.flat(n, 1e9, 1e-5), GIB) for n in (32, 64)}
    for n, result in results.items():
        assert result.time == pytest.approx(2 * (n - 1) * (1e-5 + GIB / n / 1e9))
        assert sum(result.link_bytes.values()) == pytest.approx(2 * 2 * (n - 1) * GIB)
        assert len(result.rank_times) == n
    with pytest.raises(InvalidArgument, match="for 32 ranks"):
        pycoll.build("ring", ranks=32).simulate(Topology.flat(64, 1e9), GIB)


def test_a_node_that_failed() -> None:
    """`without` takes it out; the ranks that remain are numbered anew and get a schedule of their own."""
    topology = Topology.flat(4, 1e9).without("r2")
    with pytest.raises(InvalidArgument, match="for 4 ranks"):
        pycoll.build("ring", ranks=4).simulate(topology, GIB)
    assert pycoll.build("ring", ranks=3).simulate(topology, GIB).time == pytest.approx(4 / 3 * GIB / 1e9)


# ---- drawing, long runs


@pytest.mark.parametrize(("algorithm", "ranks"), [("ring", 1), ("double_binary_tree", 8), ("ring", 104)])
def test_drawing(algorithm: str, ranks: int, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    topology = Topology.flat(ranks, 1e9, 1e-6, overhead=1e-6)
    result = pycoll.build(algorithm, ranks=ranks).simulate(topology, GIB, start=[1.0] + [0] * (ranks - 1))
    picture = tmp_path / "timeline.png"
    figure = result.draw(picture, dpi=40)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert figure.axes[0].get_xlim()[1] >= 1
    with pytest.raises(InvalidArgument, match="cannot draw to"):
        result.draw(tmp_path / "timeline.doc")


def test_bytes_flow_from_the_end_of_overheads() -> None:
    topology = Topology.flat(8, 8.0, overhead=2.0)
    result = pycoll.build("recursive_halving_doubling", ranks=8).simulate(topology, 64.0)
    held = result.byte_starts - result.arrays["start"]
    assert sorted(set(held.tolist())) == [0, 2]
    assert (result.arrays["end"] - result.byte_starts).tolist() == [1.0] * len(held)
    assert np.count_nonzero(held) == 6 * 8  # messages: six rounds, eight ranks


def test_other_threads_run_meanwhile() -> None:
    schedule, topology = pycoll.build("ring", ranks=256), Topology.flat(256, 1e9)
    ticks, done = 0, threading.Event()

    def work() -> None:
        for _ in range(3):
            schedule.simulate(topology, GIB)
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    while not done.is_set():
        ticks += 1
        time.sleep(0.001)
    thread.join()
    assert ticks > 5


INTERRUPTED = """
import pycoll
from pycoll.topology import Link, Node
schedule = pycoll.build("pairwise", collective="all_to_all", ranks=128)
nodes = [Node(f"d{i}") for i in range(128)] + [Node("s", "switch")]
links = []
for i in range(128):
    links += [Link(i, 128, 1.0 + i / 100), Link(128, i, 3.0 - i / 300)]
topology = pycoll.Topology("uneven", tuple(nodes), tuple(links), tuple(range(128)))
print("begin", flush=True)
try:
    while True:
        schedule.simulate(topology, 1e9, verify=False)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_ctrl_c() -> None:
    process = subprocess.Popen([sys.executable, "-c", INTERRUPTED], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "begin\n"
        time.sleep(0.4)
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted\n"
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
