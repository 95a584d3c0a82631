"""Profiles: what follows from measurements, files, and whose machine they are of."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

import pycoll
from pycoll import DecisionTable
from pycoll.selection import calibration
from pycoll.selection.candidates import work_of
from pycoll.selection.group import begin
from pycoll.selection.profile import Machine, Profile, Timing, default_path, for_group


def timing(size, way, seconds, fast=1.0, **fields):
    return Timing("allreduce", size, "float32", way, seconds, seconds / fast, 9, **fields)


def profile(*timings, ranks=2):
    return Profile.of_here(ranks, timings)


def test_each_sizes_quickest_way_is_chosen_to_half_way_to_its_neighbours():
    made = profile(
        timing(1024, "direct", 1.0, 1.0), timing(1024, "ring", 2.0, 1.0),
        timing(4096, "direct", 4.0, 4.0), timing(4096, "ring", 3.0, 4.0),
    )  # fmt: skip
    table = made.decisions()
    table = table.merged_with(DecisionTable())  # both states of the machine say the same
    assert [(row.begin, row.end, row.way, row.others) for row in table.rows] == [
        (0, 2048, "direct", ("ring",)),
        (2048, None, "ring", ("direct",)),
    ]
    assert "next ring, 2.00 times" in table.rows[0].reason
    for row, size, seconds in zip(table.rows, (1024, 4096), (1.0, 3.0), strict=True):
        assert row.alpha + row.beta * size == pytest.approx(seconds)
        assert row.alpha >= 0
        assert row.beta >= 0


def test_a_way_must_be_clearly_quicker_than_the_fast_path_to_replace_it():
    margin = timing(64, "direct", 1.0).margin
    assert 0.02 < margin < 0.1
    for lead, chosen in ((margin / 2, "direct"), (margin * 2, "ring")):
        made = profile(timing(64, "direct", 1.0), timing(64, "ring", 1.0 - lead))
        assert made.decisions().rows[0].way == chosen


def test_each_state_of_the_machine_has_choices_of_its_own():
    machine = dataclasses.replace(Machine.here(), cpus=2, quota=None)
    made = dataclasses.replace(
        profile(
            timing(64, "direct", 3.0, by_state={"near": (2.0, 1.0), "far": (4.0, 1.0)}),
            timing(64, "ring", 3.0, by_state={"near": (1.0, 0.5), "far": (8.0, 2.0)}),
            timing(256, "direct", 3.0, by_state={"near": (2.0, 1.0)}),
            timing(256, "ring", 3.0, by_state={"near": (1.0, 0.5)}),
        ),
        machine=machine,
    )
    table = made.decisions()
    chosen = {
        (size, distance): table.find("allreduce", size, distance=distance).way
        for size in (64, 256)
        for distance in ("near", "far")
    }
    assert chosen == {
        (64, "near"): "ring",
        (64, "far"): "direct",
        (256, "near"): "ring",
        (256, "far"): "direct",  # never measured there: the fast path fits itself to both
    }
    assert "not measured in this state" in table.find("allreduce", 256, distance="far").reason
    # Who shares a processor cannot tell, and takes what loses least in the state that suits it least.
    mild = timing(64, "binary_tree", 3.0, by_state={"near": (1.5, 0.75), "far": (4.4, 1.1)})
    shared = dataclasses.replace(
        made, machine=dataclasses.replace(machine, cpus=1), timings=(*made.timings, mild)
    )
    assert shared.decisions().find("allreduce", 64).way == "binary_tree"
    lucky = dataclasses.replace(shared, timings=(*made.timings, dataclasses.replace(mild, mostly=1.2)))
    assert lucky.decisions().find("allreduce", 64).way == "direct"
    crowded = dataclasses.replace(made, machine=dataclasses.replace(machine, cpus=1)).decisions()
    assert {row.distance for row in crowded.rows} == {"any"}


def test_ways_far_behind_are_not_worth_trying():
    made = profile(timing(64, "direct", 1.0), timing(64, "ring", 3.9), timing(64, "binary_tree", 4.1))
    assert made.decisions().rows[0].others == ("ring",)


def test_files_round_trip_and_newer_timings_replace_older_ones(tmp_path):
    old = profile(
        timing(64, "direct", 1.0, by_state={"near": (0.5, 1.0)}),
        timing(256, "direct", 2.0),
        timing(1024, "direct", 5.0, by_state={"near": (4.0, 1.0), "far": (6.0, 1.0)}),
        timing(1024, "ring", 5.0, by_state={"far": (3.0, 0.5)}),
        timing(1024, "binary_tree", 5.0, by_state={"near": (3.0, 0.5)}),
    )
    new = profile(timing(256, "ring", 3.0), timing(1024, "direct", 4.5, by_state={"near": (4.1, 1.0)}))
    path = tmp_path / "folder" / "profile.json"
    old.merged_with(new).save(path)
    assert Profile.load(path).timings == (
        old.timings[0],
        old.timings[3],  # of the state that was not met again
        new.timings[0],
        dataclasses.replace(new.timings[1], by_state={"near": (4.1, 1.0), "far": (6.0, 1.0)}),
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no profile"),
        ("{}", "no profile"),
        ('{"pycoll_profile": 2}', "version 2, and this pycoll reads version 1"),
        ('{"pycoll_profile": 1, "timings": [{"way": "ring"}]}', "no profile"),
    ],
)
def test_what_is_no_profile_is_refused_by_name(tmp_path, text, words):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(pycoll.InvalidArgument, match=words) as caught:
        Profile.load(path)
    assert str(path) in str(caught.value)


def _of_another_machine(made):
    return dataclasses.replace(made, machine=dataclasses.replace(made.machine, cpu="Pentium 90"))


def test_the_variable_that_names_it_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PYCOLL_PROFILE", str(tmp_path / "none.json"))
    with pytest.raises(pycoll.InvalidArgument, match=r"PYCOLL_PROFILE: .*none.json: cannot be read"):
        for_group(None, 2)
    monkeypatch.setenv("PYCOLL_TOPOLOGY", "nope")
    with pytest.raises(pycoll.Error, match=r"PYCOLL_TOPOLOGY: .*nope"):
        begin(0, 2, False, False, None)


def test_another_machines_profile_is_refused_by_name(tmp_path):
    path = tmp_path / "theirs.json"
    _of_another_machine(profile(timing(64, "ring", 1.0))).save(path)
    with pytest.raises(pycoll.InvalidArgument, match=r"another machine \(Pentium 90") as caught:
        pycoll.spawn(lambda comm: None, ranks=2, env={"PYCOLL_PROFILE": str(path)})
    assert str(Machine.here()) in str(caught.value)


def _chosen(comm):
    return comm.chosen_algorithm("allreduce", 100), int(comm.allreduce(np.ones(100))[0])


def test_a_tuned_machine_is_used_without_a_flag(on_threads, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("PYCOLL_PROFILE")
    assert on_threads(3, _chosen) == [("direct", 3)] * 3
    tuned = profile(timing(1024, "ring", 1.0), timing(1024, "direct", 2.0), ranks=3)
    tuned.save(default_path(3))
    assert on_threads(3, _chosen) == [("ring", 3)] * 3
    assert on_threads(2, _chosen) == [("direct", 2)] * 2  # another number of ranks
    monkeypatch.setenv("PYCOLL_ALGO", "allreduce=binary_tree")
    assert on_threads(3, _chosen) == [("binary_tree", 3)] * 3  # pins beat it
    monkeypatch.delenv("PYCOLL_ALGO")
    monkeypatch.setenv("PYCOLL_DETERMINISTIC", "1")
    assert on_threads(3, _chosen) == [("direct", 3)] * 3
    monkeypatch.delenv("PYCOLL_DETERMINISTIC")
    monkeypatch.setenv("PYCOLL_PROFILE", "none")
    assert on_threads(3, _chosen) == [("direct", 3)] * 3


def test_a_default_profile_that_is_of_no_use_stops_no_job(on_threads, monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("PYCOLL_PROFILE")
    path = default_path(2)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"pycoll_profile": 1}))
    assert on_threads(2, _chosen) == [("direct", 2)] * 2
    assert f"{path}: is no profile" in caplog.text


def test_the_calibration_finds_the_coefficients_of_a_machine_that_obeys_it():
    """Times made by the model itself, at half of the sizes, predict the other half."""
    ranks, sizes = 4, [4**k for k in range(3, 13)]
    ways = ["ring", "ring/64", "binary_tree", "recursive_doubling", "direct/16", "double_binary_tree/8"]

    def seconds(way, size):
        if way == "direct":
            return 1e-6 + 2e-10 * size
        return float(calibration.features("allreduce", way, size, ranks) @ [1e-6, 2e-7, 3e-8, 1e-10, 2e-10])

    made = profile(*(timing(s, w, seconds(w, s)) for s in sizes for w in ("direct", *ways)), ranks=ranks)
    model = calibration.fit(made)
    assert model.sizes["allreduce"] == tuple(sizes[::2])
    for size in sizes[1:-1:2]:
        for way in ("direct", *ways):
            assert model.predict("allreduce", way, size) == pytest.approx(seconds(way, size), rel=0.01)
        unseen = model.predict("allreduce", "binary_tree/16", size)  # a way that was never measured
        assert unseen == pytest.approx(seconds("binary_tree/16", size), rel=0.1)


def test_the_calibration_follows_the_machines_state():
    made = profile(
        *(
            timing(s, "direct", 3.0, by_state={"near": (1.0, 1.0), "far": (5.0, 1.0)})
            for s in (4, 16, 64, 256)
        )
    )
    assert calibration.fit(made, "near").predict("allreduce", "direct", 16) == pytest.approx(1.0)
    assert calibration.fit(made, "far").predict("allreduce", "direct", 16) == pytest.approx(5.0)
    assert calibration.fit(made).predict("allreduce", "direct", 16) == pytest.approx(3.0)
    assert calibration.fit(made).predict("allreduce", "ring", 16) is None


def test_the_work_of_a_ring_is_what_textbooks_say():
    rounds, sent, both, reduced = work_of(pycoll.build("ring", ranks=5))
    assert (rounds, sent, both, reduced) == (8, 8, 16, 4)
