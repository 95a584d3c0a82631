"""The Schedule object: transfers in and out, JSON, files, equality, hash."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pycoll

INT32 = st.integers(-(2**31), 2**31 - 1)
ROW = st.tuples(INT32, INT32, INT32, INT32, st.booleans())


def ring() -> pycoll.Schedule:
    return pycoll.build("ring", ranks=3)


# ---- transfers


def test_transfers_is_a_read_only_structured_array() -> None:
    schedule = ring()
    transfers = schedule.transfers
    assert transfers.dtype.names == ("round", "src", "dst", "piece", "reduce")
    assert transfers["reduce"].dtype == np.bool_
    assert transfers["round"].dtype == np.int32
    assert transfers[0].tolist() == (0, 1, 2, 0, True)
    assert len(transfers) == 12
    with pytest.raises(ValueError, match="read-only"):
        transfers["src"][0] = 2
    del schedule
    assert transfers[-1].tolist() == (3, 0, 1, 2, False)  # the array keeps what it shows alive


def test_from_transfers_takes_rows_and_arrays() -> None:
    expected = ring()
    rows = expected.transfers.tolist()
    described = {"collective": "allreduce", "ranks": 3, "pieces": 3}
    reordered = np.zeros(
        len(rows), dtype=[("reduce", "?"), ("dst", "i8"), ("src", "i8"), ("piece", "i8"), ("round", "i8")]
    )
    for field in ("round", "src", "dst", "piece", "reduce"):
        reordered[field] = expected.transfers[field]
    for transfers in (
        rows,
        iter(rows),
        [list(row) for row in rows],
        [(*row[:4], "reduce" if row[4] else "copy") for row in rows],
        [(*row[:4], int(row[4])) for row in rows],
        np.array(rows),
        expected.transfers,
        expected.transfers[:],
        reordered,
    ):
        assert pycoll.Schedule.from_transfers(transfers, **described) == expected


def test_from_transfers_keeps_the_order() -> None:
    rows = ring().transfers.tolist()[::-1]
    made = pycoll.Schedule.from_transfers(rows, collective="allreduce", ranks=3)
    assert made.transfers.tolist() == rows
    assert made.pieces == 3
    made.verify()


def test_pieces_default_to_the_least_that_fits() -> None:
    def pieces(collective: str, *rows: tuple[int, int, int, int, bool]) -> int:
        return pycoll.Schedule.from_transfers(rows, collective=collective, ranks=3).pieces

    assert pieces("allreduce") == 1
    assert pieces("allreduce", (0, 0, 1, 4, True)) == 5
    assert pieces("all_gather") == 3
    assert pieces("all_gather", (0, 1, 0, 3, False)) == 6
    assert pieces("all_to_all", (0, 1, 0, 9, False)) == 18


@pytest.mark.parametrize(
    ("transfers", "text"),
    [
        ([(0, 0, 1, 0)], r"transfers\[0\]: must be \(round, src, dst, piece, reduce\), not \(0, 0, 1, 0\)"),
        ([(0, 0, 1, 0, True), 7], r"transfers\[1\]: must be"),
        (["01234"], r"transfers\[0\]: must be"),
        ([(0, 0, 1.0, 0, True)], r"transfers\[0\]: dst must be an integer, not 1.0"),
        ([(0, True, 1, 0, True)], r"transfers\[0\]: src must be an integer, not True"),
        ([(2**31, 0, 1, 0, True)], r"transfers\[0\]: round is 2147483648, which does not fit 32 bits"),
        ([(0, 0, 1, 0, "sum")], r"transfers\[0\]: reduce must be true, false, 'copy' or 'reduce', not 'sum'"),
        ([(0, 0, 1, 0, 2)], r"transfers\[0\]: reduce must be"),
        ([(0, 0, 1, 0, None)], r"transfers\[0\]: reduce must be"),
        ([(0, 0, 1, 0, [])], r"transfers\[0\]: reduce must be"),
        (np.zeros(1, dtype=[("round", "i4"), ("src", "i4")]), "lacks the field 'dst'; it needs round, src"),
    ],
)
def test_malformed_transfers(transfers: Any, text: str) -> None:
    with pytest.raises(pycoll.ScheduleError, match=text):
        pycoll.Schedule.from_transfers(transfers, collective="allreduce", ranks=2)


def test_arguments_that_do_not_fit() -> None:
    with pytest.raises(pycoll.InvalidArgument, match="multiple of 2, not 3"):
        pycoll.Schedule.from_transfers([], collective="all_gather", ranks=2, pieces=3)
    with pytest.raises(pycoll.InvalidArgument, match="no collective 'sum'"):
        pycoll.Schedule.from_transfers([], collective="sum", ranks=2)
    with pytest.raises(pycoll.InvalidArgument, match="ranks must be between"):
        pycoll.Schedule.from_transfers([], collective="allreduce", ranks=0)


# ---- equality and hash


def test_equality_is_of_what_is_done() -> None:
    schedule = ring()
    rows = schedule.transfers.tolist()
    renamed = pycoll.Schedule.from_transfers(
        rows, collective="allreduce", ranks=3, algorithm="mine", params={"a": 1}
    )
    assert renamed == schedule
    assert renamed.hash == schedule.hash
    assert hash(renamed) == hash(schedule)
    assert len({renamed, schedule}) == 1
    others = [
        pycoll.Schedule.from_transfers(rows, collective="allreduce", ranks=4, pieces=3),
        pycoll.Schedule.from_transfers(rows, collective="allreduce", ranks=3, pieces=4),
        pycoll.Schedule.from_transfers(rows, collective="reduce_scatter", ranks=3, pieces=3),
        pycoll.Schedule.from_transfers(rows, collective="reduce", ranks=3, pieces=3),
        pycoll.Schedule.from_transfers(rows, collective="reduce", ranks=3, pieces=3, root=1),
        pycoll.Schedule.from_transfers(rows[:-1], collective="allreduce", ranks=3, pieces=3),
        pycoll.Schedule.from_transfers(rows[::-1], collective="allreduce", ranks=3, pieces=3),
    ]
    for index in range(len(rows)):
        for field in range(5):
            row = list(rows[index])
            row[field] = not row[field] if field == 4 else row[field] + 1
            changed = [*rows[:index], row, *rows[index + 1 :]]
            others.append(pycoll.Schedule.from_transfers(changed, collective="allreduce", ranks=3, pieces=9))
    for other in others:
        assert other != schedule
    assert len({other.hash for other in [schedule, *others]}) == len(others) + 1
    assert schedule != "ring"


def test_the_hash_is_the_same_on_every_machine() -> None:
    """Ranks compare it across machines and versions: these figures must never change."""
    assert pycoll.Schedule.from_transfers([], collective="allreduce", ranks=1).hash == 0xC01CBCFC887FBD49
    assert ring().hash == 0x4B4365BBD709CB18
    pairwise = pycoll.build("pairwise", collective="all_to_all", ranks=4)
    assert pairwise.hash == 0x287F32C6C36992B1
    scatter = pycoll.build("binomial_tree", collective="scatter", ranks=5, root=2)
    assert scatter.hash == 0xB15A64A379709015


def test_copies_and_pickles() -> None:
    schedule = pycoll.build("binomial_tree", collective="gather", ranks=5, root=3, pieces=10)
    for twin in (copy.copy(schedule), copy.deepcopy(schedule), pickle.loads(pickle.dumps(schedule))):
        assert type(twin) is pycoll.Schedule
        assert twin == schedule
        assert (twin.algorithm, twin.params) == (schedule.algorithm, schedule.params)


def test_repr() -> None:
    assert repr(ring()) == "<Schedule 'ring': allreduce, ranks=3, pieces=3, rounds=4, transfers=12>"
    rooted = pycoll.build("direct", collective="scatter", ranks=2, root=1)
    assert repr(rooted) == "<Schedule 'direct': scatter, ranks=2, pieces=2, root=1, rounds=1, transfers=1>"


# ---- JSON


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(ROW, max_size=20),
    kind=st.sampled_from(["allreduce", "broadcast", "all_gather", "all_to_all", "reduce_scatter"]),
    ranks=st.integers(1, 9),
    factor=st.integers(1, 3),
    name=st.text(max_size=20),
    params=st.dictionaries(st.text(max_size=9), st.text(max_size=9), max_size=3),
)
def test_json_round_trip(
    rows: list[tuple[int, int, int, int, bool]],
    kind: str,
    ranks: int,
    factor: int,
    name: str,
    params: dict[str, str],
) -> None:
    schedule = pycoll.Schedule.from_transfers(
        rows,
        collective=kind,
        ranks=ranks,
        pieces=factor * ranks * ranks,
        root=ranks - 1 if kind == "broadcast" else 0,
        algorithm=name,
        params=params,
    )
    text = schedule.to_json()
    twin = pycoll.Schedule.from_json(text)
    assert twin == schedule
    assert twin.hash == schedule.hash
    assert (twin.algorithm, twin.params) == (name, params)
    assert twin.to_json() == text


def test_the_json_is_what_the_docs_say() -> None:
    text = pycoll.build("direct", collective="broadcast", ranks=2, root=1).to_json()
    assert text == (
        "{\n"
        '  "pycoll_schedule": 1,\n'
        '  "algorithm": "direct",\n'
        '  "collective": "broadcast",\n'
        '  "ranks": 2,\n'
        '  "pieces": 1,\n'
        '  "root": 1,\n'
        '  "params": {},\n'
        '  "transfers": [\n'
        '    [0, 1, 0, 0, "copy"]\n'
        "  ]\n"
        "}\n"
    )


def edit(change: Callable[[dict[str, Any]], object]) -> str:
    document = json.loads(ring().to_json())
    change(document)
    return json.dumps(document)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ('{"ranks": ' + "9" * 5000 + "}", "not valid JSON|field"),
        ("[]", "a schedule is a JSON object"),
        ('{"ranks": 2, "ranks": 3}', "field 'ranks' appears twice"),
        (edit(lambda d: d.pop("transfers")), "field 'transfers' is missing"),
        (edit(lambda d: d.pop("pycoll_schedule")), "field 'pycoll_schedule' is missing"),
        (
            edit(lambda d: d.update(pycoll_schedule=2)),
            "field 'pycoll_schedule' is 2: this version .* reads format 1",
        ),
        (edit(lambda d: d.update(ranks="3")), "field 'ranks' must be an integer, not \"3\""),
        (edit(lambda d: d.update(ranks=True)), "field 'ranks' must be an integer, not true"),
        (edit(lambda d: d.update(ranks=3.0)), "field 'ranks' must be an integer, not 3.0"),
        (edit(lambda d: d.update(ranks=2**40)), "ranks is 1099511627776, which does not fit 32 bits"),
        (edit(lambda d: d.update(algorithm=None)), "field 'algorithm' must be text, not null"),
        (edit(lambda d: d.update(params=[])), r"field 'params' must be an object, not \[\]"),
        (edit(lambda d: d.update(params={"late": 3})), "field 'params': 'late' must be text, not 3"),
        (edit(lambda d: d.update(transfers={})), "field 'transfers' must be a list, not {}"),
        (edit(lambda d: d.update(transfers=[5])), r"transfers\[0\]: must be a list, not 5"),
        (edit(lambda d: d["transfers"].append([0, 0, 1])), r"transfers\[12\]: must be \(round"),
        (
            edit(lambda d: d["transfers"][2].__setitem__(1, "x")),
            r"transfers\[2\]: src must be an integer, not 'x'",
        ),
        (edit(lambda d: d["transfers"][2].__setitem__(4, "add")), r"transfers\[2\]: reduce must be"),
        (
            edit(lambda d: d.update(comment="x")),
            "there is no field 'comment'; the fields are pycoll_schedule, ",
        ),
        (edit(lambda d: d.update(collective="sum")), "there is no collective 'sum'"),
        (edit(lambda d: d.update(ranks=0)), "ranks must be between 1 and"),
        (edit(lambda d: d.update(root=1)), "takes no root"),
        (edit(lambda d: d.update(pieces=0)), "pieces must be between 1"),
    ],
)
def test_malformed_json(text: str, message: str) -> None:
    with pytest.raises(pycoll.ScheduleError, match=message):
        pycoll.Schedule.from_json(text)


# ---- files


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "ring.json"
    ring().save(path)
    assert pycoll.Schedule.load(path) == ring()
    assert pycoll.Schedule.load(str(path)) == ring()
    path.write_text("{}")
    with pytest.raises(pycoll.ScheduleError, match=r"ring\.json: field 'pycoll_schedule' is missing"):
        pycoll.Schedule.load(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(pycoll.ScheduleError, match=r"ring\.json: "):
        pycoll.Schedule.load(path)
    with pytest.raises(
        pycoll.InvalidArgument, match=r"ring\.yaml: a schedule's file ends in \.json or \.xml"
    ):
        pycoll.Schedule.load(tmp_path / "ring.yaml")
    with pytest.raises(FileNotFoundError):
        pycoll.Schedule.load(tmp_path / "none.json")
