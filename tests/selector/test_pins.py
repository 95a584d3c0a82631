"""PYCOLL_ALGO: what it means, what is wrong with it, and that it holds for every way to make a group."""

from __future__ import annotations

import numpy as np
import pytest

import pycoll
from pycoll.selection.pins import parse_pins


def _rows(text, ranks=4):
    return [(row.collective, row.begin, row.end, row.dtypes, row.way) for row in parse_pins(text, ranks).rows]


def test_rules_are_read():
    assert _rows("allreduce:0-64k=direct,allreduce:64k-=ring/16") == [
        ("allreduce", 0, 65536, "any", "direct"),
        ("allreduce", 65536, None, "any", "ring/16"),
    ]
    assert _rows(" broadcast = binomial_tree , ") == [("broadcast", 0, None, "any", "binomial_tree")]
    assert _rows("all_gather:1m:narrow=ring") == [("all_gather", 2**20, 2**20 + 1, "narrow", "ring")]
    assert _rows("reduce:1k-2MiB=binary_tree") == [("reduce", 1024, 2 * 2**20, "any", "binary_tree")]
    assert all(row.basis == "pin" for row in parse_pins("allreduce=ring").rows)


@pytest.mark.parametrize(
    ("text", "rule", "column", "words"),
    [
        ("allred:0-64k=ring", 1, 1, "no collective 'allred'; there are: allreduce"),
        ("allreduce=direct,broadcast=rng", 2, 28, "no algorithm 'rng'; there are: ring"),
        ("allreduce:64q-=ring", 1, 11, "'64q'"),
        ("allreduce:64k-1k=ring", 1, 11, "end before they begin"),
        ("allreduce:0-64k", 1, 16, "no =ALGORITHM"),
        ("allreduce=", 1, 10, "no =ALGORITHM"),
        ("allreduce=bruck", 1, 11, "bruck does not do allreduce; these do: ring"),
        ("allreduce=ring/0", 1, 11, "positive number"),
        ("allreduce=ring,all_gather=ring/3", 2, 27, "multiple"),
    ],
)
def test_errors_name_rule_and_column(text, rule, column, words):
    with pytest.raises(pycoll.InvalidArgument) as caught:
        parse_pins(text, ranks=4)
    message = str(caught.value)
    assert f"PYCOLL_ALGO: rule {rule} " in message
    assert f"column {column}:" in message
    assert words in message


def _chosen(comm):
    value = int(comm.allreduce(np.ones(40000))[0])
    return value, comm.chosen_algorithm("allreduce", 100), comm.chosen_algorithm("allreduce", 40000)


def test_spawned_ranks_follow_pins(on_threads, monkeypatch):
    monkeypatch.setenv("PYCOLL_ALGO", "allreduce:64k-=ring/16")
    assert on_threads(3, _chosen) == [(3, "direct", "ring")] * 3


def test_jobs_follow_pins(start_job):
    job = start_job(2, _chosen, env={"PYCOLL_ALGO": "allreduce:0-64k=ring"})
    assert [outcome.value for outcome in job.outcomes().values()] == [(2, "ring", "direct")] * 2


def test_a_wrong_pin_is_said_at_init(alone, monkeypatch):
    monkeypatch.setenv("PYCOLL_ALGO", "allreduce=rng")
    with pytest.raises(pycoll.InvalidArgument, match="no algorithm 'rng'"):
        pycoll.init(group="other")


def _differing(rank):
    import os

    os.environ["PYCOLL_ALGO"] = "allreduce=ring" if rank else ""
    address = os.environ["TEST_ADDRESS"]
    pycoll.init(timeout=20, rank=rank, ranks=2, address=address)


def test_pins_that_differ_between_ranks_are_an_error_on_all(start_job):
    from tests.python.job import free_address

    job = start_job(2, _differing, init=False, env={"TEST_ADDRESS": free_address()})
    for outcome in job.outcomes().values():
        assert outcome.error == "InvalidArgument"
        assert "rank 0 has PYCOLL_ALGO=''" in outcome.text
        assert "rank 1 has PYCOLL_ALGO='allreduce=ring'" in outcome.text


def test_deterministic_groups_refuse_pins_that_change_the_order(alone, monkeypatch):
    monkeypatch.setenv("PYCOLL_ALGO", "broadcast=binomial_tree,allreduce=ring")
    pycoll.init(group="other").close()
    with pytest.raises(pycoll.InvalidArgument, match="allreduce=ring does not go with deterministic"):
        pycoll.init(group="other", deterministic=True)
    monkeypatch.setenv("PYCOLL_DETERMINISTIC", "maybe")
    with pytest.raises(pycoll.InvalidArgument, match="PYCOLL_DETERMINISTIC"):
        pycoll.init(group="other")
