"""hwloc's XML, version 2: `lstopo --of xml`."""

from __future__ import annotations

from pycoll.topology.importers import figures
from pycoll.topology.importers.processors import Core, Processor, cores_topology
from pycoll.topology.importers.xml_text import Element, parse_xml
from pycoll.topology.model import Topology

__all__ = ["import_hwloc_xml"]


def import_hwloc_xml(text: str, *, file: str = "hwloc topology") -> Topology:
    """The cores of the machine in hwloc's XML, a rank on each: caches, NUMA nodes, sockets.

    Raises TopologyError, with line and element, for what is malformed, and for version 1.
    """
    root = parse_xml(text, file)
    if root.tag != "topology":
        raise root.error('hwloc\'s XML begins with <topology version="2.0">')
    version = root.text("version", "1.0")
    if not version.startswith(("2.", "3.")):
        raise root.error(f"this is version {version}; lstopo of hwloc 2 writes version 2: lstopo --of xml")
    machine = next(root.named("object"), None)
    if machine is None or machine.text("type") != "Machine":
        raise root.error('holds no <object type="Machine">')
    cores: list[Core] = []
    _walk(machine, [], cores, {})
    if not cores:
        raise machine.error("holds no Core and no PU, so that there is nothing for a rank to live on")
    about = f"Imported from hwloc's XML, a rank a core. {figures.CPU_SOURCE}"
    host = _info(machine, "HostName") or "a machine"
    return cores_topology(cores, _processor(machine), f"{len(cores)} cores of {host}", about)


def _walk(element: Element, path: list[Element], cores: list[Core], numbers: dict[int, int]) -> None:
    kind = element.text("type")
    has_core = any(above.text("type") == "Core" for above in path)
    if kind == "Core" or (kind == "PU" and not has_core):
        cores.append(_core([*path, element], numbers))
        return
    for child in element.named("object"):
        _walk(child, [*path, element], cores, numbers)


def _core(path: list[Element], numbers: dict[int, int]) -> Core:
    """Where a core sits; whatever the machine does not have, its socket or the machine stands for."""
    machine = path[0]
    socket = cache = numa = machine
    for element in path:
        kind = element.text("type")
        if kind == "Package":
            socket = cache = numa = element
        elif kind == "L3Cache":
            cache = element
        # hwloc 2 hangs a NUMA node beside the objects that it is local to.
        if any(child.text("type") == "NUMANode" for child in element.named("object")):
            numa = element
    if cache not in (socket, machine) and path.index(numa) > path.index(cache):
        cache = numa

    def number(element: Element) -> int:
        return numbers.setdefault(id(element), len(numbers))

    return Core(number(socket), number(numa), number(cache))


def _info(element: Element, name: str) -> str:
    """An <info name= value=> of an object or of any below it."""
    for inner in element.walk():
        if inner.tag == "info" and inner.attributes.get("name") == name:
            return inner.text("value", "")
    return ""


def _processor(machine: Element) -> Processor:
    def number(name: str) -> int:
        text = _info(machine, name)
        return int(text) if text.isdecimal() else 0

    return Processor(
        arch=_info(machine, "Architecture") or "x86_64",
        vendor=_info(machine, "CPUVendor"),
        family=number("CPUFamilyNumber"),
        model=number("CPUModelNumber"),
        name=_info(machine, "CPUModel"),
    )
