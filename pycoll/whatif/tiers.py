"""The levels of a machine: which devices stand near each other, and what hangs on a switch."""

from __future__ import annotations

from pycoll.topology import Topology
from pycoll.topology.summary import tiers_of

__all__ = ["groups", "hanging_on"]


def groups(topology: Topology) -> list[list[list[int]]]:
    """The devices (node indices) of each level's groups, the finest level first: servers, racks, units.

    A level's groups are what stays together when all switches of higher tiers, and the links between
    switches of one tier, are taken away. Levels that say nothing new, all in one or each alone, are left
    out.
    """
    tiers = tiers_of(topology)
    devices = [index for index, node in enumerate(topology.nodes) if node.kind == "device"]
    levels: list[list[list[int]]] = []
    for top in range(1, max(tiers, default=0) + 1):
        root = list(range(len(topology.nodes)))

        def find(index: int, root: list[int] = root) -> int:
            while root[index] != index:
                root[index] = root[root[index]]
                index = root[index]
            return index

        for link in topology.links:
            a, b = tiers[link.source], tiers[link.target]
            if max(a, b) <= top and a != b:
                root[find(link.source)] = find(link.target)
        found: dict[int, list[int]] = {}
        for device in devices:
            found.setdefault(find(device), []).append(device)
        level = list(found.values())
        if 1 < len(level) < len(devices) and (not levels or level != levels[-1]):
            levels.append(level)
    return levels


def hanging_on(topology: Topology, switch: int) -> list[int]:
    """Nodes that hang on a switch: of lower tiers, and reached from it without passing its tier or a higher
    one."""
    tiers = tiers_of(topology)
    below: dict[int, set[int]] = {}
    for link in topology.links:
        if tiers[link.target] < tiers[link.source]:
            below.setdefault(link.source, set()).add(link.target)
    found, queue = {switch}, [switch]
    while queue:
        for near in below.get(queue.pop(), ()):
            if near not in found:
                found.add(near)
                queue.append(near)
    # What hangs on another switch of the same tier too stays with that one.
    beside = {
        node
        for other in range(len(topology.nodes))
        if other != switch and tiers[other] == tiers[switch] and other not in found
        for node in _closure(below, other)
    }
    return sorted(found - beside)


def _closure(below: dict[int, set[int]], start: int) -> set[int]:
    found, queue = set(below.get(start, ())), list(below.get(start, ()))
    while queue:
        for near in below.get(queue.pop(), ()):
            if near not in found:
                found.add(near)
                queue.append(near)
    return found
