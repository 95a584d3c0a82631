"""Answers that other tools get wrong without a word: bandwidth above the wire, a figure that does not follow
the topology, another algorithm than was asked for, another number of ranks."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from pycoll import InvalidArgument, Topology, schedule, whatif
from pycoll.bench.workload import COLLECTIVES
from pycoll.cli import app
from pycoll.errors import Error
from pycoll.topology.bundled import bundled
from pycoll.whatif import Scenario
from pycoll.whatif.evaluate import Evaluator, Outcome

MIB = 1 << 20
MOVING = [name for name in COLLECTIVES if name != "barrier"]
#: Where a machine's first eight ranks are those of another machine too, one of them will do.
MACHINES = [name for name in bundled() if not name.startswith("hgx-") or name == "hgx-h100-16-rail"]


# ---- bandwidth above the configured link's (SimAI#105)


def enters(topology: Topology) -> float:
    """The most bytes/s that all links into a device carry together, of all devices."""
    into = [0.0] * len(topology.nodes)
    for link in topology.links:
        into[link.target] += link.bandwidth
    return max(into[node] for node in topology.ranks)


def no_faster_than_wires(outcome: Outcome, topology: Topology) -> None:
    assert outcome.busbw <= enters(topology) * (1 + 1e-9)
    assert max(outcome.loads.values()) <= 1 + 1e-9


def named_ways(evaluator: Evaluator, collective: str) -> list[str]:
    """Every algorithm that does the collective here, those for late ranks among them."""
    found = []
    for name, info in schedule.algorithms().items():
        if collective in info.collectives and info.accepts(len(evaluator.topology.ranks)):
            try:
                found.append(evaluator.ways(collective, name)[0])
            except Error:
                continue  # not on this machine
    return found


@pytest.mark.parametrize("name", MACHINES)
def test_no_bundled_machine_is_faster_than_its_links(name: str) -> None:
    machine = Topology.load(name)
    part = machine.first(min(8, len(machine.ranks)))
    evaluator = Evaluator(Scenario(part))
    tried = 0
    for collective in MOVING:
        for way in named_ways(evaluator, collective):
            no_faster_than_wires(evaluator.outcome(way, collective, 256 * MIB), part)
            tried += 1
    assert tried > 25


SERVERS = ["hgx-h100-4-fat", "hgx-h100-4-fat-4to1", "hgx-h100-4-rail", "wan-pair"]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_no_group_on_several_servers_is_faster_than_its_links(data: st.DataObject) -> None:
    machine = Topology.load(data.draw(st.sampled_from(SERVERS)))
    members = st.lists(st.integers(0, len(machine.ranks) - 1), min_size=2, max_size=12, unique=True)
    group = machine.place(data.draw(members))
    evaluator = Evaluator(Scenario(group, routing=data.draw(st.sampled_from(["spread", "hash"]))))
    collective = data.draw(st.sampled_from(MOVING))
    able = [name for name, info in schedule.algorithms().items() if collective in info.collectives]
    try:
        way = evaluator.ways(collective, data.draw(st.sampled_from(able)))[0]
    except InvalidArgument:
        reject()  # not on so many ranks
    no_faster_than_wires(evaluator.outcome(way, collective, data.draw(st.integers(1, 1 << 30))), group)


# ---- an answer that does not move with the topology (astra-sim#207)

RACKS = """
pycoll: 1
name: racks
nodes:
  - {name: "h[0-7]", kind: device, ports: 2, overhead: 2 us, intra: {copy: 8 GB/s, reduce: 6 GB/s}}
  - {name: "tor[0-1]", kind: switch}
links:
  - {between: ["h[0-3]", tor0], bandwidth: 10 Gbit/s, latency: 5 us}
  - {between: ["h[4-7]", tor1], bandwidth: 10 Gbit/s, latency: 5 us}
  - {between: [tor0, tor1], bandwidth: 10 Gbit/s, latency: 5 us}
ranks: ["h[0-7]"]
"""


def with_devices(topology: Topology, **figures: Any) -> Topology:
    nodes = (replace(node, **figures) if node.kind == "device" else node for node in topology.nodes)
    return replace(topology, nodes=tuple(nodes), text=None)


def with_links(topology: Topology, change: Callable[[Any], Any]) -> Topology:
    return replace(topology, links=tuple(change(link) for link in topology.links), text=None)


MOVES: dict[str, Callable[[Topology], Topology]] = {
    "bandwidth of all links": lambda t: with_links(
        t, lambda each: replace(each, bandwidth=each.bandwidth / 2)
    ),
    "bandwidth of one link": lambda t: t.scaled("h3->tor0", 0.5),
    "bandwidth between switches": lambda t: t.scaled("tor0->tor1", 0.1),
    "latency": lambda t: with_links(t, lambda each: replace(each, latency=each.latency + 50e-6)),
    "ports": lambda t: with_devices(t, ports=1),
    "overhead": lambda t: with_devices(t, overhead=50e-6),
    "rate of adding": lambda t: with_devices(t, reduce_rate=1e9),
    "number of ranks": lambda t: t.without("h7"),
    "where ranks live": lambda t: t.place([0, 4, 1, 5, 2, 6, 3, 7]),
}


@pytest.mark.parametrize("what", MOVES)
def test_the_answer_moves_with(what: str) -> None:
    before = Topology.from_yaml(RACKS)
    after = MOVES[what](before)
    # A ring in the order of ranks: laid over the machine as they were dealt, not as would be best.
    ring = schedule.build("ring", collective="allreduce", ranks=8)
    of_ring = [each.simulate(topology, 16 * MIB).time
               for each, topology in ((ring, before), (ring if len(after.ranks) == 8 else
               schedule.build("ring", collective="allreduce", ranks=7), after))]  # fmt: skip
    direct = [whatif.time(each, "allreduce", 16 * MIB, algorithm="direct") for each in (before, after)]
    moved = [abs(late / early - 1) for early, late in (of_ring, direct)]
    assert max(moved) > 0.01
    if what not in ("number of ranks", "where ranks live"):  # these slow all down, or nothing
        assert of_ring[1] >= of_ring[0]
        assert direct[1] >= direct[0]


@settings(max_examples=25, deadline=None)
@given(st.floats(0.1, 10), st.integers(1, 1 << 28))
def test_twice_the_bandwidth_and_half_the_latency_take_half_the_time(factor: float, size: int) -> None:
    flat = Topology.flat(6, 1e9, latency=1e-5)
    scaled = Topology.flat(6, 1e9 * factor, latency=1e-5 / factor)
    times = [whatif.time(each, "allreduce", size, algorithm="ring") for each in (flat, scaled)]
    assert times[1] == pytest.approx(times[0] / factor, rel=1e-9)


# ---- another algorithm than was asked for (SimAI#252)


@pytest.mark.parametrize("ranks", [2, 3, 6, 8])
def test_what_is_asked_for_by_name_runs_or_is_an_error(ranks: int) -> None:
    machine = Topology.load("two_racks").first(ranks)
    evaluator = Evaluator(Scenario(machine))
    refused = 0
    for collective in MOVING:
        for name, info in schedule.algorithms().items():
            if collective in info.collectives and info.accepts(ranks):
                row = whatif.compare(machine, [], collective, "1MiB", name, before=evaluator).rows[0]
                assert row.before is not None
                assert row.before.algorithm == name
                assert evaluator.schedule(row.before.way, collective).algorithm == name
                continue
            refused += 1
            with pytest.raises(InvalidArgument, match=f"'{name}' does not (do|run)"):
                whatif.compare(machine, [], collective, "1MiB", name, before=evaluator)
    assert refused > 10


def run(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["whatif", *arguments])
    return done.exit_code, done.stdout, str(done.exception or "")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("-a bruck", "algorithm 'bruck' does not do allreduce; these do: ring"),
        ("-a stragglar -n 7", "'stragglar' does not run on 7 ranks; it takes: powers of two"),
        ("-a stragglar --fail h3", "'stragglar' does not run on 7 ranks"),
        ("-a stragglar --each node", "'stragglar' does not run on 7 ranks"),
        ("-a stragglar --sweep late:3=0ms,1ms --remove h3", "'stragglar' does not run on 7 ranks"),
        ("-a bruck --workload 1b", "'bruck' does not do allreduce"),
        ("-a all --workload 1b", "priced by auto or by the name of one algorithm"),
        ("-a ring --check", "--check is of the machine as it is"),
        ("-a rings", "there is no algorithm 'rings'"),
        ("-a ring/0", "ring/0"),
    ],
)
def test_an_algorithm_that_cannot_run_is_an_error(arguments: str, text: str) -> None:
    size = () if "workload" in arguments else ("-s", "64KiB")
    code, printed, message = run("two_racks", *size, *arguments.split())
    assert code != 0
    assert printed == ""
    assert text in message


def test_where_fewer_ranks_need_another_algorithm_the_table_says_which(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Topology.load("two_racks")
    original = Evaluator.ways

    def only_stragglar(self: Evaluator, collective: str, algorithm: str = "auto") -> list[str]:
        whole = algorithm == "auto" and len(self.topology.ranks) == 8
        return ["stragglar"] if whole else original(self, collective, algorithm)

    monkeypatch.setattr(Evaluator, "ways", only_stragglar)
    harms = whatif.each(machine, "node", "allreduce", "64KiB")
    (row, *_) = harms.rows
    assert harms.before.algorithm == "stragglar"
    assert row.outcome is not None
    assert f" by {row.outcome.way}" in str(harms)


# ---- 64 ranks that give the answer of 32 (SimAI#208)


def test_sixty_four_ranks_are_not_thirty_two() -> None:
    times = []
    for ranks in (32, 64):
        code, printed, message = run(
            "hgx-h100-16-fat", "-n", str(ranks), "-s", "64MiB", "-a", "ring", "--json"
        )
        assert code == 0, message
        document = json.loads(printed)
        assert document["ranks_before"] == ranks
        assert document["rows"][0]["before"]["ranks"] == ranks
        times.append(document["rows"][0]["before"]["time_s"])
    assert times[1] > times[0] * 1.01
    # On a flat switch by the closed form.
    for ranks in (32, 64):
        found = whatif.time(Topology.flat(ranks, 1e9, latency=1e-5), "allreduce", 64 * MIB, algorithm="ring")
        assert found == pytest.approx(2 * (ranks - 1) * (1e-5 + 64 * MIB / ranks / 1e9), rel=1e-9)


@pytest.mark.parametrize("arguments", ["-n 9", "-n 64 --each link", "-n 9 --workload 1b", "--scale 4,16"])
def test_more_ranks_than_there_are_is_an_error(arguments: str) -> None:
    code, printed, message = run("two_racks", *arguments.split())
    assert code != 0
    assert printed == ""
    assert "'two racks of four hosts' has 8" in message


@pytest.mark.parametrize(
    "command", ["explain allreduce 1MiB -t two_racks -n 9", "topo show two_racks --first 9"]
)
def test_more_ranks_than_there_are_is_an_error_elsewhere_too(command: str) -> None:
    done = CliRunner().invoke(app, command.split())
    assert done.exit_code != 0
    assert "'two racks of four hosts' has 8" in str(done.exception)


# ---- a row a measurement, for machines (nccl-tests#120)


def table(*arguments: str) -> tuple[list[dict[str, str]], dict[str, Any]]:
    """The rows of --csv, and the document of --json."""
    (_, printed, message), (_, document, _) = (run(*arguments, form) for form in ("--csv", "--json"))
    assert message in ("", "0")
    return list(csv.DictReader(io.StringIO(printed))), json.loads(document)


@pytest.mark.parametrize("algorithm", ["ring", "all"])
def test_a_row_a_size_side_and_algorithm(algorithm: str) -> None:
    rows, document = table("two_racks", "-s", "1KiB,1MiB", "--slow", "h3=0.5", "-a", algorithm)
    keys = [(row["size_bytes"], row["side"], row["algorithm"]) for row in rows]
    assert len(set(keys)) == len(keys) == 2 * len(document["rows"])
    expected = [
        (row["size_bytes"], side, row[side]["time_s"], row[side]["busbw_bytes_per_s"])
        for row in document["rows"]
        for side in ("before", "after")
    ]
    shown = [
        (int(row["size_bytes"]), row["side"], float(row["time_s"]), float(row["busbw_bytes_per_s"]))
        for row in rows
    ]
    assert shown == expected
    for row in rows:
        assert row["topology"] == "two racks of four hosts"
        assert row["changes"] == "--slow h3=0.5"
        assert float(row["time_s"]) >= float(row["bound_s"]) > 0


@pytest.mark.parametrize(
    ("arguments", "parts", "key"),
    [
        ("--each link", "classes", "which"),
        ("--sweep tor0-tor1=0.5,1,2 -a ring", "points", "value"),
        ("--scale 2,4,8", "points", "ranks"),
    ],
)
def test_a_row_a_point_of_a_study(arguments: str, parts: str, key: str) -> None:
    rows, document = table("two_racks", "-s", "64KiB", *arguments.split())
    assert len({row[key] for row in rows}) == len(rows) == len(document[parts])
    assert all("time_s" in row for row in rows)


def test_a_row_a_collective_of_a_step() -> None:
    rows, document = table("two_racks", "-w", "1b", "--slow", "h3=0.5", "-a", "ring")
    sides = [document[side]["transfers"] for side in ("before", "after")]
    assert [float(row["end"]) for row in rows] == [each["end"] for side in sides for each in side]
