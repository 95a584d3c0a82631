"""Every built-in algorithm, verified for many numbers of ranks, roots and pieces."""

from __future__ import annotations

import math

import numpy as np
import pytest

import pycoll

RANKS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 24, 33, 64)
ROOTED = ("broadcast", "reduce", "gather", "scatter")
BUILTIN = [
    (name, collective)
    for name, info in pycoll.algorithms().items()
    if info.builtin
    for collective in info.collectives
]


def roots(collective: str, ranks: int) -> list[int]:
    if collective not in ROOTED:
        return [0]
    return list(range(ranks)) if ranks <= 9 else [0, 1, ranks // 2, ranks - 1]


def multiple(collective: str, ranks: int) -> int:
    return {"all_to_all": ranks * ranks, "barrier": 1, "allreduce": 1, "broadcast": 1, "reduce": 1}.get(
        collective, ranks
    )


def piece_counts(collective: str, ranks: int) -> list[int | None]:
    if collective == "barrier":
        return [None, 1]
    factors = (1, 2) if collective == "all_to_all" else (1, 2, 3, 5)
    counts: list[int | None] = [None, *(factor * multiple(collective, ranks) for factor in factors)]
    if collective in ("allreduce", "broadcast", "reduce"):
        counts += [ranks, 2 * ranks + 1]
    return counts


def in_order(schedule: pycoll.Schedule) -> bool:
    order = np.lexsort((schedule.transfers["piece"], schedule.transfers["round"]))
    return bool((order == np.arange(len(order))).all())


def test_what_the_registry_holds() -> None:
    every = set(BUILTIN)
    for name, collectives in {
        "ring": ["allreduce", "reduce_scatter", "all_gather", "broadcast", "reduce"],
        "direct": [
            "allreduce",
            "reduce_scatter",
            "all_gather",
            "broadcast",
            "reduce",
            "gather",
            "scatter",
            "all_to_all",
            "barrier",
        ],
        "direct_two_shot": ["allreduce"],
        "binary_tree": ["allreduce", "broadcast", "reduce"],
        "double_binary_tree": ["allreduce", "broadcast", "reduce"],
        "recursive_doubling": ["allreduce", "all_gather"],
        "recursive_halving_doubling": ["allreduce", "reduce_scatter", "all_gather"],
        "bruck": ["all_gather"],
        "pairwise": ["all_to_all"],
        "binomial_tree": ["broadcast", "reduce", "gather", "scatter", "barrier"],
    }.items():
        assert {(name, collective) for collective in collectives} <= every
    for info in [info for info in pycoll.algorithms().values() if info.builtin]:
        assert info.description
        assert info.source
        assert info.valid_ranks
        assert info.accepts(8)
        assert not info.accepts(0)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize(("name", "collective"), BUILTIN)
def test_is_valid(name: str, collective: str, ranks: int) -> None:
    if not pycoll.algorithms()[name].accepts(ranks):
        with pytest.raises(pycoll.Unsupported, match="does not run on"):
            pycoll.build(name, collective=collective, ranks=ranks)
        return
    for pieces in piece_counts(collective, ranks):
        for root in roots(collective, ranks):
            schedule = pycoll.build(name, collective=collective, ranks=ranks, pieces=pieces, root=root)
            report = schedule.verify()
            assert schedule.algorithm == name
            assert (schedule.collective, schedule.ranks, schedule.root) == (collective, ranks, root)
            assert schedule.pieces % multiple(collective, ranks) == 0
            assert pieces is None or schedule.pieces == pieces
            assert report.rounds == schedule.rounds
            assert in_order(schedule)
            if ranks == 1:
                assert len(schedule.transfers) == 0


@pytest.mark.parametrize("ranks", [2, 3, 8, 17])
def test_ring_moves_the_least_data(ranks: int) -> None:
    report = pycoll.build("ring", ranks=ranks).verify()
    assert report.rounds == report.depth == 2 * (ranks - 1)
    assert report.pieces_sent == report.pieces_received == (2 * (ranks - 1),) * ranks
    assert report.max_send_ports == report.max_recv_ports == 1
    assert report.bytes_sent(ranks * 100) == (2 * (ranks - 1) * 100.0,) * ranks


@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
def test_a_chain_is_pipelined(collective: str) -> None:
    report = pycoll.build("ring", collective=collective, ranks=5, pieces=10).verify()
    assert report.rounds == 10 + 5 - 2
    assert report.depth == 4


@pytest.mark.parametrize("collective", ["allreduce", "all_to_all", "barrier", "gather"])
def test_direct_takes_one_round(collective: str) -> None:
    assert pycoll.build("direct", collective=collective, ranks=6).rounds == 1
    assert pycoll.build("direct_two_shot", ranks=6).rounds == 2


@pytest.mark.parametrize("ranks", RANKS[1:])
def test_logarithmic_rounds(ranks: int) -> None:
    steps = math.ceil(math.log2(ranks))
    floor = int(math.log2(ranks))
    folded = 0 if ranks == 1 << floor else 2

    def rounds(name: str, collective: str) -> int:
        return pycoll.build(name, collective=collective, ranks=ranks).rounds

    assert rounds("binary_tree", "broadcast") == floor
    assert rounds("binomial_tree", "broadcast") == steps
    assert rounds("binomial_tree", "barrier") == 2 * steps
    assert rounds("double_binary_tree", "allreduce") <= 2 * steps
    assert rounds("recursive_doubling", "allreduce") == floor + folded
    assert rounds("recursive_halving_doubling", "allreduce") == 2 * floor + folded
    assert rounds("bruck", "all_gather") == steps


@pytest.mark.parametrize("ranks", [2, 4, 8, 16, 32, 64])
def test_recursive_halving_doubling_moves_the_least_data(ranks: int) -> None:
    report = pycoll.build("recursive_halving_doubling", ranks=ranks).verify()
    assert report.pieces_sent == (2 * (ranks - 1),) * ranks
    assert report.max_send_ports == 1


@pytest.mark.parametrize("ranks", RANKS[2:])
@pytest.mark.parametrize("collective", ["reduce", "broadcast", "allreduce"])
def test_double_binary_tree_shares_the_work(ranks: int, collective: str) -> None:
    """No rank but the root has children in both trees, and none moves more than the buffer each way."""
    schedule = pycoll.build("double_binary_tree", collective=collective, ranks=ranks)
    report = schedule.verify()
    each_way = 2 if collective == "allreduce" else 1
    assert max(report.pieces_sent) <= 2 * each_way
    assert max(report.pieces_received) <= 2 * each_way
    parents = [
        {(t["dst"] if t["reduce"] else t["src"]) for t in schedule.transfers if t["piece"] == piece}
        for piece in (0, 1)
    ]
    assert parents[0] & parents[1] <= {0}


@pytest.mark.parametrize("ranks", [2, 3, 7, 8])
def test_pairwise_uses_one_port(ranks: int) -> None:
    report = pycoll.build("pairwise", collective="all_to_all", ranks=ranks).verify()
    assert report.rounds == ranks - 1
    assert report.max_send_ports == report.max_recv_ports == 1


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (
            {"algorithm": "rng", "ranks": 4},
            pycoll.InvalidArgument,
            "no algorithm 'rng'; there are: ring, direct",
        ),
        (
            {"algorithm": "bruck", "ranks": 4},
            pycoll.Unsupported,
            "'bruck' does not do allreduce; these do: ring",
        ),
        (
            {"algorithm": "ring", "ranks": 4, "collective": "sum"},
            pycoll.InvalidArgument,
            "no collective 'sum'; there are: allreduce",
        ),
        (
            {"algorithm": "ring", "ranks": 0},
            pycoll.InvalidArgument,
            "ranks must be between 1 and 32768, not 0",
        ),
        (
            {"algorithm": "direct", "ranks": -3},
            pycoll.InvalidArgument,
            "ranks must be between 1 and 32768, not -3",
        ),
        (
            {"algorithm": "direct", "ranks": 10**6, "collective": "all_to_all"},
            pycoll.InvalidArgument,
            "ranks must be between",
        ),
        ({"algorithm": "ring", "ranks": 2**40}, pycoll.InvalidArgument, "does not fit 32 bits"),
        ({"algorithm": "ring", "ranks": 2.5}, pycoll.InvalidArgument, "ranks must be an integer, not 2.5"),
        ({"algorithm": "ring", "ranks": 4, "pieces": 0}, pycoll.InvalidArgument, "pieces must be at least 1"),
        (
            {"algorithm": "ring", "ranks": 4, "pieces": 2**30},
            pycoll.InvalidArgument,
            "pieces must be between 1",
        ),
        (
            {"algorithm": "ring", "ranks": 4, "pieces": 6, "collective": "all_gather"},
            pycoll.InvalidArgument,
            "with 4 ranks, pieces must be a multiple of 4, not 6",
        ),
        (
            {"algorithm": "ring", "ranks": 4, "root": 4, "collective": "broadcast"},
            pycoll.InvalidArgument,
            "root must be between 0 and 3, not 4",
        ),
        (
            {"algorithm": "ring", "ranks": 4, "root": 1},
            pycoll.InvalidArgument,
            "takes no root, but root is 1",
        ),
        (
            {"algorithm": "direct", "ranks": 4, "pieces": 2, "collective": "barrier"},
            pycoll.InvalidArgument,
            "pieces must be 1",
        ),
        (
            {"algorithm": "ring", "ranks": 4, "late": 1},
            pycoll.InvalidArgument,
            "no parameter 'late'; it takes none",
        ),
    ],
)
def test_what_build_refuses(arguments: dict[str, object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text.replace("(", r"\(")):
        pycoll.build(**arguments)  # type: ignore[arg-type]
