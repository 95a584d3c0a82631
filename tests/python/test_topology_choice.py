"""A group that is told its topology chooses by it: `init(topology=...)` and PYCOLL_TOPOLOGY."""

from __future__ import annotations

import logging

import numpy as np
import pytest

import pycoll
from pycoll import _selection

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


def ring_crossings(schedule):
    """How often a ring of ranks dealt to two switches in turn goes from one to the other."""
    pairs = {(int(t["src"]), int(t["dst"])) for t in schedule.transfers}
    return sum(source % 2 != target % 2 for source, target in pairs)


def test_the_ring_is_laid_along_the_topology(file):
    table = _selection.begin(0, 4, False, None, file).decisions
    row = table.find("allreduce", 64 << 20)
    assert row.way.startswith("@ring")
    assert ring_crossings(table.schedules[row.way[1:]]) == 2
    assert ring_crossings(pycoll.build("ring", collective="allreduce", ranks=4)) == 4


def test_small_sizes_are_left_to_the_engine(file):
    table = _selection.begin(0, 4, False, None, file).decisions
    assert table.find("allreduce", 4096) is None
    assert {row.collective for row in table.rows} == {
        "allreduce",
        "reduce_scatter",
        "all_gather",
        "broadcast",
    }


def test_by_variable_and_only_for_groups_of_that_size(file, monkeypatch, caplog):
    monkeypatch.setenv("PYCOLL_TOPOLOGY", str(file))
    assert _selection.begin(0, 4, False).decisions.find("allreduce", 64 << 20).way.startswith("@ring")
    assert _selection.begin(1, 4, False).decisions is None  # rank 0's counts
    with caplog.at_level(logging.WARNING, "pycoll"):
        assert _selection.begin(0, 3, False).decisions is None
    assert "places for 4 ranks, the group has 3" in caplog.text
    assert _selection.begin(0, 4, False, None, False).decisions is None


def test_what_does_not_fit_is_refused(file):
    with pytest.raises(pycoll.InvalidArgument, match="places for 4 ranks, the group has 3"):
        _selection.begin(0, 3, False, None, file)
    with pytest.raises(pycoll.InvalidArgument, match="topology is a int"):
        _selection.begin(0, 3, False, None, 7)
    with pytest.raises(pycoll.TopologyError, match="no such file"):
        _selection.begin(0, 3, False, None, "missing.yaml")


def test_a_group_runs_by_it(start_job, file):
    def run(rank, address, path):
        with pycoll.init(30, rank=rank, ranks=4, address=address, topology=path, profile=False) as comm:
            found = comm.allreduce(np.full(1 << 20, rank + 1.0, np.float32))
            return float(found[0]), float(found[-1]), comm.decisions().find("allreduce", 4 << 20).basis

    from .job import free_address

    outcomes = start_job(4, run, free_address(), str(file), init=False).outcomes()
    assert [outcome.value for outcome in outcomes.values()] == [(10, 10, "modelled")] * 4
