"""What verify accepts, what it rejects, and how it says why."""

from __future__ import annotations

import re
from collections import Counter
from time import perf_counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pycoll

Row = tuple[int, int, int, int, bool]

CASES = [
    (name, collective)
    for name, info in pycoll.algorithms().items()
    if info.builtin
    for collective in info.collectives
]


def make(rows: list[Row], collective: str = "allreduce", ranks: int = 3, **more: int) -> pycoll.Schedule:
    return pycoll.Schedule.from_transfers(rows, collective=collective, ranks=ranks, **more)


def rejects(schedule: pycoll.Schedule, *texts: str) -> None:
    with pytest.raises(pycoll.ScheduleError) as caught:
        schedule.verify()
    for text in texts:
        assert text in str(caught.value)


# ---- the rules, one by one


def test_names_the_schedule() -> None:
    rejects(
        make([], collective="reduce", root=1, pieces=2),
        "schedule 'custom' for reduce (3 ranks, 2 pieces, root 1): ",
    )


def test_double_counting() -> None:
    rejects(
        make([(0, 0, 1, 0, True), (1, 1, 2, 0, True), (2, 0, 2, 0, True)]),
        "round 2, transfer 2 (reduce of piece 0, rank 0 to rank 2): double counting: "
        "rank 2 already holds the contribution of rank 0, which rank 0 sends again",
    )


def test_double_counting_within_a_round() -> None:
    rejects(make([(0, 0, 1, 0, True), (0, 0, 1, 0, True)]), "round 0, transfer 1", "double counting")


def test_copy_of_a_partial_result() -> None:
    rejects(
        make([(0, 0, 1, 0, True), (1, 1, 2, 0, False)]),
        "round 1, transfer 1 (copy of piece 0, rank 1 to rank 2): "
        "rank 1 does not hold the piece complete yet",
    )


def test_read_of_nothing() -> None:
    rejects(
        make([(0, 1, 2, 0, False), (1, 0, 1, 0, False)], collective="broadcast"),
        "round 0, transfer 0 (copy of piece 0, rank 1 to rank 2): rank 1 holds nothing of this piece to send",
    )


def test_transfers_of_a_round_read_the_state_before_it() -> None:
    rejects(
        make([(0, 0, 1, 0, False), (0, 1, 2, 0, False)], collective="broadcast"),
        "round 0, transfer 1",
        "rank 1 holds nothing",
    )
    make([(0, 0, 1, 0, False), (1, 1, 2, 0, False)], collective="broadcast").verify()


def test_an_exchange_is_legal() -> None:
    make([(0, 0, 1, 0, True), (0, 1, 0, 0, True)], ranks=2).verify()


def test_order_in_the_list_does_not_matter() -> None:
    make([(1, 1, 2, 0, False), (0, 0, 1, 0, False)], collective="broadcast").verify()


def test_reduce_into_nothing() -> None:
    rejects(
        make([(0, 0, 1, 0, True)], collective="broadcast", ranks=2),
        "rank 1 holds nothing of this piece to reduce into; copy it there instead",
    )


def test_clashing_writes() -> None:
    rejects(
        make([(0, 0, 1, 0, False), (1, 0, 2, 0, False), (1, 1, 2, 0, False)], collective="broadcast"),
        "round 1, transfer 2 (copy of piece 0, rank 1 to rank 2): rank 2 also receives this piece "
        "in the same round from rank 0, and only reduces may share a round",
    )
    rejects(
        make([(0, 0, 2, 0, True), (0, 1, 2, 0, False)]), "rank 2 also receives this piece in the same round"
    )
    make([(0, 0, 2, 0, True), (0, 1, 2, 0, True), (1, 2, 0, 0, False), (1, 2, 1, 0, False)]).verify()


def test_self_transfer() -> None:
    rejects(make([(0, 1, 1, 0, True)]), "round 0, transfer 0", "a rank cannot send to itself")


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ((-1, 0, 1, 0, True), "round -1 is out of range"),
        ((2**31 - 1, 0, 1, 0, True), "round 2147483647 is out of range"),
        ((0, -1, 1, 0, True), "source rank -1 is out of range: it must be between 0 and 2"),
        ((0, 3, 1, 0, True), "source rank 3 is out of range: it must be between 0 and 2"),
        ((0, 0, 3, 0, True), "destination rank 3 is out of range"),
        ((0, 0, 1, 2, True), "piece 2 is out of range: it must be between 0 and 1"),
        ((0, 0, 1, -1, True), "piece -1 is out of range"),
    ],
)
def test_index_out_of_range(row: Row, text: str) -> None:
    rejects(make([row], pieces=2), "transfer 0", text)


def test_unmet_postcondition() -> None:
    rejects(
        make([(0, 0, 1, 0, True)]),
        "after the last round (0), rank 0 is owed piece 0 complete but lacks the contribution of ranks 1, 2",
    )
    rejects(make([], collective="broadcast"), "rank 1 is owed piece 0 complete but never receives it")
    rejects(make([], ranks=20), "lacks the contribution of ranks 1, 2, 3, 4, 5, 6, 7, 8 and 11 more")


def test_the_earliest_round_is_blamed() -> None:
    rejects(make([(5, 0, 0, 0, True)]), "round 5")
    rejects(
        make([(4, 0, 1, 0, False), (2, 0, 1, 1, False)], pieces=2),
        "round 2, transfer 1 (copy of piece 1",
    )


@pytest.mark.parametrize(
    ("collective", "ranks", "before", "after"),
    [
        ("allreduce", 2, {(0, 0), (0, 1), (1, 0), (1, 1)}, {(0, 0), (0, 1), (1, 0), (1, 1)}),
        ("reduce_scatter", 2, {(0, 0), (0, 1), (1, 0), (1, 1)}, {(0, 0), (1, 1)}),
        ("all_gather", 2, {(0, 0), (1, 1)}, {(0, 0), (0, 1), (1, 0), (1, 1)}),
        ("broadcast", 2, {(1, 0), (1, 1)}, {(0, 0), (0, 1), (1, 0), (1, 1)}),
        ("reduce", 2, {(0, 0), (0, 1), (1, 0), (1, 1)}, {(1, 0), (1, 1)}),
        ("gather", 2, {(0, 0), (1, 1)}, {(1, 0), (1, 1)}),
        ("scatter", 2, {(1, 0), (1, 1)}, {(0, 0), (1, 1)}),
        ("all_to_all", 2, {(0, 0), (0, 1), (1, 2), (1, 3)}, {(0, 0), (1, 1), (0, 2), (1, 3)}),
        ("barrier", 2, {(0, 0), (1, 0)}, {(0, 0), (1, 0)}),
    ],
)
def test_what_each_collective_holds_and_owes(
    collective: str, ranks: int, before: set[tuple[int, int]], after: set[tuple[int, int]]
) -> None:
    from pycoll import _core

    pieces = {"all_to_all": 4, "barrier": 1}.get(collective, 2)
    root = 1 if collective in ("broadcast", "reduce", "gather", "scatter") else 0
    held, owed = set(), set()
    for rank in range(ranks):
        layout = _core.piece_layout(collective, ranks, pieces, root, rank)
        held |= {(rank, piece) for piece, (index, _) in enumerate(layout) if index >= 0}
        owed |= {(rank, piece) for piece, (_, index) in enumerate(layout) if index >= 0}
        for side in (0, 1):  # a buffer's pieces are numbered without gaps, in order of their place
            indices = sorted(entry[side] for entry in layout if entry[side] >= 0)
            assert indices == list(range(len(indices)))
    assert held == before
    assert owed == after


def test_all_to_all_places_blocks_by_source() -> None:
    from pycoll import _core

    # 3 ranks, 2 pieces a block: rank 1 receives block (src, 1) = pieces 2 * (3 * src + 1) + {0, 1}, by src.
    layout = _core.piece_layout("all_to_all", 3, 18, 0, 1)
    assert {piece: index for piece, (_, index) in enumerate(layout) if index >= 0} == {
        2: 0,
        3: 1,
        8: 2,
        9: 3,
        14: 4,
        15: 5,
    }
    assert [piece for piece, (index, _) in enumerate(layout) if index >= 0] == [6, 7, 8, 9, 10, 11]


# ---- the report


def test_report() -> None:
    report = make([(0, 0, 2, 0, True), (0, 1, 2, 0, True), (3, 2, 0, 0, False), (3, 2, 1, 0, False)]).verify()
    assert (report.rounds, report.depth, report.transfers, report.pieces) == (4, 2, 4, 1)
    assert (report.max_send_ports, report.max_recv_ports) == (2, 2)
    assert report.pieces_sent == (1, 1, 2)
    assert report.pieces_received == (1, 1, 2)
    assert report.bytes_received(10) == (10.0, 10.0, 20.0)
    assert str(report).startswith("valid: 4 transfers in 4 rounds, depth 2; ")


def test_ports_are_peers_not_pieces() -> None:
    report = pycoll.build("ring", ranks=3, pieces=12).verify()
    assert report.max_send_ports == report.max_recv_ports == 1


def test_an_empty_schedule_of_one_rank_is_valid() -> None:
    report = make([], ranks=1).verify()
    assert (report.rounds, report.depth, report.pieces_sent) == (0, 0, (0,))


def test_verify_is_fast() -> None:
    """Well under a second each; the limit leaves room for a busy machine."""
    for name, collective, ranks in (("direct", "all_to_all", 64), ("ring", "allreduce", 64)):
        schedule = pycoll.build(name, collective=collective, ranks=ranks)
        start = perf_counter()
        schedule.verify()
        assert perf_counter() - start < 1.0


# ---- a model of its own


def model_accepts(schedule: pycoll.Schedule) -> bool:
    """The rules once more, with multisets of contributions in place of bits."""
    from pycoll import _core

    c = (schedule.collective, schedule.ranks, schedule.pieces, schedule.root)
    layouts = [_core.piece_layout(*c, rank) for rank in range(schedule.ranks)]
    held: dict[tuple[int, int], Counter[int]] = {}
    complete: dict[int, Counter[int]] = {piece: Counter() for piece in range(schedule.pieces)}
    for rank, layout in enumerate(layouts):
        for piece, (index, _) in enumerate(layout):
            held[rank, piece] = Counter([rank] if index >= 0 else [])
            complete[piece] += held[rank, piece]
    rounds: dict[int, list[Row]] = {}
    for row in schedule.transfers.tolist():
        rounds.setdefault(row[0], []).append(row)
    for _, rows in sorted(rounds.items()):
        before = dict(held)
        written: dict[tuple[int, int], list[bool]] = {}
        for _, src, dst, piece, reduce in rows:
            value = before[src, piece]
            actions = written.setdefault((dst, piece), [])
            actions.append(reduce)
            if src == dst or not value or (len(actions) > 1 and not all(actions)):
                return False
            if reduce:
                if not before[dst, piece]:
                    return False
                held[dst, piece] = held[dst, piece] + value
                if max(held[dst, piece].values()) > 1:
                    return False
            elif value != complete[piece]:
                return False
            else:
                held[dst, piece] = value
    return all(
        held[rank, piece] == complete[piece]
        for rank, layout in enumerate(layouts)
        for piece, (_, index) in enumerate(layout)
        if index >= 0
    )


def accepts(schedule: pycoll.Schedule) -> bool:
    try:
        schedule.verify()
    except pycoll.ScheduleError as error:
        text = str(error)
    else:
        return True
    assert re.search(r"round -?\d+, transfer \d+ \((copy|reduce) of piece|after the last round", text)
    return False


@st.composite
def built(draw: st.DrawFn) -> tuple[pycoll.Schedule, list[Row]]:
    name, collective = draw(st.sampled_from(CASES))
    ranks = draw(st.sampled_from([n for n in range(2, 8) if pycoll.algorithms()[name].accepts(n)]))
    rooted = collective in ("broadcast", "reduce", "gather", "scatter")
    root = draw(st.integers(0, ranks - 1)) if rooted else 0
    schedule = pycoll.build(name, collective=collective, ranks=ranks, root=root)
    return schedule, schedule.transfers.tolist()


def changed(schedule: pycoll.Schedule, rows: list[Row]) -> pycoll.Schedule:
    return pycoll.Schedule.from_transfers(
        rows,
        collective=schedule.collective,
        ranks=schedule.ranks,
        pieces=schedule.pieces,
        root=schedule.root,
    )


@settings(max_examples=200, deadline=None)
@given(built(), st.data())
def test_no_transfer_may_be_dropped(case: tuple[pycoll.Schedule, list[Row]], data: st.DataObject) -> None:
    schedule, rows = case
    del rows[data.draw(st.integers(0, len(rows) - 1))]
    assert not accepts(changed(schedule, rows))


@settings(max_examples=200, deadline=None)
@given(built(), st.data())
def test_no_transfer_may_be_doubled(case: tuple[pycoll.Schedule, list[Row]], data: st.DataObject) -> None:
    schedule, rows = case
    rows.append(data.draw(st.sampled_from(rows)))
    assert not accepts(changed(schedule, rows))


@settings(max_examples=200, deadline=None)
@given(built(), st.data())
def test_no_reduce_may_happen_again_later(
    case: tuple[pycoll.Schedule, list[Row]], data: st.DataObject
) -> None:
    schedule, rows = case
    reduces = [row for row in rows if row[4]]
    if reduces:
        _, src, dst, piece, _ = data.draw(st.sampled_from(reduces))
        assert not accepts(changed(schedule, [*rows, (schedule.rounds, src, dst, piece, True)]))


@settings(max_examples=600, deadline=None)
@given(built(), st.data())
def test_mutants_are_judged_as_the_model_judges_them(
    case: tuple[pycoll.Schedule, list[Row]], data: st.DataObject
) -> None:
    """Reversed, of a wrong piece, of the other action, moved in time, redirected, with rounds swapped."""
    schedule, rows = case
    index = data.draw(st.integers(0, len(rows) - 1))
    round_, src, dst, piece, reduce = rows[index]
    kind = data.draw(st.sampled_from(["reverse", "piece", "action", "round", "src", "dst", "swap rounds"]))
    other_rank = data.draw(st.integers(0, schedule.ranks - 1))
    other_round = data.draw(st.integers(0, schedule.rounds))
    if kind == "swap rounds":
        swapped = {round_: other_round, other_round: round_}
        rows = [(swapped.get(row[0], row[0]), *row[1:]) for row in rows]
    else:
        rows[index] = {
            "reverse": (round_, dst, src, piece, reduce),
            "piece": (round_, src, dst, data.draw(st.integers(0, schedule.pieces - 1)), reduce),
            "action": (round_, src, dst, piece, not reduce),
            "round": (other_round, src, dst, piece, reduce),
            "src": (round_, other_rank, dst, piece, reduce),
            "dst": (round_, src, other_rank, piece, reduce),
        }[kind]
    mutant = changed(schedule, rows)
    assert accepts(mutant) == model_accepts(mutant)


def test_the_model_accepts_what_is_built() -> None:
    for name, collective in CASES:
        ranks = 6 if pycoll.algorithms()[name].accepts(6) else 8
        assert model_accepts(pycoll.build(name, collective=collective, ranks=ranks))


@pytest.mark.parametrize("kind", ["reverse", "piece", "swap rounds"])
def test_every_such_mutant_of_a_ring_is_rejected(kind: str) -> None:
    """In a ring each reduce but the last of its block has just one place and one time."""
    schedule = pycoll.build("ring", ranks=5)
    for index, (round_, src, dst, piece, reduce) in enumerate(schedule.transfers.tolist()):
        rows = schedule.transfers.tolist()
        if kind == "reverse":
            rows[index] = (round_, dst, src, piece, reduce)
        elif kind == "piece":
            rows[index] = (round_, src, dst, (piece + 1) % 5, reduce)
        else:
            rows = [({round_: round_ + 1, round_ + 1: round_}.get(row[0], row[0]), *row[1:]) for row in rows]
            if round_ == schedule.rounds - 1:
                continue
        assert not accepts(changed(schedule, rows)), (index, rows[index])
