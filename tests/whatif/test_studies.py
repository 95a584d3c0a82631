"""Failures ranked, ranges swept: classes stand for their members, results are kept, crossings found."""

from __future__ import annotations

import math
import re
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from pycoll import InvalidArgument, Topology, TopologyError, Unsupported, whatif
from pycoll.whatif import Scenario, Store, Study, studies
from pycoll.whatif.evaluate import Evaluator
from pycoll.whatif.sweep import Point, _crossings, parse_axis
from pycoll.whatif.symmetry import cable_classes


def ratios(harms: whatif.Harms) -> dict[str, float]:
    return {name: row.ratio for row in harms.rows for name in row.members}


def leaf_spine(hosts: int = 2, leaves: int = 3, spines: int = 2) -> Topology:
    text = f"""
pycoll: 1
name: leaf and spine
nodes:
  - {{name: "h[0-{hosts * leaves - 1}]", kind: device}}
  - {{name: "leaf[0-{leaves - 1}]", kind: switch}}
  - {{name: "spine[0-{spines - 1}]", kind: switch}}
links:
"""
    for leaf in range(leaves):
        span = f"h[{leaf * hosts}-{leaf * hosts + hosts - 1}]"
        text += f'  - {{between: ["{span}", leaf{leaf}], bandwidth: 10 Gbit/s, latency: 5 us}}\n'
    between = f'["leaf[0-{leaves - 1}]", "spine[0-{spines - 1}]"]'
    text += f"  - {{between: {between}, bandwidth: 5 Gbit/s, latency: 5 us}}\n"
    return Topology.from_yaml(text)


@pytest.mark.parametrize("kind", ["link", "node", "switch"])
@pytest.mark.parametrize("algorithm", ["ring", "recursive_halving_doubling"])
@pytest.mark.parametrize("leaves", [2, 4])
def test_classes_are_what_failing_every_one_says(kind: str, algorithm: str, leaves: int) -> None:
    fabric = leaf_spine(leaves=leaves)
    alike = whatif.each(fabric, kind, "allreduce", "8MiB", algorithm=algorithm)
    every = whatif.each(fabric, kind, "allreduce", "8MiB", algorithm=algorithm, classes=False)
    assert alike.members == every.members == len(every.rows)
    expected = ratios(every)
    for row in alike.rows:
        theirs = [expected[name] for name in row.members]
        assert (row.least, row.ratio) == pytest.approx((min(theirs), max(theirs)), rel=1e-9)
        if algorithm == "ring" and kind != "node":
            assert row.least == pytest.approx(row.ratio, rel=1e-9)  # one of them would have done
    assert [row.ratio for row in alike.rows] == sorted((row.ratio for row in alike.rows), reverse=True)


def test_links_of_a_pod() -> None:
    pod = Topology.load("hgx-h100-128-fat")
    classes = cable_classes(pod, {})
    assert [len(members) for members in classes] == [1024, 1024, 1024, 1024]
    uneven = [len(members) for members in cable_classes(Topology.load("two_racks"), {"h0->tor0": 0.5})]
    assert uneven == [1, 3, 4, 1]


def test_what_cuts_ranks_off_comes_first() -> None:
    harms = whatif.each("two_racks", "link", "allreduce", "1MiB")
    assert harms.rows[0].ratio == math.inf
    assert harms.rows[0].outcome is None
    assert {row.cut_off for row in harms.rows} == {"h0", "h[4-7]"}
    hosts = whatif.each("hgx-h100-4-rail", "host", "allreduce", "1MiB", algorithm="ring")
    assert [row.members for row in hosts.rows] == [("s0", "s1", "s2", "s3")]
    (row,) = hosts.rows
    assert row.outcome is not None
    assert row.outcome.ranks == 24
    # What cuts off does so whatever it carries: after these changes loads differ from link to link.
    uneven: list[whatif.Change] = [whatif.Fail("h3"), whatif.Slow("tor0-tor1", 0.5)]
    alike = whatif.each("two_racks", "link", "allreduce", "1MiB", changes=uneven)
    assert sorted(len(row.members) for row in alike.rows) == [1, 3, 4]
    one_a_host = whatif.each("two_racks", "host", "allreduce", "1MiB", algorithm="ring")
    assert sorted(name for row in one_a_host.rows for name in row.members) == [f"h{i}" for i in range(8)]
    with pytest.raises(InvalidArgument, match="fail each link, node, switch or host"):
        whatif.each("two_racks", "cable")
    with pytest.raises(TopologyError, match="has no switches"):
        whatif.each("torus-8x8", "switch", "allreduce", "1KiB", algorithm="ring")


def test_results_are_kept_and_taken_up_again(tmp_path: Path) -> None:
    file = tmp_path / "study.sqlite"
    seen: list[tuple[int, int]] = []

    def run() -> whatif.Sweep:
        seen.clear()
        study = Study(jobs=1, store=Store(file), progress=lambda done, total: seen.append((done, total)))
        return whatif.sweep(
            "two_racks", "tor0-tor1=0.5,1", "allreduce", "1MiB", algorithm="ring", study=study
        )

    first = run()
    assert seen == [(0, 2), (1, 2), (2, 2)]
    again = run()
    assert seen == [(2, 2)]
    assert again == first
    (tmp_path / "text").write_text("no database" * 200)
    with pytest.raises(InvalidArgument, match="name an SQLite file or a new one"):
        Store(tmp_path / "text")
    with pytest.raises(InvalidArgument, match=r"name the file study.sqlite; .* to_frame\(\).to_parquet"):
        Store(tmp_path / "study.parquet")


def test_a_damaged_store_is_computed_again_and_a_strange_one_named(tmp_path: Path) -> None:
    store = Store(tmp_path / "results.sqlite")
    store.put("a", "name", {"seconds": 1})
    with sqlite3.connect(store.path) as data:
        data.execute("UPDATE whatif SET result = '{\"seconds\": '")
    assert store.get("a") is None
    store.put("a", "name", {"seconds": 2})
    assert store.get("a") == {"seconds": 2}
    with sqlite3.connect(tmp_path / "other.sqlite") as data:
        data.execute("CREATE TABLE whatif (another TEXT)")
    with pytest.raises(
        InvalidArgument, match=r"other.sqlite: .*no such column.*; name an SQLite file or a new"
    ):
        Store(tmp_path / "other.sqlite").get("a")


def test_two_processes_say_what_one_says() -> None:
    axis = "tor0-tor1=0.5,1,2"
    one, two = (
        whatif.sweep("two_racks", axis, "allreduce", "1MiB", algorithm="ring", study=Study(jobs=jobs))
        for jobs in (1, 2)
    )
    assert one == two


def test_a_cluster_that_gives_its_results_some_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As joblib's backend for Ray does."""
    joblib = pytest.importorskip("joblib")
    from joblib._parallel_backends import SequentialBackend

    class WithoutGenerators(SequentialBackend):  # type: ignore[misc]
        supports_return_generator = False

    monkeypatch.setattr(studies, "_cluster", lambda on: joblib.parallel_config(backend=WithoutGenerators()))
    monkeypatch.setattr(studies, "_OF_RAY", 2)
    store = Store(tmp_path / "results.sqlite")
    seen: list[int] = []
    study = Study(on="ray://127.0.0.1:1", store=store, progress=lambda done, total: seen.append(done))
    keys = [str(number) for number in range(5)]
    found = study.map(lambda number: {"square": number * number}, [(n,) for n in range(5)], keys, keys)
    assert [point["square"] for point in found] == [0, 1, 4, 9, 16]
    assert seen == [0, 1, 2, 3, 4, 5]
    assert store.get("4") == {"square": 16}


def test_clusters_that_are_not_there() -> None:
    for on, text in (
        ("ray://h:1", "ray"),
        ("dask://127.0.0.1:1", "dask"),
        ("slurm://h", "write ray://HOST:PORT"),
    ):
        with pytest.raises((Unsupported, InvalidArgument), match=text):
            whatif.sweep("two_racks", "tor0-tor1=1,2", "allreduce", 64, algorithm="ring", study=Study(on=on))


def test_a_crossing_is_where_the_two_take_as_long() -> None:
    swept = whatif.sweep("two_racks", "tor0-tor1=0.25..1/3", "allreduce", "25MiB")
    winners = [point.best.algorithm for point in swept.points if point.best is not None]
    assert winners[0] != winners[-1] == "ring"
    # Between the points a third one wins: each sentence is true a little above it, and a little below.
    assert len(swept.crossings) == 2

    def seconds(way: str, factor: float) -> float:
        changes = [whatif.Slow("tor0-tor1", factor)]
        return whatif.time("two_racks", "allreduce", "25MiB", algorithm=way, changes=changes)

    for sentence in swept.crossings:
        match = re.match(r"Above x([\d.]+) (\S+) wins, below it (\S+) \(both take about (\d+) ms", sentence)
        assert match is not None
        at, above, below = float(match[1]), match[2], match[3]
        assert seconds(above, 1.02 * at) < seconds(below, 1.02 * at)
        assert seconds(below, 0.98 * at) < 1.01 * seconds(above, 0.98 * at)
        for way in (above, below):
            assert seconds(way, at) == pytest.approx(int(match[4]) / 1e3, rel=0.02)
    steady = whatif.sweep("two_racks", "tor0-tor1=2,4", "allreduce", "25MiB", algorithm="ring")
    assert steady.crossings == ("ring wins at every value.",)


def test_whole_numbers_have_nothing_between_them() -> None:
    axis = parse_axis("flows=1,2")
    scenario = Scenario(Topology.load("two_racks"))
    one = Evaluator(scenario).outcome("direct/1", "barrier", 0)
    points = tuple(
        Point(value, axis.label(value), best, (best,))
        for value, best in zip(axis.values, (replace(one, way="ring"), one), strict=True)
    )
    assert list(_crossings(scenario, (), axis, points, "barrier", 0)) == [
        "From flows 2 on direct/1 wins, up to 1 ring."
    ]
    assert [point.label for point in whatif.sweep("two_racks", "late:3=0ms..20ms/4", "barrier").points] == [
        "0 us", "6.67 ms", "13.3 ms", "20 ms",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("spine=1..8", (1, 2, 3, 4, 5, 6, 7, 8)),
        ("spine=0.25..4/5", (0.25, 0.5, 1, 2, 4)),
        ("spine=1,0.5", (0.5, 1)),
        ("latency:wan=0ms..40ms/3", (0, 0.02, 0.04)),
        ("late:3=5ms,1ms", (0.001, 0.005)),
        ("oversubscribe=1..3", (1, 2, 3)),
        ("flows=1..4", (1, 2, 3, 4)),
    ],
)
def test_ranges(text: str, values: tuple[float, ...]) -> None:
    assert parse_axis(text).values == pytest.approx(values, rel=1e-11)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("spine", "write WHAT=FIRST..LAST"),
        ("spine=8..1", "the range ends before it begins"),
        ("spine=1..8/1", "2 to 10,000 points"),
        ("spine=a..b", "'a' is no number"),
        ("late:3=1..2", "has no unit"),
        ("flows=1..5/3", "whole numbers"),
    ],
)
def test_ranges_that_are_none(text: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        parse_axis(text)


def test_a_sweep_of_what_is_not_there() -> None:
    with pytest.raises(TopologyError, match=r"no link of topology .* matches 'spine'"):
        whatif.sweep("two_racks", "spine=1..2", "allreduce", 64)
