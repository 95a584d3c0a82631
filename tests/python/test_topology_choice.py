"""A group that is told its topology chooses by it: `init(topology=...)` and PYCOLL_TOPOLOGY."""

from __future__ import annotations

import numpy as np
import pytest

import pycoll

TWO_SWITCHES = """
pycoll: 1
name: two switches
nodes:
  - {name: "h[0-3]", kind: device}
  - {name: "s[0-1]", kind: switch}
links:
  - {between: ["h[0-1]", s0], bandwidth: 1 Gbit/s, latency: 30 us}
  - {between: ["h[2-3]", s1], bandwidth: 1 Gbit/s, latency: 30 us}
  - {between: [s0, s1], bandwidth: 1 Gbit/s, latency: 30 us}
ranks: [h0, h2, h1, h3]
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = tmp_path / "two_switches.yaml"
    path.write_text(TWO_SWITCHES)
    return path


def test_a_group_runs_by_it(start_job, file):
    def run(rank, address, path):
        with pycoll.init(30, rank=rank, ranks=4, address=address, topology=path, profile=False) as comm:
            found = comm.allreduce(np.full(1 << 20, rank + 1.0, np.float32))
            return float(found[0]), float(found[-1]), comm.decisions().find("allreduce", 4 << 20).basis

    from .job import free_address

    outcomes = start_job(4, run, free_address(), str(file), init=False).outcomes()
    assert [outcome.value for outcome in outcomes.values()] == [(10, 10, "modelled")] * 4
