"""The selector's choices, on topologies whose answer is known, and what it says about them."""

from __future__ import annotations

import json
import time

import pytest

import pycoll
from pycoll import Decision, DecisionTable, Selector
from pycoll.selection import candidates
from pycoll.selection.profile import Profile, Timing
from pycoll.selection.selector import Choice

GBIT = 1.25e8


@pytest.fixture(scope="module")
def racks():
    return pycoll.Topology.load("two_racks")


def test_latency_decides_small_sizes_and_bandwidth_large_ones():
    flat = pycoll.Topology.flat(8, GBIT, 50e-6)
    selector = Selector(flat)
    small, large = selector.choose("allreduce", 8), selector.choose("allreduce", 2**26)
    assert (
        small.schedule.verify().depth == 1
    )  # everybody to everybody: nothing is quicker when bytes are free
    assert max(large.schedule.verify().pieces_sent) == 2 * 7 / 8 * large.pieces  # the least any rank can send
    assert large.predicted == pytest.approx(2 * 7 / 8 * 2**26 / GBIT, rel=0.02)
    assert (small.basis, large.basis) == ("modelled", "modelled")


def test_no_candidate_simulates_quicker_than_the_choice(racks):
    selector = Selector(racks)
    for collective in ("allreduce", "all_gather", "broadcast", "all_to_all"):
        choice = selector.choose(collective, 2**20)
        logical = 2**20 * (8 if collective == "all_to_all" else 1)
        for way in candidates.ways(collective, 8, racks):
            schedule = candidates.schedule_of(way, collective, 8, 0, racks)
            assert schedule.simulate(racks, logical).time >= 0.99 * choice.predicted, (collective, way)


def test_choices_are_a_function_of_the_arguments_and_cached(racks):
    first, second = Selector(racks), Selector(racks)
    assert first.choose("allreduce", 2**20) == second.choose("allreduce", 2**20)
    assert first.choose("allreduce", 2**20) is first.choose("allreduce", 2**20)
    begin = time.perf_counter()
    for _ in range(1000):
        first.choose("allreduce", 2**20)
    assert (time.perf_counter() - begin) / 1000 < 20e-6


def test_simulated_choices_are_kept_in_a_file_by_machine(racks, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    choice = Selector(racks, cache=True).choose("allreduce", 2**20)
    (path,) = (tmp_path / "pycoll" / "choices").iterdir()
    assert json.loads(path.read_text()) == {"allreduce/1048576/0": choice.way}
    path.write_text(json.dumps({"allreduce/1048576/0": "ring", "allreduce/64/0": "no_such"}))
    again = Selector(racks, cache=True)
    assert again.choose("allreduce", 2**20).way == "ring"
    assert again.choose("allreduce", 64).way != "no_such"
    Selector(racks.scaled("tor0->tor1", 0.5), cache=True).choose("allreduce", 64)
    assert len(list((tmp_path / "pycoll" / "choices").iterdir())) == 2  # another machine, another file
    path.write_text("garbage")
    assert Selector(racks, cache=True).choose("allreduce", 2**20) == choice


def timings(*rows):
    return Profile.of_here(4, [Timing("allreduce", size, "float32", way, s, s, 5) for size, way, s in rows])


def test_measured_beats_modelled_and_pins_beat_both():
    flat = pycoll.Topology.flat(4, GBIT)
    slow_ring = timings((2**20, "ring", 9.0), (2**20, "binary_tree/4", 1.0))
    assert Selector(flat).choose("allreduce", 2**20).algorithm != "binary_tree"
    choice = Selector(flat, slow_ring).choose("allreduce", 2**20)
    assert (choice.way, choice.basis, choice.measured) == ("binary_tree/4", "measured", 1.0)
    pinned = Selector(flat, slow_ring, pins="allreduce:1m-=ring/8").choose("allreduce", 2**20)
    assert (pinned.way, pinned.basis, pinned.pieces) == ("ring/8", "pin", 8)


def test_one_host_untuned_goes_the_fast_path():
    choice = Selector(ranks=4).choose("allreduce", 2**20)
    assert (choice.way, choice.schedule, choice.basis) == ("direct", None, "rule")
    assert any("pycoll tune" in str(flip) for flip in Selector(ranks=4).explain("allreduce", 64).flips)


@pytest.mark.parametrize("collective", ["allreduce", "reduce", "reduce_scatter"])
def test_deterministic_choices_add_in_one_order_at_every_size(racks, collective):
    selector = Selector(racks, deterministic=True)
    choices = [selector.choose(collective, 4**k) for k in range(2, 14, 3)]
    assert len({choice.way for choice in choices}) == 1
    assert candidates.adds_alike_everywhere(choices[0].schedule)


def test_which_algorithms_add_alike_everywhere():
    assert candidates.adds_alike_everywhere(pycoll.build("binary_tree", ranks=6, pieces=4))
    assert candidates.adds_alike_everywhere(pycoll.build("recursive_doubling", ranks=8))
    assert not candidates.adds_alike_everywhere(pycoll.build("ring", ranks=3))
    assert not candidates.adds_alike_everywhere(pycoll.build("double_binary_tree", ranks=7))


def test_numbers_of_ranks_must_agree(racks):
    with pytest.raises(pycoll.InvalidArgument, match="the topology has 8, the profile is for 4"):
        Selector(racks, timings((64, "ring", 1.0)))
    with pytest.raises(pycoll.InvalidArgument, match="give a topology"):
        Selector()


def test_a_table_holds_the_choices_and_runs(on_threads):
    selector = Selector(pycoll.Topology.flat(3, GBIT, 50e-6), pins="broadcast=binomial_tree")
    table = selector.table(["allreduce"], [64, 2**20])
    assert [row.basis for row in table.rows] == ["modelled", "modelled", "pin"]

    def rank(comm):
        import numpy as np

        comm.install(table)
        return [int(comm.allreduce(np.ones(n))[0]) for n in (8, 2**17)], comm.chosen_algorithm("broadcast", 1)

    assert on_threads(3, rank) == [([3, 3], "binomial_tree")] * 3


# Explanations


def test_an_explanation_names_what_limits_and_what_would_flip(racks):
    explanation = Selector(racks).explain("allreduce", 2**20)
    rows = explanation.candidates
    assert rows[0].way == explanation.choice.way
    assert rows[0].predicted <= 1.01 * min(row.predicted for row in rows if not row.estimated)
    assert explanation.bound is not None
    assert all(0 < row.bound_share <= 1 + 1e-9 for row in rows if not row.estimated)
    assert rows[0].binding in {link.name for link in racks.links}
    words = [str(flip) for flip in explanation.flips]
    assert any(word.startswith("below about") for word in words), words
    assert any(word.startswith("tor0->tor1, tor1->tor0 at 0.") for word in words), words
    text = str(explanation)
    assert explanation.choice.way in text
    assert "What would change the choice:" in text
    assert json.loads(json.dumps(explanation.to_dict()))["choice"]["way"] == explanation.choice.way


def test_the_size_of_a_flip_is_where_the_choice_changes(racks):
    selector = Selector(racks)
    choice = selector.choose("allreduce", 2**20)
    at, way = selector._size_of_flip(choice, "allreduce", 2**20, "float32", 0, -1)
    assert selector.choose("allreduce", at).way == way
    assert selector.choose("allreduce", 2 * at).algorithm == choice.algorithm != selector.choose(
        "allreduce", at // 2
    ).algorithm  # fmt: skip


def test_explanations_of_measurements_print_the_models_error():
    measured = timings(*((4**k, way, f * (1 + 4**k / 1e4)) for k in range(1, 9)
                         for way, f in (("direct", 1.0), ("ring", 2.0))))  # fmt: skip
    explanation = Selector(measured=measured).explain("allreduce", 4096)
    first = explanation.candidates[0]
    assert (first.way, first.measured) == ("direct", pytest.approx(1.4096))
    assert abs(first.error) < 0.05
    assert "takes" in explanation.why


def test_a_choice_knows_its_algorithm_and_pieces():
    schedule = pycoll.build("ring", ranks=4, pieces=16)
    choice = Choice("ring/16", schedule, 1.0, None, "modelled", "")
    assert (choice.algorithm, choice.pieces) == ("ring", 16)
    assert Choice("direct", None, 1.0, None, "rule", "").pieces == 0


def test_pins_may_be_a_table(racks):
    pins = DecisionTable([Decision("allreduce", 0, None, "ring", basis="pin", reason="the boss")])
    assert "the boss" in Selector(racks, pins=pins).choose("allreduce", 64).reason


def test_other_ways_are_those_that_help_when_a_link_is_slow(racks):
    row = Selector(racks).table(["allreduce"], [2**24]).find("allreduce", 2**24)
    assert row.way == "ring"
    families = [way.partition("/")[0] for way in row.others]
    assert len(set(families)) == len(families) <= 3
    slow = Selector(racks.scaled("tor0<->tor1", 0.1)).model
    time = {way: slow.time(way, "allreduce", 2**24, "float32", 0) for way in (row.way, *row.others)}
    assert min(time.values()) < 0.7 * time[row.way]
    assert row.beta > 0
    assert row.alpha + row.beta * 2**24 == pytest.approx(Selector(racks).choose("allreduce", 2**24).predicted)
