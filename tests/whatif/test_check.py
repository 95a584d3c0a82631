"""Predictions held against runs: what is compared, that it is kept and quoted. Nothing is asserted about how
large the errors are: that depends on what else the machine does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import pycoll
from pycoll.cli import app
from pycoll.errors import InvalidArgument
from pycoll.topology import Topology
from pycoll.whatif import Check, Checked, check, known_check
from pycoll.whatif.check import keep


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def of(*errors: float) -> Check:
    rows = tuple(Checked(1 << (10 + i), "ring", 1 + error, 1.0, 5) for i, error in enumerate(errors))
    return Check("m", 2, "allreduce", "a machine", "2026-01-02T03:04:05+00:00", rows)


def test_errors_and_what_is_quoted() -> None:
    found = of(0.1, -0.3, 0.02)
    assert found.median == pytest.approx(0.1)
    assert found.worst == pytest.approx(0.3)
    assert found.sentence == (
        "Checked on 2026-01-02 on a machine: predictions for this topology were off by 10% in the median, "
        "30% at worst (allreduce of 1 KiB to 4 KiB, 1 algorithm)."
    )
    machine, other = Topology.flat(2, 1e9), Topology.flat(2, 2e9)
    assert known_check(machine) is None
    path = keep(found, machine)
    assert known_check(machine) == found
    assert known_check(other) is None
    path.write_text("{")
    assert known_check(machine) is None


def test_the_command_runs_keeps_and_quotes(tmp_path: Path) -> None:
    file = tmp_path / "machine.yaml"
    Topology.flat(2, 1e9, latency=1e-6).save(file)
    done = CliRunner().invoke(app, ["whatif", str(file), "--check", "-s", "4KiB,64KiB", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert {row["size_bytes"] for row in found["rows"]} == {4096, 65536}
    assert all(row["measured_s"] > 0 and row["predicted_s"] > 0 for row in found["rows"])
    assert all(row["error"] == row["predicted_s"] / row["measured_s"] - 1 for row in found["rows"])
    known = known_check(Topology.load(file))
    assert known is not None
    later = CliRunner().invoke(app, ["whatif", str(file), "-s", "4KiB"])
    assert known.sentence in later.stdout
    later = CliRunner().invoke(app, ["whatif", str(file), "-s", "4KiB", "--json"])
    assert json.loads(later.stdout)["checked"] == known.sentence


def test_refusals() -> None:
    for flags in (["--slow", "h0=0.5"], ["--each", "link"]):
        done = CliRunner().invoke(app, ["whatif", "two_racks", "--check", *flags])
        assert "as it is" in str(done.exception)
    with pycoll.init(rank=0, ranks=1) as comm, pytest.raises(InvalidArgument, match="has 8 ranks and this"):
        check(comm, Topology.load("two_racks"))


def test_a_job_of_another_size_is_refused_before_it_connects(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("RANK", "0"),
        ("WORLD_SIZE", "2"),
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", "1"),
    ):
        monkeypatch.setenv(name, value)
    done = CliRunner().invoke(app, ["whatif", "two_racks", "--check"])
    assert "has 8 ranks and this job 2" in str(done.exception)
