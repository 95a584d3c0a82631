"""Whether all ranks still reach each other, quickly also for thousands of them."""

from __future__ import annotations

from pycoll.topology import Topology

__all__ = ["parts"]


def parts(topology: Topology) -> list[list[int]]:
    """The ranks in groups that all reach each other, the largest first.

    As :meth:`pycoll.Topology.parts`, with one set of bits a node in place of a search a rank.
    """
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
    sees = [reached[node] | bit[node] for node in topology.ranks]
    everyone = (1 << len(sees)) - 1
    if all(seen == everyone for seen in sees):
        return [list(range(len(sees)))]
    groups: list[list[int]] = []
    # Those who see most come first: one that has lost its way out does not take its neighbours with it.
    for rank in sorted(range(len(sees)), key=lambda rank: -sees[rank].bit_count()):
        seen = sees[rank]
        for group in groups:
            if all(seen >> other & 1 and sees[other] >> rank & 1 for other in group):
                group.append(rank)
                break
        else:
            groups.append([rank])
    return sorted((sorted(group) for group in groups), key=len, reverse=True)
