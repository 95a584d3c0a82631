"""What joins GPUs, in a topology: NVLink from GPU to GPU, NVSwitch, PCIe, a network adapter."""

from __future__ import annotations

from collections import Counter, deque
from itertools import combinations

from pycoll.topology import Topology

__all__ = ["CLASSES", "Ways", "class_of_pair", "classes", "summary_of"]

#: From the quickest to the slowest; a way is of the slowest class that it passes.
CLASSES = ("nvlink", "nvswitch", "pcie", "nic")
#: How the kinds of links in topology files begin ("nvlink4", "NVLink (h100)", "pcie5", "ndr", ...).
_PREFIXES = {
    "nvlink": ("nvlink", "nvl", "xgmi", "infinity"),
    "pcie": ("pci", "pix", "pxb", "phb", "node", "sys", "qpi", "upi", "socket", "smp"),
    "nic": ("nic", "net", "ib", "hdr", "ndr", "xdr", "edr", "roce", "eth", "efa", "uplink"),
}


def classes(topology: Topology) -> dict[str, int]:
    """Pairs of ranks by the class of the way between them, the quickest class first; "other" last."""
    ways = Ways(topology)
    found = Counter(ways.class_of(a, b) for a, b in combinations(topology.ranks, 2))
    return {name: found[name] for name in (*CLASSES, "other") if found[name]}


def summary_of(topology: Topology) -> str:
    """``nvswitch``, or where pairs differ ``nvlink+pcie``: part of what a profile of GPUs is for."""
    return "+".join(classes(topology)) or "one gpu"


def class_of_pair(topology: Topology, a: int, b: int) -> str:
    """One of ``CLASSES`` for the way between two ranks; "other" where its links do not say their kind."""
    return Ways(topology).class_of(topology.ranks[a], topology.ranks[b])


def _class_of_kind(kind: str) -> str:
    plain = kind.lower()
    return next((name for name, prefixes in _PREFIXES.items() if plain.startswith(prefixes)), "other")


class Ways:
    """The ways that the simulator takes, as far as their class goes: the widest bottleneck, then the fewest
    links; only switches, and devices that forward, are passed. Parallel links count together."""

    def __init__(self, topology: Topology) -> None:
        self._nodes = topology.nodes
        self._kinds: dict[tuple[int, int], str] = {}
        self._widths: dict[tuple[int, int], float] = {}
        for link in topology.links:
            ends = (link.source, link.target)
            self._widths[ends] = self._widths.get(ends, 0.0) + link.bandwidth
            self._kinds[ends] = link.kind
        self._after: dict[int, list[int]] = {}
        for source, target in self._widths:
            self._after.setdefault(source, []).append(target)

    def class_of(self, source: int, target: int) -> str:
        way = self.way(source, target)
        if not way:
            return "other"
        kinds = {_class_of_kind(self._kinds[step]) for step in way}
        slow = next((kind for kind in ("other", "nic", "pcie") if kind in kinds), None)
        return slow or ("nvlink" if len(way) == 1 else "nvswitch")

    def narrowest(self, source: int, target: int) -> str:
        """The kind of the link that limits a transfer, as the topology's file calls it."""
        way = self.way(source, target)
        return self._kinds[min(way, key=lambda step: self._widths[step])] if way else ""

    def way(self, source: int, target: int) -> list[tuple[int, int]]:
        """(from, to) node by node; empty where there is none."""
        for least in sorted(set(self._widths.values()), reverse=True):
            way = self._fewest(source, target, least)
            if way:
                return way
        return []

    def _fewest(self, source: int, target: int, least: float) -> list[tuple[int, int]]:
        came = {source: source}
        queue = deque([source])
        while queue and target not in came:
            here = queue.popleft()
            if here != source and self._nodes[here].kind != "switch" and not self._nodes[here].forwards:
                continue
            for after in self._after.get(here, ()):
                if after not in came and self._widths[here, after] >= least:
                    came[after] = here
                    queue.append(after)
        way = []
        while target in came and target != source:
            way.append((came[target], target))
            target = came[target]
        return way
