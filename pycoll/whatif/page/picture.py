"""The machine as a picture: where nodes stand, which cables join them, how busy each is; as plain values.

Machines of many nodes are drawn by groups: servers, or racks, as the names say (``r0.s1`` of
``r0.s1.gpu3``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pycoll.topology import Link, Node, Topology
from pycoll.topology.places import label_of, places

__all__ = ["picture"]

_MOST_NODES = 110  # of more, groups are drawn
_MOST_GROUPS = 400  # of more, nothing
_PIXELS = 72  # of an inch of the places


def picture(
    before: Topology,
    after: Topology | None,
    loads_before: Iterable[Mapping[str, float]],
    loads_after: Iterable[Mapping[str, float]],
) -> dict[str, Any] | None:
    """Both sides, the loads (0..1 by the name of a directed link) of each size along; None where too large.

    What is gone stands in the picture of after where it stood, marked as gone.
    """
    one = _drawn(before)
    if one is None:
        return None
    first = _side(one, before, None, loads_before)
    if after is None:
        return {"before": first, "after": None}
    other = _drawn(after)
    if other is None:
        return None
    missing = {name for name in one.names if name not in other.names}
    second = _side(other, after, before, loads_after)
    if set(other.names) <= set(one.names):
        where = {node["name"]: node for node in first["nodes"]}
        _keep_places(first, second, where, missing)
    return {"before": first, "after": second}


@dataclass(frozen=True)
class _Drawn:
    """A topology of few nodes, and the nodes of the whole that each stands for."""

    topology: Topology
    members: tuple[tuple[int, ...], ...]
    group_of: tuple[int, ...]

    @property
    def names(self) -> list[str]:
        return [node.name for node in self.topology.nodes]


def _drawn(topology: Topology) -> _Drawn | None:
    own = tuple(range(len(topology.nodes)))
    if len(topology.nodes) <= _MOST_NODES:
        return _Drawn(topology, tuple((index,) for index in own), own)
    parts = [node.name.split(".") for node in topology.nodes]
    for depth in range(max(map(len, parts)) - 1, 0, -1):
        keys = [".".join(part[:depth]) for part in parts]
        if len(set(keys)) <= _MOST_NODES or (depth == 1 and len(set(keys)) <= _MOST_GROUPS):
            return _grouped(topology, keys)
    return None if len(topology.nodes) > _MOST_GROUPS else _Drawn(topology, tuple((i,) for i in own), own)


def _grouped(topology: Topology, keys: list[str]) -> _Drawn:
    number = {key: index for index, key in enumerate(dict.fromkeys(keys))}
    group_of = tuple(number[key] for key in keys)
    members: list[list[int]] = [[] for _ in number]
    for index, group in enumerate(group_of):
        members[group].append(index)
    nodes = [
        Node(key, "device" if any(topology.nodes[i].kind == "device" for i in members[group]) else "switch")
        for key, group in number.items()
    ]
    between: dict[tuple[int, int, str], float] = {}
    for link in topology.links:
        a, b = group_of[link.source], group_of[link.target]
        if a != b:
            between[a, b, link.kind] = between.get((a, b, link.kind), 0.0) + link.bandwidth
    links = [Link(a, b, bandwidth, kind=kind) for (a, b, kind), bandwidth in between.items()]
    ranks = dict.fromkeys(group_of[index] for index in topology.ranks)
    small = Topology(topology.name, tuple(nodes), tuple(links), tuple(ranks))
    return _Drawn(small, tuple(map(tuple, members)), group_of)


def _side(
    drawn: _Drawn, whole: Topology, was: Topology | None, loads: Iterable[Mapping[str, float]]
) -> dict[str, Any]:
    found = places(drawn.topology)
    ranks: dict[int, list[int]] = {}
    for rank, index in enumerate(whole.ranks):
        ranks.setdefault(drawn.group_of[index], []).append(rank)
    nodes = []
    for index, node in enumerate(drawn.topology.nodes):
        x, y = found.where[index]
        mine = ranks.get(index, [])
        stands_for = len(drawn.members[index])
        label = label_of(node.name)
        under = ""
        if mine:
            under = f"rank {mine[0]}" if len(mine) == 1 else f"{len(mine)} ranks"
        nodes.append(
            {
                "name": node.name,
                "label": label,
                "under": under,
                "kind": node.kind,
                "stands_for": stands_for,
                "x": round(x * _PIXELS, 1),
                "y": round((found.height - y) * _PIXELS, 1),
            }
        )
    cables, cable_of, inside_of = _cables(drawn, whole, was)
    sizes = []
    for busy in loads:
        shown = [[0.0, 0.0] for _ in cables]
        inside = [0.0 for _ in nodes]
        for name, share in busy.items():
            if name in cable_of:
                cable, way = cable_of[name]
                shown[cable][way] = max(shown[cable][way], round(share, 4))
            elif name in inside_of:
                inside[inside_of[name]] = max(inside[inside_of[name]], round(share, 4))
        sizes.append({"cables": shown, "inside": inside})
    return {
        "width": round(found.width * _PIXELS),
        "height": round(found.height * _PIXELS),
        "sort": found.sort,
        "nodes": nodes,
        "cables": cables,
        "loads": sizes,
    }


def _cables(
    drawn: _Drawn, whole: Topology, was: Topology | None
) -> tuple[list[dict[str, Any]], dict[str, tuple[int, int]], dict[str, int]]:
    """What joins two nodes, parallel links together; where each directed link is shown, and in which
    direction (0: from ``a`` to ``b``), or the group that it is inside of."""
    earlier = None if was is None else {link.name: link for link in was.links}
    cables: list[dict[str, Any]] = []
    number: dict[tuple[int, int], int] = {}
    cable_of: dict[str, tuple[int, int]] = {}
    inside_of: dict[str, int] = {}
    for link in whole.links:
        a, b = drawn.group_of[link.source], drawn.group_of[link.target]
        if a == b:
            inside_of[link.name] = a
            continue
        back = (b, a) in number
        key = (b, a) if back else (a, b)
        if key not in number:
            number[key] = len(cables)
            names = drawn.names
            cables.append(
                {
                    "name": f"{names[a]}-{names[b]}",
                    "a": a,
                    "b": b,
                    "kind": link.kind,
                    "links": [0, 0],
                    "bandwidth_bytes_per_s": link.bandwidth,
                    "latency_s": link.latency,
                    "state": "",
                }
            )
        cable = cables[number[key]]
        cable["links"][back] += 1
        # Of several, the least and the longest: those that bind.
        cable["bandwidth_bytes_per_s"] = min(cable["bandwidth_bytes_per_s"], link.bandwidth)
        cable["latency_s"] = max(cable["latency_s"], link.latency)
        cable_of[link.name] = (number[key], int(back))
        if earlier is not None:
            then = earlier.get(link.name)
            if then is None:
                cable["state"] = cable["state"] or "new"
            elif (then.bandwidth, then.latency) != (link.bandwidth, link.latency):
                cable["state"] = "changed"
    return cables, cable_of, inside_of


def _keep_places(
    first: dict[str, Any], second: dict[str, Any], where: Mapping[str, dict[str, Any]], missing: set[str]
) -> None:
    """Nodes of after stand where they stood, and what is gone stays in the picture as gone."""
    second.update(width=first["width"], height=first["height"], sort=first["sort"])
    for node in second["nodes"]:
        node.update(x=where[node["name"]]["x"], y=where[node["name"]]["y"])
    for node in first["nodes"]:
        if node["name"] in missing:
            second["nodes"].append({**node, "under": "", "state": "gone"})
            for size in second["loads"]:
                size["inside"].append(0.0)
    index_of = {node["name"]: index for index, node in enumerate(second["nodes"])}

    def ends(side: dict[str, Any], cable: dict[str, Any]) -> frozenset[str]:
        return frozenset(side["nodes"][cable[end]]["name"] for end in ("a", "b"))

    left = {ends(second, cable): cable for cable in second["cables"]}
    for cable in first["cables"]:
        names = ends(first, cable)
        if names in left:
            if sum(left[names]["links"]) < sum(cable["links"]):
                left[names]["state"] = "changed"
            continue
        a, b = (index_of[first["nodes"][cable[end]]["name"]] for end in ("a", "b"))
        second["cables"].append({**cable, "a": a, "b": b, "links": [0, 0], "state": "gone"})
        for size in second["loads"]:
            size["cables"].append([0.0, 0.0])
