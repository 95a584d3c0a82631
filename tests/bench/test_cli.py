"""The command, run as a person runs it; and runs of the benchmark over a group in this process, made to go
wrong."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import pycoll
from pycoll import cli
from pycoll.bench import runner, sides
from pycoll.bench.options import BenchOptions
from pycoll.bench.results import Report

QUICK = ["--budget", "0.02", "--warmup", "1", "--blocks", "2"]


def run(*arguments: str, timeout: float = 120, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from pycoll.cli import main; main()", *arguments]
    env = {**os.environ, **environment, "COLUMNS": "100"}
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=env, check=False)


def test_two_ranks_every_output(tmp_path: Path) -> None:
    json_file, csv_file, picture = tmp_path / "r.json", tmp_path / "r.csv", tmp_path / "r.png"
    outputs = ["--json", str(json_file), "--csv", str(csv_file), "--plot", str(picture)]
    done = run("bench", "--ranks", "2", "--sizes", "4B,64KiB", *QUICK, *outputs)
    assert done.returncode == 0, done.stderr
    assert "allreduce, 2 ranks, float32 sum, in place" in done.stdout
    assert "64 KiB" in done.stdout
    assert done.stderr == ""

    report = json.loads(json_file.read_text())
    assert {row["bytes"] for row in report["rows"]} == {4, 65536}
    for row in report["rows"]:
        assert row["wrong"] == 0
        assert 0 < row["min_s"] <= row["median_s"] <= row["p99_s"]
        assert row["algbw_gb_s"] == pytest.approx(row["bytes"] / row["median_s"] / 1e9)
        assert row["busbw_gb_s"] == pytest.approx(row["algbw_gb_s"])  # 2 (n - 1) / n at two ranks
        assert row["state"] in ("near", "far", "mixed", "unknown")
        assert row["iterations"] >= 1
    with csv_file.open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == len(report["rows"])
    assert lines[0]["date"] == report["environment"]["date"]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_json_on_stdout_is_all_there_is() -> None:
    done = run("bench", "all", "--ranks", "3", "--sizes", "4B,20kB", "--root", "2", "--json", "-", *QUICK)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert len({row["collective"] for row in rows}) == 9
    assert all(row["wrong"] == 0 for row in rows)


def test_every_algorithm_with_a_small_dtype() -> None:
    arguments = [
        "--algorithm",
        "all",
        "--dtype",
        "float8_e5m2",
        "--sizes",
        "5000B",
        "--iters",
        "2",
        "--json",
        "-",
    ]
    done = run("bench", "allreduce", "reduce_scatter", "--ranks", "4", *arguments)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert {row["wrong"] for row in report["rows"]} == {0}
    names = {(row["collective"], row["algorithm"]) for row in report["rows"]}
    wanted = {
        (collective, name)
        for name, info in pycoll.algorithms().items()
        for collective in ("allreduce", "reduce_scatter")
        if collective in info.collectives and info.accepts(4)
    }
    assert names == wanted


def test_against_gloo_through_torch() -> None:
    pytest.importorskip("torch")
    done = run("bench", "--ranks", "2", "--vs", "gloo", "--sizes", "4KiB", "--json", "-", *QUICK, timeout=280)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert {(row["library"], row["interface"]) for row in rows} == {("pycoll", "torch"), ("gloo", "torch")}
    for row in rows:
        assert row["wrong"] == 0
        same = [r for r in rows if r["library"] == "pycoll" and r["state"] == row["state"]]
        if row["library"] == "gloo" and same:
            assert row["pycoll_speedup"] == pytest.approx(row["median_s"] / same[0]["median_s"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--sizes", "4Q"], "4Q"),
        (["--sizes", "1TiB:1024TiB:x2"], "do not fit in the"),
        (["--algorithm", "rign"], "rign"),
        (["allredcue"], "allredcue"),
        (["--dtype", "float33"], "float33"),
        (["--dtype", "complex64", "--op", "max"], "max has no meaning for complex64"),
        (["--root", "2"], "root 2"),
        (["--vs", "nccl"], "nccl"),
        (["--vs", "gloo", "--algorithm", "ring"], "torch.distributed"),
        (["--pieces", "4"], "--algorithm"),
        (["--csv", "/no/such/folder/r.csv"], "no folder"),
        (["--state", "close"], "close"),
        (["--algorithm", "bruck"], "bruck"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(
    arguments: list[str], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["pycoll", "bench", "--ranks", "2", "--sizes", "4B", *arguments])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2
    told = capsys.readouterr()
    assert words in told.err
    assert told.out == ""


def joined(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Any:
    """The command in this process, as a launcher's only rank."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    return CliRunner().invoke(cli.app, ["bench", "--sizes", "4B,1KiB", *QUICK, *arguments])


def corrupting(bind: Callable[..., sides.Call]) -> Callable[..., sides.Call]:
    def bind_wrongly(self: sides.NativeSide, workload: Any, memory: Any) -> sides.Call:
        call = bind(self, workload, memory)

        def wrong() -> None:
            call()
            if workload.bytes == 1024:
                memory.output[-1] ^= 1

        return wrong

    return bind_wrongly


def test_a_wrong_result_is_seen_and_fails_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    assert joined(monkeypatch).exit_code == 0
    monkeypatch.setattr(sides.NativeSide, "bind", corrupting(sides.NativeSide.bind))
    done = joined(monkeypatch)
    assert done.exit_code == 1
    assert "WRONG RESULTS" in done.output
    unchecked = joined(monkeypatch, "--no-check")
    assert unchecked.exit_code == 0
    assert "#wrong: not checked" in unchecked.output


def test_wrong_elements_of_all_ranks_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sides.NativeSide, "bind", corrupting(sides.NativeSide.bind))
    options = BenchOptions(sizes=(4, 1024), ranks=2, iterations=1, warmup=0, blocks=1)
    reports: list[Report] = pycoll.spawn(runner.run_rank, ranks=2, args=(options,), threads=True)
    wrong = {row.bytes: row.wrong for row in reports[0].rows}
    assert wrong[4] == 0
    assert wrong[1024] == 2 * 3 * 32  # ranks, checks (first call, warm-up, block), calls of a batch
    assert not reports[1].succeeded


def test_a_failure_is_told_with_the_rows_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    bind = sides.NativeSide.bind

    def bind_failing(self: sides.NativeSide, workload: Any, memory: Any) -> sides.Call:
        if workload.bytes == 1024:
            raise pycoll.PeerLost("rank 1 is gone")
        return bind(self, workload, memory)

    monkeypatch.setattr(sides.NativeSide, "bind", bind_failing)
    done = joined(monkeypatch)
    assert done.exit_code == 1
    assert "4 B" in done.output
    assert "PeerLost: rank 1 is gone" in done.output


@pytest.mark.parametrize(("seen", "rows"), [([30.0], ["near"]), ([30.0, 30.0, 150.0], ["near", "far"])])
def test_blocks_of_different_states_are_never_mixed(
    monkeypatch: pytest.MonkeyPatch, seen: list[float], rows: list[str]
) -> None:
    probes = iter(seen)
    monkeypatch.setattr(runner.probe, "core_to_core_ns", lambda: next(probes, seen[-1]))
    options = BenchOptions(sizes=(64,), ranks=1, iterations=10, warmup=0)
    with pycoll.init(rank=0, ranks=1, address="127.0.0.1:1") as comm:
        report = runner.run_rank(comm, options)
    assert [row.state for row in report.rows] == rows
    assert sum(row.iterations for row in report.rows) == 10 - 2 * (
        len(rows) - 1
    )  # the block between the two is neither


def test_a_state_is_waited_for_with_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    probes = iter([150.0] * 4)
    monkeypatch.setattr(runner.probe, "core_to_core_ns", lambda: next(probes, 30.0))
    with pycoll.init(rank=0, ranks=1, address="127.0.0.1:1") as comm:
        found = runner.run_rank(
            comm, BenchOptions(sizes=(64,), ranks=1, iterations=10, warmup=0, state="near")
        )
        never = runner.run_rank(
            comm, BenchOptions(sizes=(64,), ranks=1, iterations=10, warmup=0, state="far")
        )
    assert [(row.state, row.iterations) for row in found.rows] == [("near", 10)]
    assert found.notes == []
    assert "only 0 of 5 blocks" in never.notes[0]


def test_zero_copy_and_out_of_place() -> None:
    options = BenchOptions(
        ("allreduce", "all_gather"), (16, 2**18), zero_copy=True, in_place=False, budget=0.02, warmup=0
    )
    report = pycoll.spawn(runner.run_rank, ranks=2, args=(options,), threads=True)[0]
    assert report.succeeded
    assert all(row.zero_copy and not row.in_place for row in report.rows)


def test_version_and_help() -> None:
    assert run("--version").stdout == f"pycoll {pycoll.__version__}\n"
    for command in ([], ["bench"], ["doctor"], ["algorithms"], ["schedule"], ["schedule", "verify"]):
        done = run(*command, "--help")
        assert done.returncode == 0
        assert "Usage" in done.stdout
    heavy = "import sys, pycoll.cli; print([m for m in ('numpy', 'torch', 'matplotlib') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", heavy], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_doctor() -> None:
    done = run("doctor", "--json")
    findings = json.loads(done.stdout)
    assert done.returncode == (1 if any(f["verdict"] == "problem" for f in findings) else 0)
    topics = {finding["topic"]: finding for finding in findings}
    assert topics["shared memory"]["verdict"] == "ok"
    assert topics["compiled core"]["verdict"] == "ok"
    assert all(f["remedy"] for f in findings if f["verdict"] in ("problem", "warning"))


def test_algorithms_and_schedules(tmp_path: Path) -> None:
    listed = json.loads(run("algorithms", "--json").stdout)
    assert {"ring", "direct"} <= {info["name"] for info in listed}
    assert "ring" in run("algorithms").stdout

    shown = run("schedule", "show", "ring", "--ranks", "3")
    assert "round   3:" in shown.stdout
    saved = run("schedule", "show", "ring", "--ranks", "3", "--json")
    schedule = pycoll.Schedule.from_json(saved.stdout)
    assert schedule.ranks == 3
    assert run("schedule", "verify", "ring", "--ranks", "5").returncode == 0

    document = json.loads(saved.stdout)
    document["transfers"] = document["transfers"][:-1]
    (tmp_path / "broken.json").write_text(json.dumps(document))
    broken = run("schedule", "verify", str(tmp_path / "broken.json"))
    assert broken.returncode == 1
    assert "wrong:" in broken.stderr

    drawn = run("schedule", "draw", "ring", "--ranks", "3", "--output", str(tmp_path / "ring.png"))
    assert drawn.returncode == 0, drawn.stderr
    assert (tmp_path / "ring.png").read_bytes().startswith(b"\x89PNG")


def test_a_library_that_does_nothing_is_wrong_everywhere() -> None:
    class Idle(sides.NativeSide):
        def bind(self, workload: Any, memory: Any) -> sides.Call:
            return lambda: None

    options = BenchOptions(
        ("allreduce", "all_gather", "broadcast"), (4096,), ranks=2, iterations=1, warmup=0, in_place=False
    )

    def rank(comm: pycoll.Communicator) -> Report:
        return runner.Bench(options, comm, [Idle(comm)], lambda what, fraction: None).run()

    for row in pycoll.spawn(rank, ranks=2, threads=True)[0].rows:
        assert row.wrong is not None
        assert row.wrong > 0, row
