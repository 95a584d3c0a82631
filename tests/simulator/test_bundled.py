"""Every bundled machine, cut down to 16 ranks, under every built-in algorithm."""

from __future__ import annotations

import pytest

import pycoll
from pycoll.topology.bundled import bundled

SIZE = 1 << 24


@pytest.mark.parametrize("name", sorted(bundled()))
def test_between_the_bound_and_sense(name: str) -> None:
    topology = pycoll.Topology.load(name)
    topology = topology.first(min(16, len(topology.ranks)))
    least = topology.bound("allreduce", SIZE)
    for algorithm, info in pycoll.algorithms().items():
        if not info.builtin or "allreduce" not in info.collectives or not info.accepts(len(topology.ranks)):
            continue
        schedule = pycoll.build(algorithm, ranks=len(topology.ranks), topology=topology)
        for routing in ("spread", "hash"):
            result = schedule.simulate(topology, SIZE, routing=routing)
            assert result.time >= least * (1 - 1e-9)
            assert result.time < 1e4 * least
            assert 0 < next(iter(result.link_busy.values())) <= 1 + 1e-9
            assert result.composition.total == pytest.approx(result.time, rel=1e-9)
