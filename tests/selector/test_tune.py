"""pycoll tune and pycoll explain as commands, on sizes and budgets too small to mean anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from pycoll.bench.workload import Case
from pycoll.profile import Profile, Timing
from pycoll.tuning.check import summary, verdicts
from pycoll.tuning.measure import Measured


def run(*arguments, **environment):
    environment = {**os.environ, "PYCOLL_PROFILE": "none", "NO_COLOR": "1", "COLUMNS": "140", **environment}
    command = [sys.executable, "-m", "pycoll.cli", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """A cache folder in which this machine is tuned for two ranks."""
    folder = tmp_path_factory.mktemp("cache")
    done = run("tune", "-n", "2", "-s", "64,256KiB", "--budget", "1s", XDG_CACHE_HOME=str(folder))
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def test_tune_writes_what_groups_then_use(tuned):
    folder, shown = tuned
    (path,) = (folder / "pycoll" / "profiles").iterdir()
    assert str(path) in shown.replace("\n", "")
    assert "64 B" in shown
    assert "256 KiB" in shown
    profile = Profile.load(path)
    assert profile.sizes_of("allreduce") == [64, 2**18]
    ways = {timing.way for timing in profile.timings}
    assert {"direct", "ring", "binary_tree"} <= ways
    assert all(timing.seconds > 0 and timing.rounds >= 3 for timing in profile.timings)


def test_check_measures_again_and_changes_nothing(tuned):
    folder, _ = tuned
    (path,) = (folder / "pycoll" / "profiles").iterdir()
    before = path.read_bytes()
    arguments = ("tune", "-n", "2", "-s", "64", "--budget", "1s", "--check", "--json")
    done = run(*arguments, XDG_CACHE_HOME=str(folder))
    assert done.returncode in (0, 1), done.stderr  # whether the times agree is not ours to say
    found = json.loads(done.stdout)
    assert [row["bytes"] for row in found["rows"]] == [64]
    assert found["summary"]["passed"] == (done.returncode == 0)
    assert path.read_bytes() == before


def test_explain_shows_what_was_measured(tuned):
    folder, _ = tuned
    done = run("explain", "allreduce", "64B", "-n", "2", XDG_CACHE_HOME=str(folder), PYCOLL_PROFILE="")
    assert done.returncode == 0, done.stderr
    assert "measured" in done.stdout
    assert "quickest of those measured here" in done.stdout.replace("\n", " ")


def test_explain_on_a_topology_and_with_a_slow_link():
    done = run("explain", "allreduce", "1MiB", "-t", "two_racks", "--json")
    assert done.returncode == 0, done.stderr
    healthy = json.loads(done.stdout)
    slow = json.loads(
        run("explain", "allreduce", "1MiB", "-t", "two_racks", "--slow", "tor0<->tor1=0.1", "--json").stdout
    )
    assert healthy["choice"]["basis"] == "modelled"
    assert slow["choice"]["predicted"] > 2 * healthy["choice"]["predicted"]
    assert slow["bound"] > 2 * healthy["bound"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("explain", "allreduce"), "needs a size"),
        (("explain", "allred", "1k"), "no collective 'allred'"),
        (("explain", "allreduce", "1k", "--slow", "a->b=0.5"), "--slow needs --topology"),
        (("explain", "allreduce", "1k", "-t", "two_racks", "--slow", "tor0->tor1"), "LINK=FACTOR"),
        (("explain", "allreduce", "1k", "-t", "no_such"), "no_such"),
        (("tune", "--budget", "soon"), "60s or 5m"),
        (("tune", "barrier"), "barrier"),
        (("tune", "-n", "2", "--check", "-p", "/no/such/file"), "/no/such/file"),
    ],
)  # fmt: skip
def test_requests_that_make_no_sense_exit_with_a_sentence(arguments, words):
    done = run(*arguments)
    assert done.returncode in (1, 2)
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_verdicts_compare_within_rounds_and_with_the_model():
    """The machine is thrice as slow in the second half of the rounds; neither regret nor error sees it."""
    states = {number: "near" if number < 4 else "far" for number in range(8)}
    slower = {number: 1.0 if number < 4 else 3.0 for number in range(8)}
    rounds = {
        "direct": {n: 2.0 * slower[n] for n in range(8)},
        "ring": {n: 1.6 * slower[n] for n in range(8)},
        "binary_tree": dict.fromkeys(range(3), 0.5),  # left early, so it cannot be the best
    }
    fresh = Measured(Case("allreduce", 64), 64, rounds, states, 0)
    timings = [
        Timing("allreduce", size, "float32", "direct", 2.0, 1.0, 5, {"near": 1.8, "far": 6.6})
        for size in (16, 64, 256)
    ]
    (verdict,) = verdicts(Profile.of_here(2, timings), [fresh])
    assert (verdict.chosen, verdict.best, verdict.held_out) == ("direct", "ring", True)
    assert verdict.regret == pytest.approx(0.25)
    assert verdict.state in ("near", "far")
    assert verdict.error == pytest.approx({"near": -0.1, "far": 0.1}[verdict.state])
    total = summary([verdict])
    assert (total.median_regret, total.worst_regret, total.passed) == (verdict.regret, verdict.regret, False)
