"""Schedule.draw."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import pycoll


def texts(schedule: pycoll.Schedule) -> list[str]:
    axes = schedule.draw().axes[0]
    return [text.get_text() for text in axes.texts if text.get_text()]


def test_every_transfer_is_named_in_a_small_picture() -> None:
    schedule = pycoll.build("ring", ranks=4)
    shown = texts(schedule)
    expected = [f"{'+' if t['reduce'] else ''}{t['piece']}" for t in schedule.transfers]
    assert sorted(shown) == sorted(expected)


def test_pieces_of_one_message_share_a_label() -> None:
    assert texts(pycoll.build("direct", ranks=2, pieces=4)) == ["+0–3", "+0–3"]
    rows = [(0, 0, 1, piece, False) for piece in (0, 1, 2, 5, 7, 8, 11)]
    assert texts(pycoll.Schedule.from_transfers(rows, collective="broadcast", ranks=2)) == ["0–2…11"]
    assert texts(pycoll.Schedule.from_transfers(rows[:4], collective="broadcast", ranks=2)) == ["0–2,5"]


def test_title_and_axes() -> None:
    axes = pycoll.build("binomial_tree", collective="gather", ranks=6, root=2).draw().axes[0]
    assert axes.get_title(loc="left") == "binomial tree: gather, root 2\nn = 6 ranks, K = 6 pieces, 3 rounds"
    assert [label.get_text() for label in axes.get_yticklabels()] == [f"rank {rank}" for rank in range(6)]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "1", "2"]
    axes = pycoll.build("ring", ranks=1).draw().axes[0]
    assert axes.get_title(loc="left") == "ring: allreduce\nn = 1 rank, K = 1 piece, 0 rounds"


@pytest.mark.parametrize(
    ("name", "ranks", "pieces"),
    [
        ("ring", 1, None),
        ("ring", 17, None),
        ("direct", 64, None),
        ("ring", 64, None),
        ("binary_tree", 40, 30),
    ],
)
def test_pictures_of_any_size(name: str, ranks: int, pieces: int | None, tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    figure = pycoll.build(name, ranks=ranks, pieces=pieces).draw(path, dpi=40)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert all(2 <= size <= 45 for size in figure.get_size_inches())


def test_rounds_without_transfers_take_no_room() -> None:
    schedule = pycoll.Schedule.from_transfers(
        [(5, 1, 0, 0, True), (10**8, 0, 1, 0, False)], collective="allreduce", ranks=2
    )
    labels = schedule.draw().axes[0].get_xticklabels()
    assert [label.get_text() for label in labels] == ["5", "100000000"]


def test_a_wrong_schedule_can_be_drawn_but_not_one_out_of_range() -> None:
    pycoll.Schedule.from_transfers([(0, 0, 1, 0, True)], collective="allreduce", ranks=3).draw()
    out = pycoll.Schedule.from_transfers([(0, 0, 5, 0, True)], collective="allreduce", ranks=3)
    with pytest.raises(pycoll.ScheduleError, match="destination rank 5 is out of range"):
        out.draw()


def test_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = pycoll.build("ring", ranks=2)
    with pytest.raises(pycoll.InvalidArgument, match=r"cannot draw to .*picture\.foo"):
        schedule.draw(tmp_path / "picture.foo")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(pycoll.Unsupported, match="needs matplotlib, which is not installed: pip install"):
        schedule.draw()
