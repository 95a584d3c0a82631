"""The fast simulator and the plain one agree on every transfer, whatever machine and schedule."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pycoll import Schedule, Topology

from . import machines, reference


def require_agreement(
    schedule: Schedule, topology: Topology, size: float, start: list[float] | None = None
) -> None:
    result = schedule.simulate(topology, size, start=start, verify=False)
    lives = reference.simulate(schedule, topology, size, start)
    for name, values in (
        ("start", [life.start for life in lives]),
        ("end", [life.sent for life in lives]),
        ("done", [life.done for life in lives]),
    ):
        assert result.arrays[name].tolist() == pytest.approx(values, rel=1e-8, abs=1e-9), name


@settings(max_examples=80, deadline=None)
@given(st.data(), st.integers(2, 5))
def test_any_transfers(data: st.DataObject, ranks: int) -> None:
    topology = data.draw(machines.topologies(ranks))
    schedule = data.draw(machines.transfer_lists(ranks))
    start = data.draw(st.none() | st.lists(machines.SECONDS, min_size=ranks, max_size=ranks))
    require_agreement(schedule, topology, data.draw(st.sampled_from([1.0, 12.0, 100.0])), start)


@settings(max_examples=40, deadline=None)
@given(st.data(), st.integers(2, 4))
def test_built_in_algorithms(data: st.DataObject, ranks: int) -> None:
    topology = data.draw(machines.topologies(ranks))
    schedule = data.draw(machines.built_ins(ranks))
    require_agreement(schedule, topology, 24.0)
