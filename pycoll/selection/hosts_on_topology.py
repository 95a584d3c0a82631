"""Which device of a topology each rank of a running group lives on: by the names of the ranks' hosts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from pycoll.errors import InvalidArgument
from pycoll.topology import Link, Node, Topology

__all__ = ["NumbersDiffer", "flat_hosts", "rank_by_rank", "settle"]

#: Between ranks of one host, where the topology has the host as one device that says nothing of its inside.
MEMORY, MEMORY_LATENCY = 10e9, 1e-6
#: A network of which nobody has said anything: 10 Gbit/s.
WIRE, WIRE_LATENCY = 1.25e9, 20e-6
#: What a message between hosts costs its ends beyond its bytes, where the topology says nothing.
OVERHEAD = 10e-6
#: What stands between a host's name and a device's own.
_APART = (".", "/", ":", "-", "_")


class NumbersDiffer(InvalidArgument):
    """No host has a device of its name, and group and topology differ in their number of ranks."""


def settle(topology: Topology, names: Sequence[str], host_of: Sequence[int]) -> tuple[Topology, str]:
    """The topology with the group's ranks where their hosts are, and a sentence that says how it was done.

    ``names``: of the hosts; ``host_of``: each rank's host, as an index into them. A host is the device of its
    name, which several ranks share, or the devices whose names begin with it ("h3.0", "h3/gpu1"), which its
    ranks take in the order of the topology's ranks. A topology may have more hosts, and more devices a host,
    than the group. Where no name fits, rank i lives where the topology's rank i does.

    Raises InvalidArgument where only some hosts' names fit, where a host has more ranks than devices, and,
    where no name fits, for a number of ranks other than the topology's.
    """
    found = {host: _devices(topology, name) for host, name in enumerate(names)}
    twice = [name for name, count in Counter(names).items() if count > 1]
    if not any(found.values()) or twice:
        return rank_by_rank(topology, names, len(host_of), twice)
    missing = [name for host, name in enumerate(names) if not found[host]]
    if missing:
        devices = ", ".join(topology.nodes[index].name for index in topology.ranks[:8])
        raise InvalidArgument(
            f"topology {topology.name!r} has no device for host {missing[0]!r}"
            f"{f' (and {len(missing) - 1} more)' if len(missing) > 1 else ''}, but has some for "
            f"{next(name for host, name in enumerate(names) if found[host])!r}: name every host's device "
            f"like the host, or none; its ranks live on {devices}{', ...' if len(topology.ranks) > 8 else ''}"
        )
    for host, devices_of in found.items():
        ranks = [rank for rank, home in enumerate(host_of) if home == host]
        if len(devices_of) > 1 and len(ranks) > len(devices_of):
            raise InvalidArgument(
                f"host {names[host]!r} has {len(ranks)} ranks, and topology {topology.name!r} "
                f"{len(devices_of)} devices for it"
            )
    placed = _Placing(topology, found, host_of).run()
    return placed, f"ranks are placed on topology {topology.name!r} by the names of their hosts"


def rank_by_rank(
    topology: Topology, names: Sequence[str], ranks: int, twice: Sequence[str] = ()
) -> tuple[Topology, str]:
    """Rank i where the topology's rank i lives; InvalidArgument where the numbers differ."""
    why = (
        f"several hosts are called {twice[0]!r}"
        if twice
        else f"no device of topology {topology.name!r} is named like a host of this group "
        f"({', '.join(names[:4])}{', ...' if len(names) > 4 else ''})"
    )
    if ranks != len(topology.ranks):
        raise NumbersDiffer(
            f"the topology {topology.name!r} has places for {len(topology.ranks)} ranks, the "
            f"group has {ranks}, and {why}: "
            "give a topology of as many ranks, or name its devices like the hosts"
        )
    return topology, f"{why}: rank i is taken to live on the topology's rank i"


def _devices(topology: Topology, host: str) -> list[int]:
    """The host's devices, in the order of the topology's ranks: exactly of its name, or beginning with it;
    else the same for its name without the domain."""
    for name in dict.fromkeys((host, host.split(".")[0])):
        exact = [index for index in topology.ranks if topology.nodes[index].name == name]
        if exact:
            return exact
        begins = tuple(name + apart for apart in _APART)
        inside = [index for index in topology.ranks if topology.nodes[index].name.startswith(begins)]
        if inside:
            return inside
    return []


class _Placing:
    def __init__(self, topology: Topology, found: dict[int, list[int]], host_of: Sequence[int]) -> None:
        self.topology = topology
        self.found = found
        self.host_of = host_of
        self.nodes = list(topology.nodes)
        self.links = list(topology.links)

    def run(self) -> Topology:
        device_of: dict[int, int] = {}
        for host, devices in self.found.items():
            ranks = [rank for rank, home in enumerate(self.host_of) if home == host]
            if len(devices) == 1 and len(ranks) > 1:
                devices = self._expand(devices[0], len(ranks))
            device_of |= dict(zip(ranks, devices, strict=False))
        return replace(
            self.topology,
            nodes=tuple(self.nodes),
            links=tuple(self.links),
            ranks=tuple(device_of[rank] for rank in range(len(self.host_of))),
            text=None,
        )

    def _expand(self, host: int, ranks: int) -> list[int]:
        """The device becomes a switch, with a device for each rank behind it."""
        device = self.nodes[host]
        self.nodes[host] = Node(device.name, "switch")
        rate = device.copy_rate if math.isfinite(device.copy_rate) else MEMORY
        taken = {node.name for node in self.nodes}
        inside = []
        for number in range(ranks):
            name = f"{device.name}.{number}"
            while name in taken:
                name += "'"
            inside.append(len(self.nodes))
            self.nodes.append(replace(device, name=name, ports=0, forwards=False))
            for ends in ((inside[-1], host), (host, inside[-1])):
                self.links.append(Link(*ends, rate, MEMORY_LATENCY))
        return inside


def flat_hosts(host_of: Sequence[int]) -> Topology:
    """Hosts on one switch, ranks on a quicker one in each: what is taken for granted where nobody has given a
    topology."""
    count = max(host_of) + 1
    hosts = [Node(f"host{host}", "device") for host in range(count)]
    links = []
    for host in range(count):
        links += [Link(host, count, WIRE, WIRE_LATENCY / 2), Link(count, host, WIRE, WIRE_LATENCY / 2)]
    one_each = Topology(
        "hosts on one switch", (*hosts, Node("network", "switch")), tuple(links), tuple(range(count))
    )
    return _Placing(one_each, {host: [host] for host in range(count)}, host_of).run()


def with_overheads(topology: Topology) -> Topology:
    """The topology, with what a message costs its ends where it says nothing at all of that: without, nothing
    would keep a schedule from being cut in ever more pieces."""
    if any(node.overhead for node in topology.nodes):
        return topology
    nodes = tuple(
        replace(node, overhead=OVERHEAD) if node.kind == "device" else node for node in topology.nodes
    )
    return replace(topology, nodes=nodes, text=None)
