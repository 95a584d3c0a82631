"""This machine: the cores that this process may run on, from /sys and /proc."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

from pycoll.errors import TopologyError
from pycoll.topology.importers import figures
from pycoll.topology.importers.processors import Core, Processor, cores_topology
from pycoll.topology.model import Topology

__all__ = ["import_here"]


def import_here(
    *, system: Path = Path("/sys/devices/system"), cpuinfo: Path = Path("/proc/cpuinfo")
) -> Topology:
    """This machine as a topology: a rank on each core that this process may run on.

    Raises TopologyError where the kernel does not tell what is needed.
    """
    allowed = sorted(os.sched_getaffinity(0))
    numa = _numa_nodes(system / "node")
    cores: dict[tuple[int, int], Core] = {}  # threads of one core make one rank
    caches: dict[str, int] = {}
    for cpu in allowed:
        place = system / "cpu" / f"cpu{cpu}"
        socket = _integer(place / "topology" / "physical_package_id", 0)
        core = _integer(place / "topology" / "core_id", cpu)
        shared = _last_level(place / "cache", socket)
        cache = caches.setdefault(shared, len(caches))
        cores.setdefault((socket, core), Core(socket, numa.get(cpu, socket), cache))
    if not cores:
        raise TopologyError("this process may run on no processor")
    processor = _processor(cpuinfo)
    about = f"This machine's {processor.name or 'processor'}, a rank a core. {figures.CPU_SOURCE}"
    name = f"{len(cores)} core{'s' if len(cores) > 1 else ''} of {platform.node() or 'this machine'}"
    return cores_topology(list(cores.values()), processor, name, about)


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _integer(path: Path, default: int) -> int:
    text = _read(path)
    return int(text) if text is not None and re.fullmatch(r"-?\d+", text) else default


def _last_level(folder: Path, socket: int) -> str:
    """The processors that share the last-level cache, as text; those of the socket where there is none."""
    best, shared = 0, f"socket {socket}"
    for index in folder.glob("index[0-9]*"):
        level = _integer(index / "level", 0)
        if level >= 3 and level > best:
            best, shared = level, _read(index / "shared_cpu_list") or shared
    return shared


def _numa_nodes(folder: Path) -> dict[int, int]:
    nodes: dict[int, int] = {}
    for node in folder.glob("node[0-9]*"):
        for span in (_read(node / "cpulist") or "").split(","):
            if match := re.fullmatch(r"(\d+)(?:-(\d+))?", span):
                for cpu in range(int(match[1]), int(match[2] or match[1]) + 1):
                    nodes[cpu] = int(node.name.removeprefix("node"))
    return nodes


def _processor(cpuinfo: Path) -> Processor:
    fields: dict[str, str] = {}
    for line in (_read(cpuinfo) or "").splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip(), value.strip())

    def number(name: str) -> int:
        return int(fields[name]) if fields.get(name, "").isdecimal() else 0

    return Processor(
        platform.machine(),
        fields.get("vendor_id", ""),
        number("cpu family"),
        number("model"),
        fields.get("model name", ""),
    )
