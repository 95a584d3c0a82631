"""Algorithms that are Python functions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import pycoll
from pycoll import schedule as registry


@pytest.fixture(autouse=True)
def _forget_registrations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})


def star(collective: str, ranks: int, pieces: int, root: int) -> Iterator[tuple[int, int, int, int, bool]]:
    """The root serves everyone.

    More prose.
    """
    for dst in range(ranks):
        for piece in range(pieces):
            if dst != root:
                yield (
                    (piece, root, dst, piece, False)
                    if collective == "broadcast"
                    else (0, dst, root, piece, True)
                )


def test_registered_function_builds_by_name() -> None:
    assert pycoll.algorithm(collectives=["broadcast", "reduce"], source="folklore")(star) is star
    info = pycoll.algorithms()["star"]
    assert info.description == "The root serves everyone."
    assert (info.collectives, info.source, info.builtin) == (("broadcast", "reduce"), "folklore", False)
    for collective in info.collectives:
        for root in range(5):
            schedule = pycoll.build("star", collective=collective, ranks=5, pieces=3, root=root)
            assert schedule.verify().depth == 1
            assert schedule.algorithm == "star"
            assert schedule.root == root
            order = [(t["round"], t["piece"]) for t in schedule.transfers]
            assert order == sorted(order)
    assert pycoll.build("star", collective="broadcast", ranks=5).pieces == 1
    assert not registry.is_builtin("star")
    assert registry.is_builtin("ring")


def test_a_function_is_given_only_what_it_names_and_its_parameters() -> None:
    @pycoll.algorithm(collectives=["allreduce"], name="two", pieces=lambda ranks: 2 * ranks, description="d")
    def build_two(pieces: int, start: int = 0) -> list[tuple[int, int, int, int, str]]:
        return [
            (start, src, dst, piece, "reduce") for piece in range(pieces) for src, dst in ((0, 1), (1, 0))
        ]

    made = pycoll.build("two", ranks=2, start=4)
    assert made.pieces == 4
    assert made.rounds == 5
    assert made.params == {"start": "4"}
    with pytest.raises(pycoll.InvalidArgument, match="'two' has no parameter 'stop'; it takes start"):
        pycoll.build("two", ranks=2, stop=4)


def test_a_function_may_return_a_schedule() -> None:
    @pycoll.algorithm(collectives=["allreduce"])
    def like_ring(collective: str, ranks: int, pieces: int) -> pycoll.Schedule:
        return pycoll.build("ring", collective=collective, ranks=ranks, pieces=pieces)

    @pycoll.algorithm(collectives=["allreduce"])
    def of_another_size(ranks: int) -> pycoll.Schedule:
        return pycoll.build("ring", ranks=ranks + 1)

    assert pycoll.build("like_ring", ranks=4, pieces=4) == pycoll.build("ring", ranks=4)
    with pytest.raises(pycoll.ScheduleError, match=r"'of_another_size' was asked for .* built"):
        pycoll.build("of_another_size", ranks=4)


def test_what_a_function_builds_is_verified() -> None:
    @pycoll.algorithm(collectives=["allreduce"])
    def forgetful(ranks: int) -> list[tuple[int, int, int, int, bool]]:
        return [(0, 1, 0, 0, True)]

    with pytest.raises(pycoll.ScheduleError, match="rank 1 is owed piece 0 complete but lacks"):
        pycoll.build("forgetful", ranks=2)


def test_restrictions() -> None:
    pycoll.algorithm(
        collectives="broadcast", name="even", accepts=lambda ranks: ranks % 2 == 0, valid_ranks="even"
    )(star)
    assert pycoll.algorithms()["even"].accepts(4)
    assert not pycoll.algorithms()["even"].accepts(5)
    with pytest.raises(pycoll.Unsupported, match="'even' does not run on 5 ranks; it takes: even"):
        pycoll.build("even", collective="broadcast", ranks=5)
    with pytest.raises(pycoll.Unsupported, match="'even' does not do allreduce; it does broadcast"):
        pycoll.build("even", ranks=4)
    with pytest.raises(pycoll.InvalidArgument, match="'ring' is built in"):
        pycoll.algorithm(collectives=["broadcast"], name="ring")(star)
    with pytest.raises(pycoll.InvalidArgument, match="no collective 'brodcast'"):
        pycoll.algorithm(collectives=["brodcast"])
    with pytest.raises(pycoll.InvalidArgument, match="root must be between"):
        pycoll.build("even", collective="broadcast", ranks=4, root=4)
    with pytest.raises(pycoll.InvalidArgument, match=r"there are: ring, .*, even"):
        pycoll.build("odd", ranks=4)


def test_a_name_may_be_registered_again() -> None:
    for rounds in (1, 2):

        @pycoll.algorithm(collectives=["broadcast"], name="again")
        def build_again(rounds: int = rounds) -> list[tuple[int, int, int, int, bool]]:
            return [(rounds - 1, 0, 1, 0, False)]

        assert pycoll.build("again", collective="broadcast", ranks=2).rounds == rounds
