"""Latency of `Communicator.allreduce` at 2 ranks, through the Python face: rank 0 is measured here, rank 1 is
a process that answers. `pytest benchmarks --benchmark-compare` compares with earlier figures; nothing judged.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import pycoll

KIB, MIB = 1 << 10, 1 << 20
SIZES = [4, KIB, 64 * KIB, MIB, 16 * MIB]
TIMEOUT = 60.0  # seconds

# Rank 1: takes part in whatever number of calls rank 0's benchmark makes, until rank 0 leaves the group.
_ANSWERS = """
import sys
sys.path[:] = sys.argv[1].split(":")
import numpy as np, pycoll
address, count, zero_copy, timeout = sys.argv[2], int(sys.argv[3]), sys.argv[4] == "True", float(sys.argv[5])
comm = pycoll.init(timeout=timeout, rank=1, ranks=2, address=address)
buffer = comm.empty(count, "float32") if zero_copy else np.empty(count, np.float32)
buffer[:] = 0
try:
    while True:
        comm.allreduce(buffer, op="max")
except pycoll.PeerLost:
    pass
"""


@pytest.fixture
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[pycoll.Communicator, Any]]:
    """Rank 0's communicator and buffer; request.param is (bytes, whether the buffer is in shared memory)."""
    size, zero_copy = request.param
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    arguments = [":".join(sys.path), address, str(size // 4), str(zero_copy), str(TIMEOUT)]
    answers = subprocess.Popen([sys.executable, "-c", _ANSWERS, *arguments])
    comm = pycoll.init(timeout=TIMEOUT, rank=0, ranks=2, address=address)
    try:
        yield comm, comm.empty(size // 4, "float32") if zero_copy else np.empty(size // 4, np.float32)
    finally:
        comm.close()
        try:
            code = answers.wait(TIMEOUT)
        finally:
            answers.kill()
    assert code == 0


def _named(size: int) -> str:
    return f"{size // MIB}MiB" if size >= MIB else f"{size // KIB}KiB" if size >= KIB else f"{size}B"


@pytest.mark.parametrize(
    "pair",
    [
        pytest.param((size, zero_copy), id=f"{_named(size)}-{'zero_copy' if zero_copy else 'private'}")
        for size in SIZES
        for zero_copy in (False, True)
    ],
    indirect=True,
)
def test_allreduce_of_two_ranks(benchmark: Any, pair: tuple[pycoll.Communicator, Any]) -> None:
    comm, buffer = pair
    buffer[:] = np.arange(buffer.size) % 1021  # the other rank's zeros leave it as it is, however many calls
    comm.allreduce(buffer, op="max")
    benchmark.extra_info["bytes"] = buffer.nbytes
    benchmark.pedantic(
        comm.allreduce,
        args=(buffer,),
        kwargs={"op": "max"},
        rounds=200 if buffer.nbytes <= 64 * KIB else 20,
        iterations=20 if buffer.nbytes <= 64 * KIB else 1,
        warmup_rounds=3,
    )
    assert np.array_equal(buffer, np.arange(buffer.size, dtype=np.float32) % 1021)
