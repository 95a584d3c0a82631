"""Several connections in place of each: a schedule of lanes on a machine whose devices have as many ends.

Every device becomes ``lanes`` devices behind a pair of switches, one for what leaves and one for what comes,
so that nothing else can pass through. Each lane carries its part of every piece, and routers that hash pick
a path for each.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from pycoll.errors import InvalidArgument
from pycoll.schedule import Schedule
from pycoll.topology import Link, Node, Topology

__all__ = ["laned_schedule", "laned_topology"]

_WIDE = 1e18  # bytes/s between a device's lanes and its links: never what binds


@lru_cache(maxsize=8)
def laned_topology(topology: Topology, lanes: int) -> Topology:
    """The machine with ``lanes`` devices in place of each rank's; lane l of rank r is rank r * lanes + l.

    Links keep their order: index i is link i of ``topology`` for all of its links.
    """
    if any(topology.nodes[node].forwards for node in topology.ranks):
        raise InvalidArgument("--flows: devices that forward others' transfers, as in a torus, have one flow")
    ranked = set(topology.ranks)
    nodes: list[Node] = []
    leaving: dict[int, int] = {}
    coming: dict[int, int] = {}
    for index, node in enumerate(topology.nodes):
        leaving[index] = coming[index] = len(nodes)
        if index in ranked:
            coming[index] += 1
            nodes += [Node(f"{node.name}.out", "switch"), Node(f"{node.name}.in", "switch")]
        else:
            nodes.append(node)
    links = [replace(k, source=leaving[k.source], target=coming[k.target], name="") for k in topology.links]
    ranks = []
    for index in topology.ranks:
        device = topology.nodes[index]
        for lane in range(lanes):
            end = len(nodes)
            nodes.append(replace(device, name=f"{device.name}.lane{lane}"))
            links += [Link(end, leaving[index], _WIDE), Link(coming[index], end, _WIDE)]
            ranks.append(end)
    return Topology(topology.name, tuple(nodes), tuple(links), tuple(ranks))


@lru_cache(maxsize=16)
def laned_schedule(schedule: Schedule, lanes: int) -> Schedule:
    """The schedule once a lane, each on its own pieces: lane l's piece p is piece l * pieces + p.

    To be simulated, not run: the pieces of a lane are a collective among the lane's ranks only.
    """
    rows = schedule.transfers
    one = np.stack([rows[name].astype(np.int64) for name in ("round", "src", "dst", "piece", "reduce")], 1)
    every = np.repeat(one, lanes, axis=0)
    lane = np.tile(np.arange(lanes), len(one))
    every[:, 1] = every[:, 1] * lanes + lane
    every[:, 2] = every[:, 2] * lanes + lane
    every[:, 3] += lane * schedule.pieces
    return Schedule.from_transfers(
        every, collective="allreduce", ranks=schedule.ranks * lanes, pieces=schedule.pieces * lanes
    )
