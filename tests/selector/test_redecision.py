"""Groups that change their mind: a choice that is slower than predicted is tried against others, on all ranks
at the same call, and what changed is logged."""

from __future__ import annotations

import numpy as np

from pycoll import Decision, DecisionTable

#: A ring in 40,000 pieces takes far longer than the microsecond that it is said to.
SLOW = DecisionTable(
    [Decision("allreduce", 0, None, "ring/40000", basis="measured", alpha=1e-6, others=("direct",))]
)


def _train(comm, calls, table, asynchronous):
    """Sums; at which call this rank saw the choice change; what was logged; the table in the end."""
    import logging

    messages = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append((record.levelname, record.getMessage()))
    logging.getLogger("pycoll").addHandler(handler)
    comm.install(table)
    changed, wrong = None, 0
    for call in range(calls):
        x = np.full(8192, comm.rank + call, np.int64)
        if asynchronous:
            comm.allreduce(x, async_=True).wait()
        else:
            comm.allreduce(x)
        wrong += int((x != sum(rank + call for rank in range(comm.ranks))).sum())
        if changed is None and comm.chosen_algorithm("allreduce", 8192) == "direct":
            changed = call
    comm.allreduce(np.ones(1))
    return wrong, changed, messages, comm.decisions().rows[0]


def _check(results):
    assert [wrong for wrong, *_ in results] == [0] * len(results)
    changes = {changed for _, changed, _, _ in results}
    assert len(changes) == 1
    assert changes.pop() >= 24  # not at the first slow call
    rows = {(row.way, row.others, row.basis) for *_, row in results}
    assert rows == {("direct", ("ring/40000",), "measured")}
    assert all(row.alpha > 1e-6 for *_, row in results)


def test_processes_change_to_what_is_quicker_and_rank_0_says_so(on_processes):
    results = on_processes(2, _train, 400, SLOW, False)
    _check(results)
    ((level, text), *_), others = results[0][2], results[1][2]
    assert level == "WARNING"
    assert "allreduce of 0 bytes and more by ring/40000 left its prediction (1 us" in text
    assert "direct is used" in text
    assert "From collective #" in text
    assert others == []


def test_threads_change_at_the_same_call_also_in_the_background(on_threads):
    _check(on_threads(3, _train, 400, SLOW, True))


def test_a_factor_of_0_means_never(on_threads):
    table = DecisionTable(SLOW.rows, factor=0)
    for _, changed, messages, row in on_threads(2, _train, 150, table, False):
        assert changed is None
        assert messages == []
        assert row.way == "ring/40000"


def test_deterministic_groups_keep_the_same_bits_at_every_size(on_threads, monkeypatch, tmp_path):
    """The same numbers alone and as a slice of longer buffers, across sizes where a tuned group changes its
    algorithm."""
    from pycoll.selection.profile import Profile, Timing, default_path

    ways = {64: "direct", 4096: "ring", 2**18: "binary_tree", 2**20: "recursive_doubling"}
    rows = [
        Timing("allreduce", size, "float32", way, 1.0 if way == best else 2.0, 1.0 if way == best else 2.0, 5)
        for size, best in ways.items()
        for way in ("direct", "ring", "binary_tree", "recursive_doubling")
    ]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("PYCOLL_PROFILE")
    Profile.of_here(4, rows).save(default_path(4))

    def rank(comm):
        short = np.random.default_rng(comm.rank).standard_normal(16).astype(np.float32)
        results, chosen = set(), set()
        for count in (16, 1000, 65536, 2**18):
            for begin in (0, (count - 16) // 2, count - 16):
                x = np.ones(count, np.float32)
                x[begin : begin + 16] = short
                chosen.add(comm.chosen_algorithm("allreduce", count))
                results.add(comm.allreduce(x)[begin : begin + 16].tobytes())
        return results, chosen

    tuned = on_threads(4, rank)
    assert all(len(chosen) == 4 for _, chosen in tuned)  # it does change its mind
    monkeypatch.setenv("PYCOLL_DETERMINISTIC", "1")
    fixed = on_threads(4, rank)
    assert {frozenset(results) for results, _ in fixed} == {frozenset(fixed[0][0])}
    assert len(fixed[0][0]) == 1
    assert fixed[0][1] == {"direct"}
