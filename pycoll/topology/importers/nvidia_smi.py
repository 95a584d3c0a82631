"""The matrix that `nvidia-smi topo -m` prints."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from pycoll.errors import TopologyError
from pycoll.topology.importers import figures
from pycoll.topology.importers.figures import GPUS, Gpu, gpu_named, pcie_rate
from pycoll.topology.importers.tidy import tidied
from pycoll.topology.model import Link, Node, Topology

__all__ = ["import_nvidia_smi"]

_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_COLUMN = re.compile(r"GPU\d+|NIC\d+|(?:mlx|mthca|bnxt|irdma|efa|hns|rocep)\w*")
_LEGEND = re.compile(r"\s*(NIC\d+):\s*(\S+)\s*")
_NVLINK = re.compile(r"NV(\d+)")
# From near to far; NVLink says nothing about where a pair sits in the PCIe tree.
_PIX, _PXB, _PHB, _NODE, _SYS = range(5)
_DISTANCES = {"PIX": _PIX, "PXB": _PXB, "PHB": _PHB, "NODE": _NODE, "SYS": _SYS, "SOC": _SYS}


@dataclass
class _Matrix:
    names: list[str] = field(default_factory=list)
    cells: dict[tuple[int, int], str] = field(default_factory=dict)
    lines: dict[int, int] = field(default_factory=dict)  # row -> line of the text
    numa: dict[int, str] = field(default_factory=dict)
    legend: dict[str, str] = field(default_factory=dict)

    def gpus(self) -> list[int]:
        return [index for index, name in enumerate(self.names) if name.startswith("GPU")]

    def distance(self, a: int, b: int) -> int | None:
        return _DISTANCES.get(self.cells[a, b])

    def nvlinks(self, a: int, b: int) -> int:
        match = _NVLINK.fullmatch(self.cells[a, b])
        return int(match[1]) if match else 0


def import_nvidia_smi(text: str, *, gpu: str | None = None, file: str = "nvidia-smi topo -m") -> Topology:
    """The topology that a matrix of `nvidia-smi topo -m` describes; a rank on each GPU.

    The matrix names sorts of links only. ``gpu`` says what the GPUs are ("a100", "h100"), and with that the
    rates of NVLink and PCIe; without it, they are told by their number of NVLinks. PHB and NODE both become a
    way through the CPU, SYS one from CPU to CPU. Network adapters become switches that a fabric may be linked
    to.

    Raises TopologyError, with the line, for a matrix that is malformed or does not agree with itself.
    """
    matrix = _parse(text, file)
    generation = gpu_named(gpu) if gpu is not None else _guess(matrix)
    how = generation.name + ("" if gpu is not None else ", as the number of its NVLinks suggests")
    builder = _Builder(matrix, generation)
    builder.pcie_tree()
    builder.nvlinks()
    about = f"Imported from `nvidia-smi topo -m`. Each GPU is taken for: {how}. {figures.SOURCE}"
    count = len(matrix.gpus())
    name = f"{count} GPU{'s' if count > 1 else ''} ({generation.name})"
    nodes, links, _ = tidied(builder.nodes, builder.links)  # the GPUs stay first
    topology = Topology(name, tuple(nodes), tuple(links), tuple(range(count)), about=about)
    topology.check()
    return topology


def _parse(text: str, file: str) -> _Matrix:
    lines = [_ESCAPES.sub("", line) for line in text.splitlines()]
    matrix = _Matrix()
    numa_column: int | None = None
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not matrix.names:
            if words and _COLUMN.fullmatch(words[0]) and "X" not in words:
                matrix.names = [word for word in words if _COLUMN.fullmatch(word)]
                if "NUMA Affinity" in line:
                    numa_column = 2 if "CPU Affinity" in line else 1
            continue
        if words and words[0] in matrix.names and len(matrix.lines) < len(matrix.names):
            _add_row(matrix, words, f"{file}:{number}", number, numa_column)
        elif match := _LEGEND.fullmatch(line):
            matrix.legend[match[1]] = match[2]
    if not matrix.names:
        raise TopologyError(f"{file}: no header `GPU0 GPU1 ...`; give the output of nvidia-smi topo -m")
    if not matrix.gpus():
        raise TopologyError(f"{file}: the matrix has no GPU")
    for index, name in enumerate(matrix.names):
        if index not in matrix.lines:
            raise TopologyError(f"{file}: the row of {name} is missing")
    for (a, b), cell in matrix.cells.items():
        if matrix.cells[b, a] != cell:
            raise TopologyError(
                f"{file}:{matrix.lines[a]}: {matrix.names[a]} to {matrix.names[b]} is {cell}, but the way "
                f"back is {matrix.cells[b, a]} (line {matrix.lines[b]})"
            )
    return matrix


def _add_row(matrix: _Matrix, words: list[str], where: str, number: int, numa_column: int | None) -> None:
    row = matrix.names.index(words[0])
    if row in matrix.lines:
        raise TopologyError(f"{where}: {words[0]} has a row already, on line {matrix.lines[row]}")
    cells = words[1 : 1 + len(matrix.names)]
    if len(cells) < len(matrix.names):
        raise TopologyError(f"{where}: {words[0]} has {len(cells)} cells for {len(matrix.names)} columns")
    for column, cell in enumerate(cells):
        pair = f"{words[0]} to {matrix.names[column]}"
        if (cell == "X") != (row == column):
            raise TopologyError(f"{where}: {pair} is {cell}; X stands on the diagonal")
        if cell != "X" and cell not in _DISTANCES and not _NVLINK.fullmatch(cell):
            raise TopologyError(f"{where}: {pair} is {cell!r}; known are NV#, {', '.join(_DISTANCES)}")
        matrix.cells[row, column] = cell
    matrix.lines[row] = number
    rest = words[1 + len(matrix.names) :]
    if numa_column is not None and len(rest) >= numa_column and rest[numa_column - 1] != "N/A":
        matrix.numa[row] = rest[numa_column - 1]


def _guess(matrix: _Matrix) -> Gpu:
    """By the NVLinks of a GPU: H100 has 18, A100 12, V100 6. The most recent of those that fit the least."""
    gpus = matrix.gpus()
    most = max((matrix.nvlinks(a, b) for a in gpus for b in gpus if a != b), default=0)
    if not _switched(matrix):
        most = max(sum(matrix.nvlinks(a, b) for b in gpus if a != b) for a in gpus)
    by_name = {gpu.name: gpu for gpu in GPUS}
    if most == 4 and len(gpus) == 2:
        return by_name["a40"]  # a bridge across two workstation cards
    candidates = ("a100",) if most == 0 else ("p100", "v100", "a100", "h100")
    fitting = [by_name[name] for name in candidates if by_name[name].nvlinks >= most]
    return fitting[0] if fitting else by_name["h100"]


def _switched(matrix: _Matrix) -> bool:
    """More NVLinks to all others together than any GPU has: then they end at switches."""
    gpus = matrix.gpus()
    most = max(gpu.nvlinks for gpu in GPUS)
    return any(sum(matrix.nvlinks(a, b) for b in gpus if a != b) > most for a in gpus)


class _Builder:
    def __init__(self, matrix: _Matrix, generation: Gpu) -> None:
        self.matrix = matrix
        self.generation = generation
        self.nodes: list[Node] = []
        self.links: list[Link] = []
        self.pcie = pcie_rate(generation.pcie_generation)
        self.members: dict[int, int] = {}  # row of the matrix -> node
        for row in matrix.gpus():
            self.members[row] = self.add(matrix.names[row].lower(), "device")
        for row, name in enumerate(matrix.names):
            if row not in self.members:
                self.members[row] = self.add(matrix.legend.get(name, name.lower()), "switch")

    def add(self, name: str, kind: str) -> int:
        self.nodes.append(Node(name, "device" if kind == "device" else "switch"))
        return len(self.nodes) - 1

    def join(self, a: int, b: int, rate: float, latency: float, kind: str) -> None:
        self.links += [Link(a, b, rate, latency, kind), Link(b, a, rate, latency, kind)]

    def pcie_tree(self) -> None:
        """CPUs over bridges over PCIe switches over devices; a level of one member is left out."""
        sort = f"PCIe{self.generation.pcie_generation}"
        rows = list(range(len(self.matrix.names)))
        cpus: list[int] = []
        for near in self._groups(rows, self._same_socket):
            top: list[int] = []
            for bridged in self._groups(near, lambda a, b: self._within(a, b, _PXB)):
                below = [
                    self._under("pix", group, sort)
                    for group in self._groups(bridged, lambda a, b: self._within(a, b, _PIX))
                ]
                top.append(self._hang("pxb", below, sort))
            if len(near) == len(rows) and len(top) == 1:
                return  # one tree; the CPU above it would lead nowhere
            cpu = self.add(f"cpu{len(cpus)}", "switch")
            for member in top:
                self.join(member, cpu, self.pcie, figures.PCIE_LATENCY, sort)
            cpus.append(cpu)
        rate = figures.SOCKET_RATE_BESIDE[self.generation.pcie_generation]
        for first, cpu in enumerate(cpus):
            for other in cpus[first + 1 :]:
                self.join(cpu, other, rate, figures.SYS_LATENCY, "SYS")

    def _under(self, name: str, rows: list[int], sort: str) -> int:
        return self._hang(name, [self.members[row] for row in rows], sort)

    def _hang(self, name: str, nodes: list[int], sort: str) -> int:
        if len(nodes) == 1:
            return nodes[0]
        number = sum(node.name.startswith(name) for node in self.nodes)
        switch = self.add(f"{name}{number}", "switch")
        for node in nodes:
            self.join(node, switch, self.pcie, figures.PCIE_LATENCY, sort)
        return switch

    def _within(self, a: int, b: int, level: int) -> bool:
        distance = self.matrix.distance(a, b)
        return distance is not None and distance <= level

    def _same_socket(self, a: int, b: int) -> bool:
        if self._within(a, b, _NODE):
            return True
        numa = self.matrix.numa  # where that is not known either, one socket is the simplest guess
        return self.matrix.distance(a, b) is None and numa.get(a) == numa.get(b)

    def _groups(self, rows: list[int], together: Callable[[int, int], bool]) -> list[list[int]]:
        """Rows in groups; what NVLink hides of a pair, a third one in common tells."""
        groups: list[list[int]] = []
        for row in rows:
            touching = [group for group in groups if any(together(row, other) for other in group)]
            merged = sorted([row, *(other for group in touching for other in group)])
            groups = [group for group in groups if group not in touching] + [merged]
        return sorted(groups)

    def nvlinks(self) -> None:
        gpus = self.matrix.gpus()
        rate, sort = self.generation.nvlink, f"NVLink ({self.generation.name})"
        if not _switched(self.matrix):
            for a in gpus:
                for b in gpus:
                    for _ in range(self.matrix.nvlinks(a, b) if a < b else 0):
                        self.join(self.members[a], self.members[b], rate, figures.NVLINK_DIRECT_LATENCY, sort)
            return
        switch = self.add("nvswitch", "switch")
        for gpu in gpus:
            count = max(self.matrix.nvlinks(gpu, other) for other in gpus if other != gpu)
            if count:
                self.join(self.members[gpu], switch, count * rate, figures.NVLINK_LATENCY, sort)
