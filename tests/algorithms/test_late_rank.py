"""The late-rank AllReduce: rounds, proofs from raw inputs, parameters.

PYCOLL_EXHAUSTIVE=1 pytest tests/algorithms/test_late_rank.py tries every number of ranks and pieces.
"""

from __future__ import annotations

import json
import os
import pickle
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from time import perf_counter

import numpy as np
import pytest

import pycoll

EXHAUSTIVE = os.environ.get("PYCOLL_EXHAUSTIVE", "0") != "0"

#: Rounds after the arrival of K = k(n-1) pieces, k = 1, 2, 4, 8; no more are to be taken.
ROUNDS = {
    3: (3, 6, 11, 19),
    4: (4, 7, 13, 25),
    5: (6, 10, 18, 34),
    6: (7, 12, 22, 42),
    7: (8, 14, 26, 50),
    8: (9, 16, 30, 58),
    9: (11, 19, 35, 68),
    10: (12, 21, 39, 75),
    11: (13, 23, 43, 83),
    12: (14, 25, 47, 91),
    13: (15, 27, 51, 99),
    14: (16, 29, 55, 107),
    15: (17, 31, 59, 115),
    16: (18, 33, 63, 123),
    17: (20, 36, 68, 132),
    18: (21, 39, 73, 141),
    19: (22, 40, 76, 149),
    20: (24, 43, 81, 157),
    21: (24, 44, 84, 164),
    22: (25, 46, 88, 172),
    23: (26, 48, 92, 180),
    24: (27, 50, 96, 188),
    25: (28, 52, 100, 196),
    26: (29, 54, 104, 204),
    27: (30, 56, 108, 212),
    28: (31, 58, 112, 220),
    29: (32, 60, 116, 228),
    30: (33, 62, 120, 236),
    31: (34, 64, 124, 244),
    32: (35, 66, 128, 252),
    33: (38, 70, 134, 262),
    34: (39, 72, 138, 270),
    35: (40, 74, 142, 278),
    36: (41, 76, 146, 286),
    37: (42, 78, 150, 294),
    38: (42, 79, 153, 301),
    39: (43, 81, 157, 309),
    40: (44, 83, 161, 317),
    41: (45, 85, 165, 325),
    42: (46, 87, 169, 333),
    43: (47, 89, 173, 341),
    44: (48, 91, 177, 349),
    45: (49, 93, 181, 357),
    46: (50, 95, 185, 365),
    47: (51, 97, 189, 373),
    48: (52, 99, 193, 381),
    49: (53, 101, 197, 389),
    50: (54, 103, 201, 397),
    51: (55, 105, 205, 405),
    52: (56, 107, 209, 413),
    53: (57, 109, 213, 421),
    54: (58, 111, 217, 429),
    55: (59, 113, 221, 437),
    56: (60, 115, 225, 445),
    57: (61, 117, 229, 453),
    58: (62, 119, 233, 461),
    59: (63, 121, 237, 469),
    60: (64, 123, 241, 477),
    61: (65, 125, 245, 485),
    62: (66, 127, 249, 493),
    63: (67, 129, 253, 501),
    64: (68, 131, 257, 509),
}
CLOSED = [n for n in range(2, 129) if n >= 2 ** ((n - 1).bit_length() - 1) + (n - 1).bit_length()]


def depth(ranks: int) -> int:
    return (ranks - 1).bit_length()


def proved(ranks: int, pieces: int, late: int, **more: object) -> int:
    """Rounds after the arrival, of a schedule that is right from raw inputs and uses one port a rank."""
    options = {"ranks": ranks, "pieces": pieces, "late": late, **more}
    both = pycoll.build("late_rank", **options)
    before, after = (pycoll.build("late_rank", phase=phase, **options) for phase in ("before", "after"))
    for schedule in (both, before, after):
        report = schedule.verify()
        assert max(report.max_send_ports, report.max_recv_ports) <= 1
    assert both.rounds == before.rounds + after.rounds
    assert not ({late} & {*before.transfers["src"].tolist(), *before.transfers["dst"].tolist()})
    return after.rounds


@pytest.mark.parametrize("ranks", ROUNDS)
def test_rounds(ranks: int) -> None:
    choice = random.Random(ranks)
    for factor, most in zip((1, 2, 4, 8), ROUNDS[ranks], strict=True):
        if factor == 8 and ranks > 20 and not EXHAUSTIVE:
            continue
        made = proved(ranks, factor * (ranks - 1), choice.randrange(ranks))
        assert factor * (ranks - 1) - 1 + depth(ranks) <= made <= most


@pytest.mark.parametrize("ranks", CLOSED if EXHAUSTIVE else [*CLOSED[:24], 48, 64, 71, 100, 127, 128])
def test_any_number_of_pieces(ranks: int) -> None:
    choice = random.Random(ranks)
    counts = range(1, 130) if EXHAUSTIVE else sorted({1, 2, 3, *choice.sample(range(4, 130), 4)})
    for pieces in counts:
        assert proved(ranks, pieces, choice.randrange(ranks)) == pieces - 1 + depth(ranks)


@pytest.mark.parametrize("ranks", [3, 5, 6, 9, 10, 11, 17, 18, 19, 20])
def test_without_a_closed_form_at_most_one_round_more(ranks: int) -> None:
    for pieces in range(1, 130, 1 if EXHAUSTIVE else 16):
        assert proved(ranks, pieces, pieces % ranks) <= pieces + depth(ranks)


def test_256_ranks_are_built_within_a_second() -> None:
    pieces = 91  # the best for 1 GiB at 300 GB/s and 3 us
    start = perf_counter()
    schedule = pycoll.build("late_rank", ranks=256, pieces=pieces, late=77)
    seconds = perf_counter() - start
    schedule.verify()
    assert pycoll.build("late_rank", ranks=256, pieces=pieces, phase="after").rounds == pieces - 1 + 8
    assert seconds < 20  # takes about 0.02; a busy machine is no error


def test_results_from_raw_inputs() -> None:
    """Played on numbers, transfer by transfer."""
    for ranks, late in ((2, 0), (3, 1), (6, 2), (7, 6), (8, 3)):
        schedule = pycoll.build("late_rank", ranks=ranks, late=late)
        values = np.array(
            [[3**rank * (piece + 1) for piece in range(schedule.pieces)] for rank in range(ranks)]
        )
        expected = values.sum(axis=0)
        for number in range(schedule.rounds):
            now = schedule.transfers[schedule.transfers["round"] == number]
            sent = values[now["src"], now["piece"]]
            for transfer, value in zip(now, sent, strict=True):
                place = int(transfer["dst"]), int(transfer["piece"])
                values[place] = value + (values[place] if transfer["reduce"] else 0)
        assert (values == expected).all()


def test_the_same_on_every_thread() -> None:
    """Schedules that take long to find are kept, between ranks that are late and between threads."""

    def made(late: int) -> list[int]:
        alone = [pycoll.build("late_rank", ranks=19, late=late, pieces=pieces) for pieces in (40, 54, 40)]
        several = pycoll.build("late_rank", ranks=9, late=[late % 9, (late + 3) % 9], pieces=28)
        return [schedule.rounds for schedule in (*alone, several) if schedule.verify()]

    with ThreadPoolExecutor(4) as threads:
        assert len({tuple(rounds) for rounds in threads.map(made, range(19))}) == 1


# ---- the published algorithm


@pytest.mark.parametrize(
    ("ranks", "after"), [(2, 1), (4, 4), (8, 9), (16, 18), (32, 35), (64, 68), (128, 133), (256, 262)]
)
def test_stragglar(ranks: int, after: int) -> None:
    part = pycoll.build("stragglar", ranks=ranks, phase="after")
    part.verify()
    assert part.rounds == after
    assert part.pieces == ranks - 1
    whole = pycoll.build("stragglar", ranks=ranks, late=ranks // 2)
    assert whole.verify().max_send_ports == 1
    assert whole.rounds == 2 * (ranks - 2) + depth(ranks)


def test_stragglar_pairs_ranks() -> None:
    """Every transfer after the start is one way of an exchange between two ranks, or the start's."""
    schedule = pycoll.build("stragglar", ranks=8, phase="after")
    for number in range(schedule.rounds):
        now = schedule.transfers[schedule.transfers["round"] == number]
        peer = dict(zip(now["src"].tolist(), now["dst"].tolist(), strict=True))
        assert all(peer.get(dst, src) == src for src, dst in peer.items())


def test_stragglar_is_for_powers_of_two() -> None:
    with pytest.raises(pycoll.Unsupported, match="does not run on 6 ranks; it takes: powers of two"):
        pycoll.build("stragglar", ranks=6)


# ---- parts


def part() -> pycoll.Schedule:
    return pycoll.build("late_rank", ranks=5, pieces=8, late=2, phase="after")


def test_a_part_keeps_what_it_is_a_part_of() -> None:
    schedule = part()
    assert schedule.is_part
    assert len(schedule.preceding)
    assert not len(schedule.following)
    assert not pycoll.build("late_rank", ranks=5).is_part
    for same in (pycoll.Schedule.from_json(schedule.to_json()), pickle.loads(pickle.dumps(schedule))):
        assert same == schedule
        assert same.hash == schedule.hash
        same.verify()
    alone = pycoll.Schedule.from_transfers(
        schedule.transfers, collective="allreduce", ranks=5, pieces=schedule.pieces
    )
    assert alone != schedule
    assert alone.hash != schedule.hash
    with pytest.raises(pycoll.ScheduleError):
        alone.verify()


@pytest.mark.parametrize("phase", ["before", "after"])
def test_a_wrong_part_is_found(phase: str) -> None:
    schedule = pycoll.build("late_rank", ranks=5, pieces=8, late=2, phase=phase)
    for index in range(len(schedule.transfers)):
        wrong = pycoll.Schedule.from_transfers(
            np.delete(schedule.transfers, index),
            collective="allreduce",
            ranks=5,
            pieces=8,
            preceding=schedule.preceding,
            following=schedule.following,
        )
        with pytest.raises(pycoll.ScheduleError, match="all its parts"):
            wrong.verify()


def test_a_part_counts_for_itself() -> None:
    report = part().verify()
    assert report.rounds == part().rounds == 8 - 1 + 3
    assert report.transfers == len(part().transfers)
    assert report.pieces_sent[2] >= 8
    before = pycoll.build("late_rank", ranks=5, pieces=8, late=2, phase="before").verify()
    assert before.pieces_sent == (6, 6, 0, 6, 6)
    assert before.depth == 3


def test_rounds_of_parts_beyond_what_there_can_be() -> None:
    row = (2**30 - 1, 0, 1, 0, True)
    schedule = pycoll.Schedule.from_transfers(
        [row], collective="allreduce", ranks=2, preceding=[row], following=[(2**30 - 1, 1, 0, 0, False)]
    )
    with pytest.raises(pycoll.ScheduleError, match="more rounds than there can be"):
        schedule.verify()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"preceding": 3}, "field 'preceding' must be a list, not 3"),
        ({"following": [3]}, r"following\[0\]: must be a list, not 3"),
        ({"before": []}, "no field 'before'; the fields are .*, preceding, following"),
    ],
)
def test_files_of_parts_that_are_wrong(change: dict[str, object], text: str) -> None:
    document = json.loads(part().to_json()) | change
    with pytest.raises(pycoll.ScheduleError, match=text):
        pycoll.Schedule.from_json(json.dumps(document))


def test_running(on_threads: Callable[..., object]) -> None:
    whole = pycoll.build("late_rank", ranks=3, pieces=9, late=0)

    def run(comm: pycoll.Communicator) -> None:
        with pytest.raises(pycoll.InvalidArgument, match="the schedule is a part of 'late_rank'"):
            comm.allreduce(np.zeros(3), algorithm=pycoll.build("late_rank", ranks=3, phase="after"))
        x = np.arange(1000, dtype=np.float64) * (comm.rank + 1)
        comm.allreduce(x, algorithm=whole)
        assert (x == np.arange(1000) * 6).all()

    on_threads(3, run)


# ---- parameters


@pytest.mark.parametrize("late", [0, 3, 7])
def test_the_late_rank_comes_in_at_the_arrival(late: int) -> None:
    schedule = pycoll.build("late_rank", ranks=8, pieces=28, late=late)
    before = pycoll.build("late_rank", ranks=8, pieces=28, late=late, phase="before").rounds
    assert before == 6 * 4
    rows = schedule.transfers
    own = rows[(rows["src"] == late) | (rows["dst"] == late)]
    assert own["round"].min() == before
    assert schedule.params == {"late": str(late)}


@pytest.mark.parametrize("ranks", [4, 7, 8, 16])
@pytest.mark.parametrize("cut", range(5))
def test_cuts(ranks: int, cut: int) -> None:
    late = ranks // 3
    options = {"ranks": ranks, "late": late, "groups": 4, "cut": cut}
    whole = pycoll.build("late_rank", **options)
    assert whole.verify().max_send_ports <= 1
    before, after = (pycoll.build("late_rank", phase=phase, **options) for phase in ("before", "after"))
    before.verify()
    after.verify()
    early = ranks - 1
    swapped = cut * early - 1 + depth(ranks) if cut else 0
    assert after.rounds == swapped + (2 * early if cut < 4 else 0)
    if ranks != 7:
        assert before.rounds == cut * (early - 1)


def test_what_is_reduced_before_does_not_depend_on_the_cut() -> None:
    """So that early ranks can begin before anybody knows where the cut will be."""
    for ranks in (7, 8):
        cuts = [
            pycoll.build("late_rank", ranks=ranks, pieces=168, groups=4, cut=cut, phase="before")
            for cut in (1, 2, 3)
        ]
        for less, more in pairwise(cuts):
            few, many = (set(map(tuple, part.transfers.tolist())) for part in (less, more))
            assert few < many


@pytest.mark.parametrize(
    ("ranks", "late", "most"),
    [(8, 2, 31), (8, 3, 31), (8, 4, 28), (16, 2, 65), (16, 3, 66), (16, 4, 66)],
)
def test_several_late_ranks(ranks: int, late: int, most: int) -> None:
    who = random.Random(late).sample(range(ranks), late)
    options = {"ranks": ranks, "pieces": 4 * (ranks - late), "late": who}
    after = pycoll.build("late_rank", phase="after", **options)
    report = after.verify()
    assert after.rounds <= most
    assert max(report.max_send_ports, report.max_recv_ports) == 1
    whole = pycoll.build("late_rank", **options)
    whole.verify()
    before = whole.transfers[whole.transfers["round"] < whole.rounds - after.rounds]
    assert not set(who) & {*before["src"].tolist(), *before["dst"].tolist()}


def test_arrivals_one_after_the_other() -> None:
    arrivals = (0, 5, 9)
    schedule = pycoll.build("late_rank", ranks=9, pieces=24, late=(4, 0, 8), arrivals=arrivals, phase="after")
    schedule.verify()
    rows = schedule.transfers
    for rank, arrival in zip((4, 0, 8), arrivals, strict=True):
        assert rows["round"][(rows["src"] == rank) | (rows["dst"] == rank)].min() == arrival
    assert schedule.rounds <= 9 + 24 + 8


def test_all_but_one_late() -> None:
    for late in ([0], [0, 2], [3, 0, 1]):
        pycoll.build("late_rank", ranks=len(late) + 1 + (3 not in late), late=late).verify()


@pytest.mark.parametrize("ranks", range(1, 41))
def test_defaults(ranks: int) -> None:
    schedule = pycoll.build("late_rank", ranks=ranks)
    schedule.verify()
    after = pycoll.build("late_rank", ranks=ranks, phase="after").rounds
    assert schedule.pieces % max(ranks - 1, 1) == 0
    if ranks > 3:
        assert schedule.pieces <= after <= schedule.pieces * 1.0625 + 1


@pytest.mark.parametrize(("size", "pieces"), [(2**20, 2), (2**26, 12), (2**30, 49), (1, 1)])
def test_pieces_for_a_machine_and_a_size(size: int, pieces: int) -> None:
    machine = pycoll.Topology.flat(8, 300e9, overhead=3e-6)
    assert pycoll.build("late_rank", ranks=8, topology=machine, size=size).pieces == pieces


def test_early_ranks_follow_the_machine_s_order() -> None:
    """Dealt over two racks, each rank's neighbour is in its own rack but at two places."""
    racks = pycoll.Topology.load("two_racks")
    crossing = pycoll.build("late_rank", ranks=8, topology=racks, late=5, phase="before").transfers
    crosses = (crossing["src"] < 4) != (crossing["dst"] < 4)
    links = {(int(t["src"]), int(t["dst"])) for t in crossing[crosses]}
    assert len(links) == 2


@pytest.mark.parametrize("late", [0, 6])
def test_spreading_among_near_ranks_first(late: int) -> None:
    racks = pycoll.Topology.load("two_racks")
    options = {"ranks": 8, "pieces": 28, "topology": racks, "late": late, "phase": "after"}
    crossings, seconds = {}, {}
    for spread in ("doubling", "near"):
        schedule = pycoll.build("late_rank", spread=spread, **options)
        assert schedule.verify().max_send_ports == 1
        rows = schedule.transfers
        crossings[spread] = int(((rows["src"] < 4) != (rows["dst"] < 4)).sum())
        seconds[spread] = schedule.simulate(racks, 1 << 26).time
    assert crossings["near"] < 28 * 2.2 < crossings["doubling"]
    assert seconds["near"] < 0.75 * seconds["doubling"]
    # Where no rank is nearer than another there is nothing to choose.
    flat = options | {"topology": pycoll.Topology.flat(8, 1e9)}
    assert pycoll.build("late_rank", spread="near", **flat) == pycoll.build("late_rank", **flat)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"spread": "far"}, "parameter 'spread' must be one of 'doubling' 'near', not 'far'"),
        ({"late": 4}, "parameter 'late' must be whole numbers between 0 and 3"),
        ({"late": "x"}, "parameter 'late' must be whole numbers between 0 and 3 with commas"),
        ({"late": [1, 1]}, "names a rank twice"),
        ({"late": [0, 1, 2, 3]}, "names all ranks; one must be early"),
        ({"late": ""}, "parameter 'late' must be whole numbers"),
        ({"late": [1, 2], "arrivals": 3}, "'arrivals' needs a round for each late rank"),
        ({"arrivals": 3}, "counted from the arrival of the only late rank"),
        ({"phase": "during"}, "parameter 'phase' must be one of 'both' 'before' 'after', not 'during'"),
        ({"groups": 0}, "parameter 'groups' must be a whole number between 1"),
        ({"groups": 4, "cut": 5}, "parameter 'cut' must be a whole number between 0 and 4"),
        ({"size": -1}, "parameter 'size' must be a number between 0"),
        ({"lateness": 3}, "has no parameter 'lateness'"),
    ],
)
def test_parameters_that_are_wrong(options: dict[str, object], text: str) -> None:
    with pytest.raises(pycoll.InvalidArgument, match=text):
        pycoll.build("late_rank", ranks=4, **options)


def test_a_cut_is_for_late_ranks_that_have_come() -> None:
    pycoll.build("late_rank", ranks=8, late=[1, 2], groups=4, cut=2).verify()
    with pytest.raises(pycoll.Unsupported, match="not for later 'arrivals'"):
        pycoll.build("late_rank", ranks=8, late=[1, 2], arrivals=[0, 5], groups=4, cut=2)


def test_near_ranks_are_those_of_a_topology() -> None:
    with pytest.raises(pycoll.Unsupported, match="spread 'near' needs a topology"):
        pycoll.build("late_rank", ranks=8, spread="near")


def test_no_candidate_where_all_are_on_time() -> None:
    from pycoll.selection.candidates import ways

    for name in ("late_rank", "stragglar"):
        assert pycoll.algorithms()[name].for_late_ranks
        assert not any(way.startswith(name) for way in ways("allreduce", 4))
    assert not pycoll.algorithms()["ring"].for_late_ranks
