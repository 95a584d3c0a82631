"""Who is late, as a group tells it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pycoll
from pycoll.lateness import report

Spawn = Callable[..., list[Any]]


def test_a_report_of_given_arrivals() -> None:
    found = report([(1, [0.0, 0.5, 0.1]), (2, [0.25, 0.75, 0.0]), (3, [0.5, 0.0, 0.25])], (10, 4, 1.5))
    assert found.collectives == 3
    assert [one.rank for one in found.ranks] == [0, 1, 2]
    assert [one.median for one in found.ranks] == [0.25, 0.5, 0.1]
    assert [one.last for one in found.ranks] == pytest.approx([1 / 3, 2 / 3, 0])
    assert [one.waited for one in found.ranks] == pytest.approx(
        [0.5 + 0.5 + 0, 0 + 0 + 0.5, 0.4 + 0.75 + 0.25]
    )
    assert found.worst is not None
    assert found.worst.rank == 1
    assert "4 of 10 large AllReduces began before their last rank came; won 1.500 s" in str(found)
    assert "500.000 ms" in str(found)


def test_no_collectives_yet(alone: pycoll.Communicator) -> None:
    assert str(alone.stragglers()) == "no collectives yet"
    assert alone.stragglers().worst is None


def test_without_a_group() -> None:
    with pytest.raises(pycoll.InvalidArgument, match=r"stragglers: there is no group yet: call pycoll\.init"):
        pycoll.stragglers()


def test_a_late_rank_is_told_and_not_waited_for(on_processes: Spawn) -> None:
    def body(comm: pycoll.Communicator) -> pycoll.StragglerReport:
        ones = np.ones(1 << 20, dtype=np.float32)
        for _ in range(5):
            if comm.rank == 2:
                time.sleep(0.1)
            assert (comm.allreduce(ones.copy()) == comm.ranks).all()
        return comm.stragglers()

    for found in on_processes(3, body):
        assert found.collectives == 5
        assert found.may_begin == 5
        assert found.began >= 1
        late = found.ranks[2]
        assert late.median > 0.05
        assert found.ranks[0].waited > 0.25 > late.waited
