"""What a machine without a GPU, a driver or the CUDA part gets: an import that works, and a clear error."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import pycoll
from pycoll import _cuda_library, cuda

without_gpu = pytest.mark.skipif(cuda.available(), reason="there is a GPU here")
without_part = pytest.mark.skipif(_cuda_library.library_path() is not None, reason="the CUDA part is here")


@without_gpu
def test_the_reason_is_a_sentence() -> None:
    assert not cuda.available()
    with pytest.raises(pycoll.Error) as raised:
        cuda.devices()
    assert str(raised.value) == cuda.why_not()
    assert "CUDA" in cuda.why_not()


@without_part
def test_the_remedy_is_named() -> None:
    with pytest.raises(pycoll.Unsupported, match="PYCOLL_CUDA=ON"):
        cuda.devices()


@without_gpu
def test_every_rank_of_a_group_raises() -> None:
    def rank(comm: pycoll.Communicator) -> str:
        with pytest.raises(pycoll.Error) as raised:
            cuda.Group(comm)
        comm.barrier()  # the group of the CPU is as it was
        return str(raised.value)

    texts = pycoll.spawn(rank, ranks=3, threads=True)
    assert len(set(texts)) == 1
    assert texts[0].startswith("rank 0: ")
    assert cuda.why_not() in texts[0]


def test_a_gpu_that_one_rank_lacks_is_told_to_all() -> None:
    """Whatever fails on one rank: here a step of our own."""

    def rank(comm: pycoll.Communicator) -> str:
        group = object.__new__(cuda.Group)
        group._comm, group.rank, group.ranks = comm, comm.rank, comm.ranks

        def step() -> bytes:
            if comm.rank == 1:
                raise pycoll.Unsupported("no peer access")
            return b"fine"

        try:
            group._together(step)
        except pycoll.Unsupported as error:
            return str(error)
        return "no error"

    assert pycoll.spawn(rank, ranks=3, threads=True) == ["rank 1: no peer access"] * 3


def test_handles_come_in_order() -> None:
    def rank(comm: pycoll.Communicator) -> bytes:
        group = object.__new__(cuda.Group)
        group._comm, group.rank, group.ranks = comm, comm.rank, comm.ranks
        return group._together(lambda: bytes([comm.rank]) * 1200)

    for handles in pycoll.spawn(rank, ranks=3, threads=True):
        assert handles == b"\0" * 1200 + b"\1" * 1200 + b"\2" * 1200


@without_gpu
def test_bench_says_what_is_missing() -> None:
    from pycoll.cli import app

    result = CliRunner().invoke(app, ["bench", "--device", "cuda", "--vs", "nccl", "--sizes", "4B"])
    assert result.exit_code != 0
    assert cuda.why_not() in " ".join((result.output + str(result.exception)).split())


@without_gpu
def test_gpu_check_says_what_is_missing(tmp_path: Path) -> None:
    script = str(Path(__file__).resolve().parents[2] / "benchmarks" / "gpu_check.py")
    result = subprocess.run(
        [sys.executable, script, "--no-build", "--json", str(tmp_path / "out.json")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 3, result.stderr
    assert cuda.why_not() in " ".join(result.stdout.split())
    assert json.loads((tmp_path / "out.json").read_text())["gpu"] is None


def test_arrays_of_the_host_are_refused() -> None:
    group = object.__new__(cuda.Group)
    group._pointer = 1
    with pytest.raises(pycoll.InvalidArgument, match="on a GPU"):
        group._check(cuda.library_of(np.ones(4)), np.ones(4), np.ones(4), 4, 4, "allreduce")
