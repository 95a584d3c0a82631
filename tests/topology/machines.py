"""Machines whose links are known, for the probe's fit to find again."""

from __future__ import annotations

from collections.abc import Sequence

from pycoll import Topology
from pycoll.topology import Link, Node


class Builder:
    """Nodes by name, links by name, and the ranks in the order in which their devices come."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.links: list[Link] = []
        self.ranks: list[int] = []

    def switch(self, name: str) -> str:
        self.nodes.append(Node(name, "switch"))
        return name

    def device(self, name: str, overhead: float = 0.0) -> str:
        self.ranks.append(len(self.nodes))
        self.nodes.append(Node(name, overhead=overhead, copy_rate=40e9, reduce_rate=20e9))
        return name

    def one_way(self, a: str, b: str, bandwidth: float, latency: float = 0.0) -> None:
        index = {node.name: i for i, node in enumerate(self.nodes)}
        self.links.append(Link(index[a], index[b], bandwidth, latency))

    def link(self, a: str, b: str, bandwidth: float, latency: float = 0.0) -> None:
        self.one_way(a, b, bandwidth, latency)
        self.one_way(b, a, bandwidth, latency)

    def build(self) -> Topology:
        return Topology("machine", tuple(self.nodes), tuple(self.links), tuple(self.ranks))


def tree(
    counts: Sequence[int], bandwidths: Sequence[float], latencies: Sequence[float], overhead: float = 1e-6
) -> Topology:
    """counts[0] clusters of counts[1] ... of ranks; links of each level, the outermost first."""
    made = Builder()

    def grow(level: int, name: str) -> str:
        made.switch(name)
        for index in range(counts[level]):
            inner = f"{name}.{index}"
            if level == len(counts) - 1:
                made.device(inner, overhead)
            else:
                grow(level + 1, inner)
            made.link(inner, name, bandwidths[level], latencies[level])
        return name

    grow(0, "t")
    return made.build()


def gpu_hosts(hosts: int, gpus: int, card: float, cards: int, spine: float) -> Topology:
    """Hosts of GPUs on an inner switch of 300 GB/s; ``cards`` network cards a host: one each, or one for
    all."""
    made = Builder()
    made.switch("spine")
    for host in range(hosts):
        inner, leaf = made.switch(f"nv{host}"), made.switch(f"leaf{host}")
        made.link(leaf, "spine", spine, 1e-6)
        if cards == 1:
            made.link(inner, leaf, card, 2e-6)
        for index in range(gpus):
            gpu = made.device(f"g{host}.{index}", 2e-6)
            made.link(gpu, inner, 300e9, 1e-6)
            if cards == gpus:
                made.link(gpu, leaf, card, 3e-6)
    return made.build()


def two_sockets(cores: int, core: float, memory: float, between: float) -> Topology:
    """Sockets whose cores share a memory, and a link between the two."""
    made = Builder()
    for socket in range(2):
        made.switch(f"in{socket}")
        made.switch(f"out{socket}")
        made.one_way(f"in{socket}", f"out{socket}", memory)
        for index in range(cores):
            name = made.device(f"c{socket}.{index}", 2e-7)
            made.one_way(name, f"in{socket}", core, 1e-7)
            made.one_way(f"out{socket}", name, core, 1e-7)
    made.one_way("in0", "out1", between, 2e-7)
    made.one_way("in1", "out0", between, 2e-7)
    return made.build()
