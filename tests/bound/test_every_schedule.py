"""Small machines, and all schedules of trees there are: none beats the bound, the packing is the best."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pycoll
from pycoll import _core
from pycoll.topology import Topology

from .machines import Edges, bandwidth_bound, machine, machines

Tree = tuple[tuple[int, int], ...]  # edges


def spanning_trees(n: int) -> list[Tree]:
    """All n^(n-2) of them, from their Prüfer codes."""
    trees = []
    for code in itertools.product(range(n), repeat=n - 2):
        degree = [1 + code.count(node) for node in range(n)]
        edges = []
        for node in code:
            leaf = degree.index(1)
            edges.append((leaf, node))
            degree[leaf] -= 1
            degree[node] -= 1
        last = [node for node in range(n) if degree[node] == 1]
        trees.append((*edges, (last[0], last[1])))
    return trees


def up_and_down(tree: Tree, root: int, piece: int, n: int) -> list[tuple[int, int, int, int, bool]]:
    """Reduces the piece up the tree and sends it down again, as soon as can be."""
    parent, order = {root: root}, [root]
    for node in order:
        for a, b in tree:
            for near, far in ((a, b), (b, a)):
                if near == node and far not in parent:
                    parent[far] = node
                    order.append(far)
    rows, ready = [], [0] * n
    for node in reversed(order[1:]):
        rows.append((ready[node], node, parent[node], piece, True))
        ready[parent[node]] = max(ready[parent[node]], ready[node] + 1)
    for node in order[1:]:
        rows.append((ready[parent[node]], parent[node], node, piece, False))
        ready[node] = ready[parent[node]] + 1
    return rows


@settings(max_examples=15, deadline=None)
@given(machines(), st.integers(0, 3))
def test_no_schedule_of_two_pieces_beats_the_bound(drawn: tuple[int, int, Edges], seed: int) -> None:
    devices, switches, edges = drawn
    topology = machine(devices, switches, edges)
    if devices > 3:
        topology = topology.place([(seed + i) % devices for i in range(3)])
    n = len(topology.ranks)
    least = pycoll.bound(topology, "allreduce", 1000.0).seconds
    rooted = [(tree, root) for tree in spanning_trees(n) for root in range(n)]
    for (one, first), (other, second) in itertools.product(rooted, repeat=2):
        rows = up_and_down(one, first, 0, n) + up_and_down(other, second, 1, n)
        schedule = pycoll.Schedule.from_transfers(rows, collective="allreduce", ranks=n, pieces=2)
        assert schedule.simulate(topology, 1000.0).time >= least * (1 - 1e-9)


def best_rate(topology: Topology) -> float:
    """The linear program over all spanning trees, written out, on the routes that transfers take."""
    optimize = pytest.importorskip("scipy.optimize")
    n = len(topology.ranks)
    routes = {(a, b): topology.native.route(a, b)[1] for a in range(n) for b in range(n) if a != b}
    columns = []
    for tree in spanning_trees(n):
        use = [0.0] * len(topology.links)
        for a, b in tree:
            for ends in ((a, b), (b, a)):
                for link, part in routes[ends]:
                    use[link] += part
        columns.append(use)
    found = optimize.linprog(
        [-1.0] * len(columns),
        A_ub=list(zip(*columns, strict=True)),
        b_ub=[k.bandwidth for k in topology.links],
    )
    return float(-found.fun)


@settings(max_examples=25, deadline=None)
@given(machines(symmetric=True))
def test_packing_solves_the_linear_program(drawn: tuple[int, int, Edges]) -> None:
    topology = machine(*drawn)
    expected = best_rate(topology)
    packing = _core.pack_trees(topology.native, "allreduce", 0, False, 1e-4, 1e300, 20000)
    assert packing.rate == pytest.approx(expected, rel=2e-3)
    assert expected <= packing.rate_limit * (1 + 1e-9)
    assert expected <= (1 + 1e-9) / bandwidth_bound(topology, "allreduce")
