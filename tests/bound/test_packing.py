"""Packings of spanning trees reach the bound, and nothing beats it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

import pycoll
from pycoll import _core
from pycoll.topology import Topology

from .machines import Edges, bandwidth_bound, machine, machines, pod, torus


def packed(topology: Topology, collective: str = "allreduce", free: bool = False) -> _core.TreePacking:
    return _core.pack_trees(topology.native, collective, 0, free, 1e-4, 1e300, 20000)


def check(topology: Topology, packing: _core.TreePacking, collective: str) -> None:
    """Trees span, and their weights sum to the rate."""
    n = len(topology.ranks)
    for tree in packing.trees:
        for parents in (tree.up, tree.down):
            if not parents:
                continue
            for rank in range(n):
                hops = 0
                while parents[rank] >= 0:
                    rank, hops = parents[rank], hops + 1
                    assert hops < n
                assert rank == tree.root
    assert sum(tree.weight for tree in packing.trees) == pytest.approx(packing.rate)
    assert all(tree.up if collective != "broadcast" else tree.down for tree in packing.trees)


@settings(max_examples=60, deadline=None)
@given(machines(symmetric=True))
def test_reaches_the_bound_of_any_machine_with_duplex_links(drawn: tuple[int, int, Edges]) -> None:
    topology = machine(*drawn)
    packing = packed(topology, free=True)
    check(topology, packing, "allreduce")
    rate = 1 / bandwidth_bound(topology, "allreduce")
    assert rate * 0.999 <= packing.rate <= rate * (1 + 1e-9)


@settings(max_examples=40, deadline=None)
@given(machines())
def test_broadcast_reaches_the_least_cut(drawn: tuple[int, int, Edges]) -> None:
    """Edmonds' disjoint branchings, here with switches too."""
    topology = machine(*drawn)
    for collective in ("broadcast", "reduce"):
        packing = packed(topology, collective, free=True)
        rate = 1 / bandwidth_bound(topology, collective)
        assert packing.rate <= rate * (1 + 1e-9)
        if not drawn[1]:
            assert packing.rate >= rate * 0.999


@settings(max_examples=40, deadline=None)
@given(machines(symmetric=False))
def test_never_beats_the_bound(drawn: tuple[int, int, Edges]) -> None:
    topology = machine(*drawn)
    for free in (False, True):
        packing = packed(topology, free=free)
        check(topology, packing, "allreduce")
        assert packing.rate <= (1 + 1e-9) / bandwidth_bound(topology, "allreduce")
        assert packing.rate <= packing.rate_limit * (1 + 1e-5)


@pytest.mark.parametrize(
    "topology",
    [Topology.flat(16, 1e9), torus(4, 4), torus(4, 4, 4), pod(2), pod(4)],
    ids=["switch", "torus 4x4", "torus 4x4x4", "pod of 2", "pod of 4"],
)
def test_reaches_the_bound_over_the_routes_that_transfers_take(topology: Topology) -> None:
    packing = packed(topology)
    assert packing.rate >= 0.998 / bandwidth_bound(topology, "allreduce")


def test_a_packing_proves_the_bound() -> None:
    assert pycoll.bound(Topology.flat(8, 1e9), "allreduce", 1e9, prove=True).proved_tight
    assert pycoll.bound(pod(2), "broadcast", 1e9, root=3, prove=True).proved_tight
    assert not pycoll.bound(Topology.flat(8, 1e9), "allreduce", 1e9).proved_tight
    # d0 sends 1 byte/s to d1 and 1 to d2, both need all of a buffer from it: the cut of either is not all.
    uneven = machine(3, 1, [(0, 3, 1), (3, 1, 9), (3, 2, 9), (1, 3, 1), (2, 3, 1), (3, 0, 9)])
    found = pycoll.bound(uneven, "allreduce", 1.0, prove=True)
    assert found.proved_tight == (packed(uneven, free=True).rate >= 0.999 / found.bandwidth_seconds)
