"""The probe on real ranks: what it measures, what it writes, and what happens when something goes wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pycoll
from pycoll import InvalidArgument, PeerLost, Topology
from pycoll.topology.fit import fit
from pycoll.topology.matrix import LinkMatrix
from pycoll.topology.measure import Flow, GroupMeasurer, serve
from pycoll.topology.probe import ProbeOptions, probe

from ..python.job import free_address

Spawn = Callable[..., list[Any]]


def command(*arguments: object, **environment: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", "from pycoll.cli import main; main()", "topo", "probe"]
    env = {**os.environ, **environment, "COLUMNS": "120"}
    pipe = subprocess.PIPE
    return subprocess.Popen([*words, *map(str, arguments)], stdout=pipe, stderr=pipe, text=True, env=env)


def run(*arguments: object, **environment: str) -> tuple[int, str, str]:
    process = command(*arguments, **environment)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def test_every_figure_of_four_ranks(on_processes: Spawn) -> None:
    told: list[float] = []

    def measure(comm: pycoll.Communicator) -> Any:
        found = probe(comm, ProbeOptions(budget=60, quick=True), lambda what, share: told.append(share))
        comm.barrier()  # the group is as good as before
        return found, told[:]

    outcomes = on_processes(4, measure)
    assert [found for found, _ in outcomes[1:]] == [None] * 3
    matrix, progress = outcomes[0]
    assert len(progress) > 20
    assert progress == sorted(progress)
    off = ~np.eye(4, dtype=bool)
    for array in (matrix.alpha, matrix.beta, matrix.beta_together):
        assert (array[off] > 0).all()
        assert np.isnan(np.diag(array)).all()
    assert (matrix.gap[off] >= 0).all()
    assert (matrix.beta_spread[off] >= 0).all()
    assert (matrix.alpha[off] < 0.1).all()
    assert (1 / matrix.beta[off] > 1e7).all()
    for rates in (
        matrix.copy_rate,
        matrix.copy_rate_together,
        matrix.reduce_rate,
        matrix.reduce_rate_together,
    ):
        assert (rates > 1e7).all()
    # What else is sent at once depends on the clusters that are found, which noise may move.
    assert {"matching", "shift"} <= {each.kind for each in matrix.together}
    assert all(rate > 0 for each in matrix.together for rate in each.rates)
    assert matrix.hosts == [os.uname().nodename] * 4
    assert matrix.stamp["hosts"][matrix.hosts[0]]["state"] in ("near", "far", "mixed", "unknown")
    assert matrix.stamp["date"]
    assert matrix.pairs_measured == 12
    assert not matrix.sampled
    fitted = fit(matrix)
    assert len(fitted.topology.ranks) == 4
    assert {quality.what for quality in fitted.quality} == {"latency", "bandwidth alone", "several at once"}


def test_streams_share_the_time(on_processes: Spawn) -> None:
    """A flow's rate is that of its own messages, whatever their size, also of rank 0's own."""

    def measure(comm: pycoll.Communicator) -> Any:
        if comm.rank:
            serve(comm)
            return None
        with GroupMeasurer(comm) as measurer:
            flows = [Flow(0, 1), Flow(1, 0)]
            slow = measurer.stream(flows, [1 << 14, 1 << 14], 0.02, 2)
            fast = measurer.stream(flows, [1 << 20, 1 << 20], 0.02, 2)
            return slow, fast, measurer.elapsed()

    slow, fast, elapsed = on_processes(2, measure)[0]
    assert slow.shape == fast.shape == (2, 2)
    assert (slow > 1e5).all()
    assert (fast > 1e7).all()
    assert 0.08 < elapsed < 30


def test_one_rank_is_not_enough(alone: pycoll.Communicator) -> None:
    with pytest.raises(
        InvalidArgument, match=r"only 1 rank: start it with --ranks 2 or more, or under torchrun"
    ):
        probe(alone)


def test_a_rank_that_dies_is_named(on_processes: Spawn) -> None:
    def measure(comm: pycoll.Communicator) -> None:
        if comm.rank == 1:
            threading.Timer(0.7, os.kill, (os.getpid(), signal.SIGKILL)).start()
        probe(comm, ProbeOptions(budget=30))

    with pytest.raises(PeerLost, match="rank 1 of 3 was killed by SIGKILL"):
        on_processes(3, measure)


def test_survivors_get_an_error_that_names_it(start_job: Callable[..., Any]) -> None:
    def measure(comm: pycoll.Communicator) -> str:
        if comm.rank == 2:
            threading.Timer(0.7, os.kill, (os.getpid(), signal.SIGKILL)).start()
        try:
            probe(comm, ProbeOptions(budget=30))
        except PeerLost as error:
            return str(error)
        return "nothing"

    outcomes = start_job(3, measure).outcomes()
    for rank in (0, 1):
        assert "rank 2" in outcomes[rank].value


def test_command_writes_matrix_and_topology(tmp_path: Path) -> None:
    machine, links = tmp_path / "machine.yaml", tmp_path / "links.json"
    code, out, err = run("-n", 2, "-b", "40s", "--quick", "-o", machine, "-m", links, "--name", "mine")
    assert (code, err) == (0, "")
    assert "r0" in out
    assert "GB/s" in out
    assert "How well the topology explains" in out
    assert f"wrote {machine}" in out
    topology = Topology.load(machine)
    assert topology.name == "mine"
    assert len(topology.ranks) == 2
    assert LinkMatrix.load(links).ranks == 2
    assert pycoll.build("ring", ranks=2).simulate(topology, 1 << 20).time > 0

    again = tmp_path / "again.yaml"
    code, out, err = run("--fit", links, "--name", "mine", "-o", again, "--json")
    assert (code, err) == (0, "")
    report = json.loads(out)
    assert report["topology"] == machine.read_text() == again.read_text()
    assert report["matrix"] == json.loads(links.read_text())
    assert isinstance(report["findings"], list)
    assert {fitted["what"] for fitted in report["fit"]} >= {"latency", "bandwidth alone"}


def test_command_in_a_job(tmp_path: Path) -> None:
    """As torchrun starts it: every rank a process that the launcher made."""
    host, port = free_address().rsplit(":", 1)
    job = {"WORLD_SIZE": "2", "MASTER_ADDR": host, "MASTER_PORT": port}
    machine = tmp_path / "machine.yaml"
    ranks = [command("-b", "40s", "--quick", "-o", machine, RANK=str(rank), **job) for rank in range(2)]
    outputs = [rank.communicate(timeout=120) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    assert "How well the topology explains" in outputs[0][0]
    assert outputs[1] == ("", "")
    assert len(Topology.load(machine).ranks) == 2
    code, _, err = run("-n", 3, RANK="0", **job)
    assert code == 2
    assert "this job has 2 ranks already" in err


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["-n", "1"], 2, "needs at least 2"),
        (["-n", "2", "-b", "0s"], 2, "budget must be a positive number"),
        (["-n", "2", "-b", "soon"], 2, "--budget soon"),
        (["-n", "2", "-o", "/nowhere/machine.yaml"], 2, "there is no folder /nowhere"),
        (["-n", "2", "-m", "/"], 2, "it is a folder"),
        (["--fit", "/nowhere/links.json"], 2, "/nowhere/links.json cannot be read"),
        (["-n", "2", "-b", "1 us"], 1, "not measured are: latency (2), bandwidth alone (2)"),
    ],
)
def test_requests_that_make_no_sense(words: list[str], code: int, says: str) -> None:
    left, out, err = run(*words)
    assert (left, out) == (code, "")
    assert says in err
    assert len(err.splitlines()) == 1


def test_a_matrix_of_something_else(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text("{}")
    code, _, err = run("--fit", other)
    assert code == 1
    assert "no matrix of pycoll topo probe" in err
