"""Decision tables: what they say for a size, how they are merged, and that groups follow them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pycoll
from pycoll import Decision, DecisionTable
from pycoll.selection.decisions import BASES

COLLECTIVES = ("allreduce", "broadcast")


def decisions() -> st.SearchStrategy[Decision]:
    edges = st.integers(0, 40)

    def make(collective, begin, length, way, dtypes, distance, basis):
        end = None if length == 0 else begin + length
        return Decision(collective, begin, end, way, dtypes, distance, basis)

    return st.builds(
        make,
        st.sampled_from(COLLECTIVES),
        edges,
        edges,
        st.sampled_from(["direct", "ring", "ring/16", "binary_tree"]),
        st.sampled_from(["any", "wide", "narrow"]),
        st.sampled_from(["any", "near", "far"]),
        st.sampled_from(BASES),
    )


@settings(deadline=None, max_examples=50)
@given(st.lists(decisions(), max_size=8))
def test_merging_keeps_what_counts_at_every_size_and_leaves_no_overlap(rows):
    merged = DecisionTable(rows).merged_with(DecisionTable())
    for collective, dtype, distance in itertools.product(
        COLLECTIVES, ("float32", "bfloat16"), ("near", "far")
    ):
        where = ("narrow" if dtype == "bfloat16" else "wide", distance)
        for size in range(85):
            strongest = None
            for row in rows:
                counts = row.collective == collective and row.concerns(*where) and row.covers(size)
                if counts and (not strongest or BASES.index(row.basis) >= BASES.index(strongest.basis)):
                    strongest = row
            found = merged.find(collective, size, dtype, distance)
            assert (found and found.way) == (strongest and strongest.way)
            standing = [
                row
                for row in merged.rows
                if row.collective == collective and row.concerns(*where) and row.covers(size)
            ]
            assert len(standing) <= 1


def test_pins_beat_rules_beat_measured_beat_modelled():
    layers = [
        DecisionTable([Decision("allreduce", 0, None, way, basis=basis)])
        for way, basis in [
            ("ring", "pin"),
            ("direct", "rule"),
            ("binary_tree", "measured"),
            ("recursive_doubling", "modelled"),
        ]
    ]
    for strongest in range(4):
        merged = layers[3].merged_with(*layers[strongest:3])
        assert [row.way for row in merged.rows] == [layers[strongest].rows[0].way]


def test_a_table_prints_what_it_says():
    table = DecisionTable(
        [
            Decision("allreduce", 0, 65536, "direct", reason="a row of mine"),
            Decision("allreduce", 65536, None, "ring/16", "narrow", "far", "pin"),
        ]
    )
    lines = [" ".join(line.split()) for line in str(table).splitlines()]
    assert lines == [
        "allreduce 0 B to 64 KiB direct rule a row of mine",
        "allreduce narrow far 64 KiB and more ring/16 pin",
    ]
    assert "fast path" in str(DecisionTable())


@pytest.mark.parametrize(
    "fields", [{"basis": "guess"}, {"dtypes": "huge"}, {"distance": "mars"}, {"end": 0}, {"begin": -1}]
)
def test_rows_that_make_no_sense_are_refused(fields):
    with pytest.raises(pycoll.InvalidArgument):
        Decision(**{"collective": "allreduce", "begin": 0, "end": None, "way": "ring", **fields})


def test_a_factor_of_one_or_less_is_refused():
    with pytest.raises(pycoll.InvalidArgument, match="factor"):
        DecisionTable(factor=1.0)


def star(ranks):
    """A schedule that no algorithm of the registry builds."""
    rows = [(rank - 1, rank, 0, 0, True) for rank in range(1, ranks)]
    rows += [(ranks, 0, rank, 0, False) for rank in range(1, ranks)]
    return pycoll.Schedule.from_transfers(rows, collective="allreduce", ranks=ranks, algorithm="star")


def _chosen(comm, count):
    return comm.chosen_algorithm("allreduce", count)


def test_groups_follow_an_installed_table(on_threads):
    schedule = star(3)
    table = DecisionTable(
        [Decision("allreduce", 0, 4096, "ring/6"), Decision("allreduce", 4096, None, "@mine", reason="mine")],
        {"mine": schedule},
    )

    def rank(comm):
        comm.install(table)
        names = [_chosen(comm, count) for count in (1, 1023, 1024)]
        sums = [comm.allreduce(np.full(count, comm.rank + 1)) for count in (1, 5000)]
        in_force = comm.decisions()
        comm.install(DecisionTable())
        return names, [int(x.max()) for x in sums], [row.way for row in in_force.rows], _chosen(comm, 1)

    for names, sums, ways, afterwards in on_threads(3, rank):
        assert names == ["ring", "ring", "mine"]
        assert sums == [6, 6]
        assert ways == ["ring/6", "@mine"]
        assert afterwards == "direct"


def test_tables_that_cannot_run_are_refused_before_anything_is_sent(on_threads):
    half = pycoll.Schedule.from_transfers([(0, 1, 0, 0, True)], collective="allreduce", ranks=2)
    wrong = [
        (DecisionTable([Decision("allreduce", 0, None, "no_such")]), pycoll.InvalidArgument),
        (DecisionTable([Decision("allreduce", 0, None, "bruck")]), pycoll.Unsupported),
        (DecisionTable([Decision("allreduce", 0, None, "@half")], {"half": half}), pycoll.ScheduleError),
        (DecisionTable([Decision("allreduce", 0, None, "@none")]), pycoll.InvalidArgument),
    ]

    def rank(comm):
        for table, error in wrong:
            with pytest.raises(error):
                comm.install(table)
        return comm.sequence

    assert on_threads(2, rank) == [0, 0]


def test_different_tables_are_a_mismatch_and_the_old_one_stays(on_threads):
    def rank(comm):
        way = "ring" if comm.rank else "direct"
        with pytest.raises(pycoll.Mismatch, match="install"):
            comm.install(DecisionTable([Decision("allreduce", 0, None, way)]))
        return int(comm.allreduce(np.ones(1))[0]), _chosen(comm, 1)

    assert on_threads(2, rank) == [(2, "direct"), (2, "direct")]
