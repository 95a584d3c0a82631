"""NCCL's topology XML: what NCCL_TOPO_DUMP_FILE writes and NCCL_TOPO_FILE reads."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from dataclasses import dataclass

from pycoll.topology.importers import figures
from pycoll.topology.importers.figures import gpu_of_capability, pcie_rate, socket_rate
from pycoll.topology.importers.tidy import tidied
from pycoll.topology.importers.xml_text import Element, parse_xml
from pycoll.topology.model import Link, Node, Topology

__all__ = ["import_nccl_xml"]

_NVSWITCH_CLASS, _GPU_CLASSES = "0x0680", ("0x0302", "0x0300")
_DEFAULT_NET = 10_000  # Mbit/s, as NCCL takes it for adapters that do not say


@dataclass
class _Gpu:
    node: int
    element: Element
    cpu: int
    rank: int


def import_nccl_xml(text: str, *, file: str = "NCCL topology") -> Topology:
    """The topology in NCCL's XML: CPUs, PCIe tree, NVLinks, adapters; a rank on each GPU, in order of rank.

    PCIe rates follow from link_speed and link_width, NVLink's from the GPU's sm, adapters' from their speed
    and their slot, whichever is less. The NVSwitches of a host become one, as in NCCL. A bridge above one
    device only is left out.

    Raises TopologyError, with line and element, for what is malformed.
    """
    root = parse_xml(text, file)
    if root.tag != "system":
        raise root.error('a NCCL topology begins with <system version="1">')
    builder = _Builder()
    cpus = list(root.named("cpu"))
    if not cpus:
        raise root.error("holds no <cpu>; PCIe devices stand below one")
    hosts = list(dict.fromkeys(cpu.text("host_hash", "") for cpu in cpus))
    for number, host in enumerate(hosts):
        prefix = f"host{number}." if len(hosts) > 1 else ""
        builder.host([cpu for cpu in cpus if cpu.text("host_hash", "") == host], prefix)
    if not builder.gpus:
        raise root.error("holds no <gpu>, so that there is nothing for a rank to live on")
    ordered = sorted(builder.gpus.values(), key=lambda gpu: gpu.rank)
    for before, gpu in itertools.pairwise(ordered):
        if before.rank == gpu.rank:
            raise gpu.element.error(f"rank {gpu.rank} is taken, by the GPU on line {before.element.line}")
    about = f"Imported from NCCL's topology XML. {figures.SOURCE}"
    name = f"{len(ordered)} GPU{'s' if len(ordered) > 1 else ''} (NCCL topology)"
    nodes, links, moved = tidied(builder.nodes, builder.links)
    ranks = tuple(moved[gpu.node] for gpu in ordered)
    topology = Topology(name, tuple(nodes), tuple(links), ranks, about=about)
    topology.check()
    return topology


class _Builder:
    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.links: list[Link] = []
        self.gpus: dict[str, _Gpu] = {}  # by bus id, with the host's prefix
        self.taken: Counter[str] = Counter()
        self.prefix = ""
        self.bridges = 0

    def add(self, name: str, kind: str) -> int:
        name = self.prefix + re.sub(r"[^A-Za-z0-9._:-]", "_", name)
        self.taken[name] += 1
        if self.taken[name] > 1:
            name += f".{self.taken[name] - 1}"
        self.nodes.append(Node(name, "device" if kind == "device" else "switch"))
        return len(self.nodes) - 1

    def join(self, a: int, b: int, rate: float, latency: float, kind: str) -> None:
        self.links += [Link(a, b, rate, latency, kind), Link(b, a, rate, latency, kind)]

    def host(self, cpus: list[Element], prefix: str) -> None:
        self.prefix = prefix
        self.bridges = 0
        numbers: dict[int, int] = {}
        before = set(self.gpus)
        for cpu in cpus:
            numa = cpu.integer("numaid", -1)
            if numa in numbers:
                raise cpu.error(f"numaid {numa} comes twice")
            numbers[numa] = self.add(f"cpu{max(numa, 0)}", "switch")
            for child in cpu.children:
                if child.tag == "pci":
                    self.pci(child, numbers[numa], numbers[numa], None)
                elif child.tag == "nic":
                    self.adapters(child, numbers[numa], None)
        rate, source = socket_rate(
            cpus[0].text("arch", "x86_64"),
            cpus[0].text("vendor", ""),
            cpus[0].integer("familyid", 0),
            cpus[0].integer("modelid", 0),
        )
        nodes = list(numbers.values())
        for index, cpu_node in enumerate(nodes):
            for other in nodes[index + 1 :]:
                self.join(cpu_node, other, rate, figures.SYS_LATENCY, f"sockets ({source})")
        self.nvlinks({bus: gpu for bus, gpu in self.gpus.items() if bus not in before})

    def pci(self, element: Element, parent: int, cpu: int, above: float | None) -> None:
        """A PCIe device; ``above`` is the least rate of the bridges between it and ``parent``."""
        rate = _slot(element)
        rate = rate if above is None else min(rate, above)
        inner = [child for child in element.children if child.tag in ("pci", "gpu", "nic")]
        bus = element.text("busid")
        if len(inner) > 1:
            bridge = self.add(f"pcie{self.bridges}", "switch")
            self.bridges += 1
            self.join(bridge, parent, rate, figures.PCIE_LATENCY, "PCIe")
            parent, above = bridge, None
        else:
            above = rate
        for child in inner:
            if child.tag == "pci":
                self.pci(child, parent, cpu, above)
            elif child.tag == "gpu":
                self.gpu(child, bus, parent, cpu, above)
            else:
                self.adapters(child, parent, above)

    def gpu(self, element: Element, bus: str, parent: int, cpu: int, rate: float | None) -> None:
        number = element.integer("dev")
        node = self.add(f"gpu{number}", "device")
        key = self.prefix + bus.lower()
        if key in self.gpus:
            raise element.error(f"bus id {bus} comes twice")
        rank = element.integer("rank", number + 1000 * len(self.prefix))
        self.gpus[key] = _Gpu(node, element, cpu, rank)
        self.join(node, parent, rate or pcie_rate(3), figures.PCIE_LATENCY, "PCIe")

    def adapters(self, element: Element, parent: int, slot: float | None) -> None:
        for net in element.named("net"):
            node = self.add(net.text("name", f"net{net.text('dev', '0')}"), "switch")
            speed = net.integer("speed", _DEFAULT_NET)
            port = (speed if speed > 0 else _DEFAULT_NET) * 1e6 / 8
            self.join(node, parent, min(port, slot or port), figures.PCIE_LATENCY, "NIC")

    def nvlinks(self, gpus: dict[str, _Gpu]) -> None:
        switch: int | None = None
        joined: Counter[tuple[int, int]] = Counter()
        for gpu in gpus.values():
            generation = gpu_of_capability(gpu.element.integer("sm", 70))
            sort = f"NVLink ({generation.name})"
            to_switch = to_cpu = 0
            for link in gpu.element.named("nvlink"):
                count, kind = link.integer("count", 1), link.text("tclass", _NVSWITCH_CLASS)
                if count < 1:
                    raise link.error(f"count={count} is not positive")
                if kind.startswith(_NVSWITCH_CLASS):
                    to_switch += count
                elif kind.startswith(_GPU_CLASSES):
                    peer = self._peer(link, gpus)
                    joined[gpu.node, peer.node] += count
                    already = joined[peer.node, gpu.node]  # the other end says the same once more
                    for _ in range(0 if already else count):
                        latency = figures.NVLINK_DIRECT_LATENCY
                        self.join(gpu.node, peer.node, generation.nvlink, latency, sort)
                else:
                    to_cpu += count
            if to_switch:
                switch = self.add("nvswitch", "switch") if switch is None else switch
                self.join(gpu.node, switch, to_switch * generation.nvlink, figures.NVLINK_LATENCY, sort)
            if to_cpu:
                self.join(gpu.node, gpu.cpu, to_cpu * generation.nvlink, figures.NVLINK_LATENCY, sort)

    def _peer(self, link: Element, gpus: dict[str, _Gpu]) -> _Gpu:
        target = link.text("target")
        peer = gpus.get(self.prefix + target.lower())
        if peer is None:
            raise link.error(f"target={target!r} is the bus id of no GPU in this file")
        return peer


def _slot(element: Element) -> float:
    """Rate of a slot; NCCL takes Gen3 x16 where the file does not say."""
    speed, width = element.text("link_speed", ""), element.integer("link_width", 0)
    match = re.match(r"\s*(\d+(?:\.\d+)?)\s*GT/s", speed)
    if speed.strip() and match is None and speed.strip().lower() not in ("unknown", "unknown speed"):
        raise element.error(f'link_speed={speed!r} is not understood; NCCL writes "16.0 GT/s PCIe"')
    generation = 3
    if match is not None:
        known = figures.PCIE_GENERATIONS.get(float(match[1]))
        if known is None:
            raise element.error(f"link_speed={speed!r} is the speed of no PCIe generation")
        generation = known
    if width < 0:
        raise element.error(f"link_width={width} is negative")
    return pcie_rate(generation, width or 16)
