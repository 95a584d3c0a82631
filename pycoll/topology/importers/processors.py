"""A topology of a machine's cores: what hwloc's XML and /sys both come down to."""

from __future__ import annotations

from dataclasses import dataclass

from pycoll.topology.importers import figures
from pycoll.topology.importers.figures import socket_rate
from pycoll.topology.model import Link, Node, Topology

__all__ = ["Core", "Processor", "cores_topology"]


@dataclass(frozen=True)
class Core:
    """A core and where it sits: its socket, its NUMA node, the last-level cache that it shares."""

    socket: int
    numa: int
    cache: int


@dataclass(frozen=True)
class Processor:
    """What /proc/cpuinfo and hwloc say of the model."""

    arch: str = "x86_64"
    vendor: str = ""
    family: int = 0
    model: int = 0
    name: str = ""


def cores_topology(cores: list[Core], processor: Processor, name: str, about: str) -> Topology:
    """A rank on each core; switches are caches, NUMA nodes with several of them, and sockets.

    Cores that share a last-level cache hang on it, caches on their NUMA node, NUMA nodes on their socket,
    sockets on each other. A level with one member is left out.
    """
    nodes = [Node(f"core{index}", "device") for index in range(len(cores))]
    links: list[Link] = []

    def hang(members: list[int], label: str, rate: float, latency: float, kind: str) -> int:
        if len(members) == 1:
            return members[0]
        nodes.append(Node(label, "switch"))
        for member in members:
            links.extend(
                [
                    Link(member, len(nodes) - 1, rate, latency, kind),
                    Link(len(nodes) - 1, member, rate, latency, kind),
                ]
            )
        return len(nodes) - 1

    tops = []
    counts = {"l3": 0, "numa": 0}
    for socket in sorted({core.socket for core in cores}):
        near = []
        for numa in sorted({core.numa for core in cores if core.socket == socket}):
            caches = []
            here = [index for index, core in enumerate(cores) if (core.socket, core.numa) == (socket, numa)]
            for cache in sorted({cores[index].cache for index in here}):
                sharing = [index for index in here if cores[index].cache == cache]
                label = f"l3-{counts['l3']}"
                caches.append(hang(sharing, label, figures.CORE_RATE, figures.CORE_LATENCY, "core"))
                counts["l3"] += 1
            label = f"numa{counts['numa']}"
            near.append(hang(caches, label, figures.COMPLEX_RATE, figures.COMPLEX_LATENCY, "complex"))
            counts["numa"] += 1
        label = f"socket{socket}"
        tops.append(hang(near, label, figures.COMPLEX_RATE, figures.COMPLEX_LATENCY, "complex"))
    rate, kind = socket_rate(processor.arch, processor.vendor, processor.family, processor.model)
    latency, kind = figures.SOCKET_LATENCY, f"sockets ({kind})"
    for index, top in enumerate(tops):
        for other in tops[index + 1 :]:
            links += [Link(top, other, rate, latency, kind), Link(other, top, rate, latency, kind)]
    topology = Topology(name, tuple(nodes), tuple(links), tuple(range(len(cores))), about=about)
    topology.check()
    return topology
