"""Lateness as an input of the choice, and what the explanation says of it."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import pytest
from typer.testing import CliRunner

import pycoll
from pycoll.cli import app
from pycoll.selection.late_choice import late_case

FLAT = pycoll.Topology.flat(8, 300e9, overhead=3e-6)
GIB = 2**30


def test_the_late_rank_path_turns_itself_on_and_off() -> None:
    selector = pycoll.Selector(FLAT)
    on_time = selector.choose("allreduce", GIB)
    case = selector.explain("allreduce", GIB).late
    assert case is not None
    assert not case.pays
    assert 0 < case.critical < 1e-3
    before = selector.choose("allreduce", GIB, late={3: case.critical * 0.99})
    after = selector.choose("allreduce", GIB, late={3: case.critical * 1.01})
    assert before == on_time
    assert after.algorithm == "late_rank"
    assert after.schedule is not None
    assert after.schedule.params["late"] == "3"
    after.schedule.verify()
    assert on_time.predicted is not None
    assert after.predicted is not None
    assert after.predicted < on_time.predicted


def test_what_is_predicted_is_what_the_schedule_takes() -> None:
    choice = pycoll.Selector(FLAT).choose("allreduce", GIB, late={2: 1e-3})
    assert choice.schedule is not None
    start = [0.0, 0.0, 1e-3, *[0.0] * 5]
    taken = choice.schedule.simulate(FLAT, GIB, start=start).time - 1e-3
    assert choice.predicted == pytest.approx(taken, rel=1e-9)


def test_more_lateness_is_never_slower() -> None:
    on_time = ("ring", pycoll.build("ring", ranks=8))
    times = [late_case(FLAT, GIB, on_time, 1, step * 4e-4).seconds for step in range(1, 11)]
    assert all(later <= sooner * (1 + 1e-9) for sooner, later in pairwise(times))
    assert times[-1] < 0.65 * times[0]


def test_racks_get_another_way_of_spreading() -> None:
    racks = pycoll.Topology.load("two_racks")
    choice = pycoll.Selector(racks).choose("allreduce", 64 << 20, late={2: 0.5})
    assert choice.schedule is not None
    assert choice.schedule.params["spread"] == "near"
    assert choice.predicted is not None
    ring = pycoll.build("ring", ranks=8, topology=racks).simulate(racks, 64 << 20).time
    assert choice.predicted < 0.9 * ring


def test_small_buffers_wait() -> None:
    case = pycoll.Selector(FLAT).explain("allreduce", 4096, late={0: 1.0}).late
    assert case is not None
    assert not case.pays
    assert case.critical == math.inf
    assert case.to_dict()["critical"] is None
    assert "late_rank is not quicker, however late it is" in str(case)


def test_deterministic_says_what_it_costs() -> None:
    selector = pycoll.Selector(FLAT, deterministic=True)
    assert selector.choose("allreduce", GIB, late={2: 1e-3}).algorithm != "late_rank"
    case = selector.explain("allreduce", GIB, late={2: 1e-3}).late
    assert case is not None
    assert case.gain > 1
    assert "deterministic=True, which costs that" in str(case)


def test_where_there_is_nothing_to_compare() -> None:
    selector = pycoll.Selector(FLAT)
    assert selector.explain("all_gather", GIB, late={2: 1e-3}).late is None
    assert pycoll.Selector(ranks=4).explain("allreduce", GIB, late={2: 1e-3}).late is None
    pinned = pycoll.Selector(FLAT, pins="allreduce=ring")
    assert pinned.choose("allreduce", GIB, late={2: 1e-3}).algorithm == "ring"


@pytest.mark.parametrize(
    ("late", "text"),
    [
        ({8: 1e-3}, "there is no rank 8; there are 0 to 7"),
        ({1: 1e-3, 2: 1e-3}, "2 ranks are late; give one"),
        ({1: 0.0}, "0 ranks are late; give one"),
        ({1: -1.0}, "rank 1 cannot be -1.0 s late"),
        ({1: math.inf}, "rank 1 cannot be inf s late"),
    ],
)
def test_lateness_that_is_none(late: dict[int, float], text: str) -> None:
    with pytest.raises(pycoll.InvalidArgument, match=text):
        pycoll.Selector(FLAT).choose("allreduce", GIB, late=late)


def test_the_command() -> None:
    words = ["explain", "allreduce", "64MiB", "-t", "laptop"]
    shown = CliRunner().invoke(app, [*words, "--late", "3=10ms"])
    assert "Rank 3 10 ms late: after its arrival" in shown.stdout
    assert "If one rank came late: late_rank" in CliRunner().invoke(app, words).stdout
    found = json.loads(CliRunner().invoke(app, [*words, "--late", "3=10ms", "--json"]).stdout)
    assert found["late"]["late"] == 3
    assert found["late"]["lateness"] == pytest.approx(0.01)
    for wrong in ("3", "x=3ms", "=3ms"):
        failed = CliRunner().invoke(app, [*words, "--late", wrong])
        assert "write RANK=TIME" in str(failed.exception)
