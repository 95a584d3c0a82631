"""`pycoll whatif`: what it prints, in all its forms, and how it refuses."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pycoll.cli import app
from pycoll.errors import Error

runner = CliRunner()


def run(*arguments: str) -> str:
    done = runner.invoke(app, ["whatif", *arguments])
    assert done.exit_code == 0, done.output or done.exception
    return done.stdout


def refusal(*arguments: str) -> str:
    done = runner.invoke(app, ["whatif", *arguments])
    assert done.exit_code != 0
    assert isinstance(done.exception, (Error, SystemExit))
    return str(done.exception)


def test_a_table_with_a_reason() -> None:
    text = run("two_racks", "--slow", "tor0-tor1=0.5", "--size", "1MiB,25MiB")
    for words in ("after --slow tor0-tor1=0.5", "before", "change", "binding link", "25 MiB: slower by"):
        assert words in text


def test_changes_compose() -> None:
    flags = (
        "--add tor0 --fail node:h1,h2 --late 3:5ms --latency tor0-tor1=+1ms --busy h0-tor0=0.3 "
        "--place interleaved --size 64KiB -a ring --json"
    )
    out = json.loads(run("two_racks", *flags.split()))
    assert out["ranks_before"] == 8
    assert out["ranks_after"] == 10
    assert out["changes"] == [
        "--add 1*tor0", "--fail node:h1", "--fail h2", "--latency tor0-tor1=+1ms", "--busy h0-tor0=0.3",
        "--place interleaved", "--late 3:5ms",
    ]  # fmt: skip
    (row,) = out["rows"]
    assert row["time_ratio"] == row["after"]["time_s"] / row["before"]["time_s"]
    assert row["after"]["composition_s"]["arrival"] > 0


def test_csv_and_json_of_studies() -> None:
    rows = list(
        csv.DictReader(io.StringIO(run("two_racks", "-s", "4KiB,64KiB", "--slow", "h0=0.5", "--csv")))
    )
    assert [(row["size_bytes"], row["side"]) for row in rows] == [
        ("4096", "before"), ("4096", "after"), ("65536", "before"), ("65536", "after"),
    ]  # fmt: skip
    harms = json.loads(run("two_racks", "--each", "link", "-s", "64KiB", "-a", "ring", "--json"))
    assert harms["members"] == 9
    assert sorted(each["stands_for"] for each in harms["classes"]) == [1, 8]
    swept = json.loads(run("two_racks", "--sweep", "tor0-tor1=0.5,1", "-s", "64KiB", "-a", "ring", "--json"))
    assert [point["value"] for point in swept["points"]] == [0.5, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--fail", "link:tor0-spine1"],
            "no link of topology 'two racks of four hosts' matches 'tor0-spine1'",
        ),
        (["--fail", "tor0-tor1"], "leaves h[4-7] cut off from h[0-3]"),
        (["--slow", "tor0-tor1"], "write LINKS=FACTOR"),
        (["--each", "link", "--sweep", "h0=1..2"], "two studies"),
        (["--each", "link", "--size", "1KiB,1MiB"], "a study takes one --size"),
        (["--json", "--csv"], "not both"),
        (["--size", "0B"], "1 byte or above"),
        (["--flows", "4"], "give --ecmp seed=0 too"),
        (["--sweep", "flows=1..4"], "give --ecmp seed=0 too"),
        (["--sweep", "h0=1..2", "--store", "a.parquet"], "results are kept in SQLite"),
        (["--slow", "h0=-1"], "is negative"),
        (["--workload", "1b", "--size", "1MiB"], "no --size"),
        (["--order", "priority"], "--order is of a training step: name one with --workload"),
        (["--workload", "1b", "--order", "lifo"], "fifo or priority, not 'lifo'"),
        (["--workload", "1b", "--bucket", "big"], "big"),
        (["--workload", "a.json", "--pattern", "tp"], "the step of a trace is as it was run"),
        (["--serve", "--scale", "2..8"], "--serve goes with"),
        (["--serve", "--place", __file__], "the page cannot name a file"),
        (["--algorithm", "rings"], "there is no algorithm 'rings'"),
        (["--collective", "sum"], "there is no collective 'sum'"),
        (["--place", "nowhere.txt"], "packed, interleaved or a file"),
    ],
)
def test_refusals(arguments: list[str], message: str) -> None:
    assert message in refusal("two_racks", *arguments)


def test_a_picture(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    run("two_racks", "--slow", "tor0-tor1=0.5", "-s", "64KiB,1MiB", "-a", "ring", "--png", str(file))
    assert file.read_bytes().startswith(b"\x89PNG")
    for wrong in (["--each", "link", "-s", "64KiB"], ["-a", "all", "-s", "64KiB"]):
        assert "--png" in refusal("two_racks", *wrong, "--png", str(file))


def test_buckets_and_their_order_are_inputs() -> None:
    def step(*arguments: str) -> dict[str, Any]:
        document = json.loads(run("two_racks", "-w", "1b", "-a", "ring", *arguments, "--json"))
        found: dict[str, Any] = document["before"]
        return found

    usual, large, urgent = step(), step("--bucket", "1GiB"), step("--order", "priority")
    assert len(large["transfers"]) < len(usual["transfers"]) == len(urgent["transfers"])
    assert sum(each["bytes"] for each in large["transfers"]) == sum(
        each["bytes"] for each in usual["transfers"]
    )
    assert urgent["time_s"] < usual["time_s"]  # forward begins with the layers whose gradients are there
    assert large["time_s"] < usual["time_s"]  # on links this slow what counts is how often latency is paid


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--fail", ""], "--fail '' says nothing to change"),
        (["--slow", "h0=1e300"], "the factor must be from 1e-06 to 1e+06, not 1e+300"),
        (["--oversubscribe", "1e300:1"], "the ratio must be from 1e-06 to 1e+06"),
        (["--workload", "1b", "-c", "broadcast"], "no --size and no --collective"),
    ],
)
def test_what_says_nothing_or_cannot_be(arguments: list[str], words: str) -> None:
    assert words in refusal("two_racks", *arguments)


def test_json_has_no_figures_that_json_lacks() -> None:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    (row,) = json.loads(run("two_racks", "-n", "1", "-s", "1MiB", "--json"), parse_constant=refuse)["rows"]
    assert row["before"]["busbw_bytes_per_s"] is None


def test_a_faster_link_that_changes_the_choice_by_less_than_a_percent() -> None:
    text = " ".join(run("two_racks", "--slow", "tor0-tor1=10", "-s", "1MiB").split())
    assert "no longer, but sends more: of ways within a percent the one of fewest transfers is taken" in text
