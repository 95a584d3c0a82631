"""The figures of the late-rank AllReduce against those published and those derived by hand."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

import pycoll
from pycoll.cli._app import app
from pycoll.late_rank import tables
from pycoll.late_rank.model import Cut, FlatMachine

#: StragglAR's own simulation (alpha = 3 us, 450 GiB/s, 1 GiB): speed-ups of StragglAR, halving-doubling and
#: "direct" over the ring, and ours.
SPEED_UPS = {
    4: (1.127, 1.002, 0.753, 1.403),
    8: (1.363, 1.006, 0.589, 1.598),
    16: (1.565, 1.016, 0.478, 1.693),
    32: (1.718, 1.036, 0.404, 1.754),
    64: (1.826, 1.078, 0.356, 1.826),
    128: (1.897, 1.162, 0.332, 1.959),
    256: (1.941, 1.331, 0.335, 2.227),
}
#: Of numbers of ranks that are no power of two, ours.
OTHERS = {6: 1.518, 12: 1.647, 24: 1.717, 48: 1.781, 96: 1.882, 192: 2.081}


def test_speed_ups() -> None:
    rows = list(tables.speed_ups())
    assert [row.ranks for row in rows] == list(SPEED_UPS)
    for row in rows:
        made = (row.stragglar, row.halving_doubling, row.direct, row.late_rank)
        assert [round(speed_up, 3) for speed_up in made if speed_up] == list(SPEED_UPS[row.ranks])
        assert row.late_rank < row.bound
    assert next(row.pieces for row in rows if row.ranks == 64) == 61


def test_speed_ups_of_other_numbers_of_ranks() -> None:
    for row in tables.speed_ups(OTHERS):
        assert row.stragglar is None
        assert round(row.late_rank, 3) == OTHERS[row.ranks]


#: Lateness as a share of the pre-phase: ring, StragglAR, ours, (k, g) of ours, bound; 300 GB/s, 1 GiB, us.
PARTIAL = {
    8: {
        0: (6305, 7715, 6305, (1, 0), 6263),
        0.1: (6305, 7406, 6188, (32, 3), 5993),
        0.25: (6305, 6943, 5842, (8, 2), 5588),
        0.5: (6305, 6172, 5244, (8, 4), 4913),
        0.75: (6305, 5400, 4647, (8, 6), 4238),
        0.9: (6305, 4937, 4271, (8, 7), 3833),
        1: (6305, 4629, 3979, (4, 4), 3579),
        1.2: (6305, 4629, 3881, (8, 8), 3579),
    },
    16: {
        0: (6801, 7731, 6801, None, 6711),
        0.1: (6801, 7393, 6674, None, 6394),
        0.25: (6801, 6886, 6280, None, 5918),
        0.5: (6801, 6040, 5576, None, 5125),
        0.75: (6801, 5195, 4870, None, 4333),
        0.9: (6801, 4687, 4411, None, 3857),
        1: (6801, 4349, 4073, None, 3579),
        1.2: (6801, 4349, 3947, None, 3579),
    },
}


def test_partial_lateness() -> None:
    rows = list(tables.partial_lateness())
    assert len(rows) == 16
    for row in rows:
        ring, stragglar, ours, cut, bound = PARTIAL[row.ranks][row.share]
        for seconds, expected in (
            (row.ring, ring),
            (row.stragglar or 0.0, stragglar),
            (row.late_rank, ours),
            (row.bound, bound),
        ):
            assert seconds * 1e6 == pytest.approx(expected, abs=0.75)
        assert cut is None or (row.groups, row.cut) == cut
        assert row.bound <= row.overlapped <= row.late_rank * (1 + 1e-9)
        assert row.late_rank <= min(row.ring, row.stragglar or row.ring) * (1 + 1e-9)


#: us after the arrival: ring, halving-doubling, StragglAR, ours with K = k(n-1), k, with any K, K, bound.
TIMES = {
    (4, 2**26): (353.5, 347.5, 310.3, 281.3, 4, 278.6, 9, 229.7),
    (4, 2**30): (5386.7, 5380.7, 4784.2, 3800.7, 16, 3789.4, 35, 3585.1),
    (8, 2**20): (48.1, 24.1, 31.5, 31.5, 1, 19.0, 2, 12.5),
    (8, 2**32): (25096.0, 25072.0, 18434.0, 14914.2, 16, 14908.7, 98, 14325.6),
    (16, 2**24): (194.9, 128.9, 121.1, 121.1, 1, 109.9, 7, 67.9),
    (32, 2**30): (7120.6, 6964.6, 4146.0, 4008.1, 2, 4005.6, 69, 3594.1),
    (64, 2**28): (2139.6, 1797.6, 1169.8, 1169.8, 1, 1141.5, 39, 912.8),
    (64, 2**32): (28563.7, 28221.7, 15656.8, 15277.7, 2, 15258.4, 154, 14334.6),
}


def test_times_after_the_arrival() -> None:
    sizes = sorted({size for _, size in TIMES})
    rows = {
        (row.ranks, row.size): row
        for row in tables.times_after_arrival(sorted({ranks for ranks, _ in TIMES}), sizes)
    }
    for case, expected in TIMES.items():
        row = rows[case]
        made = (row.ring, row.halving_doubling, row.stragglar or 0.0, row.late_rank_multiple)
        made += (row.late_rank, row.bound)
        wanted = (*expected[:4], expected[5], expected[7])
        assert [seconds * 1e6 for seconds in made] == pytest.approx(wanted, abs=0.06)
        assert (row.multiple, row.pieces) == (expected[4], expected[6])


#: Rounds from the last arrival with K = 4(n-L) pieces, and their bound; none may be more.
SEVERAL = {8: ((31, 28), (31, 27), (31, 25), (28, 22)), 16: ((65, 60), (65, 60), (66, 59), (66, 57))}
#: Two late ranks, one after the other: time in units of the buffer's, by gap.
STAGGERED = {8: (1.208, 1.167, 1.167, 1.083), 16: (1.125, 1.107, 1.089, 1.089)}


def test_several_late() -> None:
    rows = list(tables.several_late())
    for ranks, expected in SEVERAL.items():
        together = [row for row in rows if row.ranks == ranks and row.gap == 0]
        for row, (rounds, bound) in zip(together, expected, strict=True):
            assert row.bound == bound <= row.rounds <= rounds
            assert row.time <= row.ring
        staggered = [row for row in rows if row.ranks == ranks and row.gap > 0]
        for row, time in zip(staggered, STAGGERED[ranks], strict=True):
            assert row.time <= time + 0.0005


def test_rounds() -> None:
    rows = list(tables.rounds(range(3, 9)))
    assert [row.rounds for row in rows if row.ranks == 8] == [(9, 16, 30, 58)]
    assert all(made >= least for row in rows for made, least in zip(row.rounds, row.bound, strict=True))


# ---- the model


def test_the_model_is_what_the_simulator_says() -> None:
    machine = pycoll.Topology.flat(8, 1e9, overhead=1e-3)
    model = FlatMachine(8, 1e-3, 1e9)
    size = 56e6
    for name, seconds in (
        ("ring", model.ring(size)),
        ("recursive_halving_doubling", model.recursive_halving_doubling(size)),
    ):
        assert pycoll.build(name, ranks=8).simulate(machine, size).time == pytest.approx(seconds)
    for phase, seconds in (
        ("before", model.pre_phase(size, 28)),
        ("after", model.after_pre_phase(size, 28)),
    ):
        schedule = pycoll.build("late_rank", ranks=8, pieces=28, phase=phase)
        assert schedule.simulate(machine, size).time == pytest.approx(seconds)
    whole = pycoll.build("late_rank", ranks=8, late=5, groups=4, cut=2)
    lateness = 0.02
    start = [0.0] * 5 + [lateness] + [0.0] * 2
    after = whole.simulate(machine, size, start=start).time - lateness
    assert after == pytest.approx(model.with_cut(size, 4, 2, lateness))


def test_the_best_number_of_pieces() -> None:
    model = FlatMachine(8, 3e-6, 300e9)
    for size, pieces in ((2**20, 2), (2**26, 12), (2**30, 49), (2**32, 98)):
        assert model.best_pieces(size) == pieces
        times = {k: model.after_pre_phase(size, k) for k in range(1, 200)}
        assert times[pieces] == min(times.values())


def test_the_best_cut() -> None:
    model = FlatMachine(8, 3e-6, 300e9)
    assert model.best_cut(2**30, 0.0) == Cut(1, 0, model.on_time(2**30))
    times = [model.best_cut(2**30, lateness * 1e-4).seconds for lateness in range(60)]
    assert times == sorted(times, reverse=True)
    assert model.best_cut(2**30, 1.0).groups == model.best_cut(2**30, 1.0).cut == 8
    assert model.bound(2**30) < times[-1]


@pytest.mark.parametrize("cuts", [True, False])
@pytest.mark.parametrize(("ranks", "size"), [(4, 2**24), (8, 2**26), (16, 2**30), (12, 2**28)])
def test_critical_lateness(ranks: int, size: int, cuts: bool) -> None:
    """Just below it nothing is gained, just above it something is."""
    model = FlatMachine(ranks, 3e-6, 300e9)
    critical = model.critical_lateness(size, cuts=cuts)
    assert 0 < critical < model.pre_phase(size, ranks - 1)
    on_time = model.on_time(size)
    options = [(k, g) for k in (2**p for p in range(8)) for g in (range(1, k + 1) if cuts else (k,))]

    def best(lateness: float) -> float:
        return min(model.with_cut(size, groups, cut, lateness) for groups, cut in options)

    assert best(critical * (1 - 1e-6)) > on_time > best(critical * (1 + 1e-6))


def test_what_a_model_cannot_be_of() -> None:
    with pytest.raises(pycoll.InvalidArgument, match="ranks must be at least 2, not 1"):
        FlatMachine(1, 0.0, 1.0)
    with pytest.raises(pycoll.InvalidArgument, match="bandwidth must be positive"):
        FlatMachine(2, 0.0, 0.0)
    with pytest.raises(pycoll.InvalidArgument, match="without alpha there is no best number"):
        FlatMachine(2, 0.0, 1.0).best_pieces(1.0)


# ---- the command


def test_the_command() -> None:
    run = CliRunner().invoke
    shown = run(app, ["schedule", "late-rank", "speed-ups", "--ranks", "4,8"])
    assert shown.exit_code == 0
    assert "    4      1.127             1.002   0.753      1.403      27  1.508\n" in shown.stdout
    cases = {"partial": 4, "several": 3, "times": 6, "rounds": 2, "critical": 2}
    for name, ranks in cases.items():
        shown = run(app, ["schedule", "late-rank", name, "-n", str(ranks)])
        assert shown.exit_code == 0, shown.output
        assert len(shown.stdout.splitlines()) > 2
    found = json.loads(run(app, ["schedule", "late-rank", "several", "-n", "8", "--json"]).stdout)
    assert [row["late"] for row in found["several"]] == [1, 2, 3, 4, 2, 2, 2, 2]
    for wrong, text in (
        (["speed"], "there is no table 'speed'"),
        (["-n", "1"], "write numbers of at least 2"),
        (["--alpha", "3"], "time"),
    ):
        failed = run(app, ["schedule", "late-rank", *wrong])
        assert failed.exit_code != 0
        assert text in str(failed.exception)
