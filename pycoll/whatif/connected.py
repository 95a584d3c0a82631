"""Whether all ranks still reach each other, quickly also for thousands of them."""

from __future__ import annotations

from pycoll.topology import Topology

__all__ = ["parts", "sees"]


def parts(topology: Topology) -> list[list[int]]:
    """The ranks in groups that all reach each other, the largest first, as :meth:`pycoll.Topology.parts`."""
    seen_by = sees(topology)
    everyone = (1 << len(seen_by)) - 1
    if all(seen == everyone for seen in seen_by):
        return [list(range(len(seen_by)))]
    groups: list[list[int]] = []
    # Those who see most come first: one that has lost its way out does not take its neighbours with it.
    for rank in sorted(range(len(seen_by)), key=lambda rank: -seen_by[rank].bit_count()):
        for group in groups:
            if all(seen_by[rank] >> other & 1 and seen_by[other] >> rank & 1 for other in group):
                group.append(rank)
                break
        else:
            groups.append([rank])
    return sorted((sorted(group) for group in groups), key=len, reverse=True)


def sees(topology: Topology) -> list[int]:
    """By rank, the ranks that it reaches, itself among them, as the bits of a number."""
    bit = {node: 1 << rank for rank, node in enumerate(topology.ranks)}
    onward: list[list[int]] = [[] for _ in topology.nodes]
    for link in topology.links:
        onward[link.source].append(link.target)
    passes = [node.kind == "switch" or node.forwards for node in topology.nodes]
    reached = [0] * len(topology.nodes)  # the ranks that what comes through here can go on to
    changed = True
    while changed:
        changed = False
        for index in range(len(reached)):
            found = reached[index]
            for target in onward[index]:
                found |= bit.get(target, 0) | (reached[target] if passes[target] else 0)
            if found != reached[index]:
                reached[index] = found
                changed = True
    return [reached[node] | bit[node] for node in topology.ranks]
