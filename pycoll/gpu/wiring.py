"""How the GPUs of this host are wired, as the driver tells it: NVML, or else ``nvidia-smi topo -m``.

    topology = wiring.here()             # a rank on each GPU that this process may use

NVML is reached through the package nvidia-ml-py, which is optional. Both tell sorts of links, not rates;
those are the figures that NCCL assumes, until ``pycoll topo probe --device cuda`` has measured them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from pycoll.errors import Unsupported
from pycoll.topology import Topology
from pycoll.topology.importers import import_nvidia_smi
from pycoll.topology.importers.figures import Gpu, gpu_named, gpu_of_capability

__all__ = ["Board", "generation", "here", "of_nvidia_smi", "of_nvml", "of_places", "subset", "visible"]

_SECONDS = 20.0
#: NVML's levels of the nearest common ancestor of two devices, in nvidia-smi's words.
_ANCESTORS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}


@dataclass(frozen=True)
class Board:
    """A GPU as the driver lists it."""

    name: str
    uuid: str
    bus: str
    numa: int | None


def here() -> Topology:
    """The GPUs that this process may use (CUDA_VISIBLE_DEVICES), in CUDA's order, a rank on each.

    Raises Unsupported where neither NVML nor nvidia-smi answers.
    """
    topology, uuids = _host()
    return subset(topology, visible(uuids))


def _host() -> tuple[Topology, list[str]]:
    """All GPUs of the host, and their UUIDs."""
    reasons = []
    for source in (of_nvml, of_nvidia_smi):
        try:
            return source()
        except Unsupported as error:
            reasons.append(str(error))
    raise Unsupported(f"how GPUs are wired cannot be read here: {'; '.join(reasons)}")


def subset(topology: Topology, gpus: Sequence[int]) -> Topology:
    """The host's topology with ranks on some of its GPUs."""
    chosen = [gpu for gpu in gpus if gpu < len(topology.ranks)]
    if not chosen:
        raise Unsupported("no GPU of this host is visible to this process (CUDA_VISIBLE_DEVICES)")
    return topology if chosen == list(range(len(topology.ranks))) else topology.place(chosen)


def of_places(places: Sequence[str]) -> Topology:
    """The GPUs that the ranks of a group use: the driver's numbers, or (beginnings of) UUIDs. Raises
    Unsupported as :func:`here` does."""
    topology, uuids = _host()
    found = []
    for place in places:
        if place.isdecimal():
            found.append(int(place))
        else:
            found += [i for i, uuid in enumerate(uuids) if uuid.startswith(place)][:1]
    return subset(topology, list(dict.fromkeys(found)))


def visible(uuids: Sequence[str]) -> list[int]:
    """The host's GPUs, by the driver's numbers, that CUDA_VISIBLE_DEVICES leaves, in its order: numbers, or
    beginnings of UUIDs; like CUDA, up to the first entry that names none. All where it is not set."""
    text = os.environ.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return list(range(len(uuids)))
    found: list[int] = []
    for entry in text.split(","):
        word = entry.strip()
        if word.isdecimal() and int(word) < len(uuids):
            found.append(int(word))
        elif word.startswith(("GPU-", "MIG-")) and any(uuid.startswith(word) for uuid in uuids):
            found.append(next(i for i, uuid in enumerate(uuids) if uuid.startswith(word)))
        else:
            break
    return found


def generation(name: str, capability: tuple[int, int] | None = None) -> Gpu:
    """The generation of a GPU by its product's name ("NVIDIA H100 80GB HBM3"), else by its capability."""
    for word in name.replace("-", " ").replace("_", " ").split():
        with suppress(Exception):
            return gpu_named(word)
    major, minor = capability or (8, 0)
    return gpu_of_capability(10 * major + minor)


# NVML


def of_nvml() -> tuple[Topology, list[str]]:
    """The topology of all GPUs of this host, and their UUIDs, from NVML. Raises Unsupported."""
    try:
        nvml = import_module("pynvml")
    except ImportError:
        raise Unsupported("NVML needs the package nvidia-ml-py (pip install nvidia-ml-py)") from None
    try:
        nvml.nvmlInit()
    except Exception as error:  # nvml.NVMLError, which is not there before the import
        raise Unsupported(f"NVML: {error}") from None
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        if not handles:
            raise Unsupported("NVML: there is no GPU")
        boards = [_board(nvml, handle) for handle in handles]
        major_minor = nvml.nvmlDeviceGetCudaComputeCapability(handles[0])
        text = _as_matrix(boards, _cells(nvml, handles, [board.bus for board in boards]))
    except nvml.NVMLError as error:
        raise Unsupported(f"NVML: {error}") from None
    finally:
        with suppress(Exception):
            nvml.nvmlShutdown()
    gpu = generation(boards[0].name, tuple(major_minor))
    topology = import_nvidia_smi(text, gpu=gpu.name, file="NVML")
    return _named(topology, boards, "NVML"), [board.uuid for board in boards]


def _board(nvml: Any, handle: Any) -> Board:
    bus = _text(nvml.nvmlDeviceGetPciInfo(handle).busId).lower()
    name, uuid = _text(nvml.nvmlDeviceGetName(handle)), _text(nvml.nvmlDeviceGetUUID(handle))
    return Board(name, uuid, bus, _numa_of(bus))


def _numa_of(bus: str) -> int | None:
    """Of a PCI device, from Linux; NVML's domains have eight digits, the kernel's four."""
    domain, _, rest = bus.partition(":")
    with suppress(OSError, ValueError):
        node = int(Path(f"/sys/bus/pci/devices/{domain[-4:]}:{rest}/numa_node").read_text())
        return node if node >= 0 else None
    return None


def _cells(nvml: Any, handles: list[Any], buses: list[str]) -> list[list[str]]:
    """What nvidia-smi would print for each pair."""
    ends = [_nvlinks(nvml, handle, buses) for handle in handles]
    cells = []
    for a, handle in enumerate(handles):
        row = []
        for b, other in enumerate(handles):
            if a == b:
                row.append("X")
                continue
            direct = ends[a].get(b, 0)
            through = min(ends[a].get(None, 0), ends[b].get(None, 0))
            count = direct or through
            ancestor = nvml.nvmlDeviceGetTopologyCommonAncestor(handle, other)
            row.append(f"NV{count}" if count else _ANCESTORS.get(int(ancestor), "SYS"))
        cells.append(row)
    return cells


def _nvlinks(nvml: Any, handle: Any, buses: list[str]) -> dict[int | None, int]:
    """A GPU's active NVLinks by the GPU at their other end; None: a switch."""
    found: dict[int | None, int] = {}
    for link in range(getattr(nvml, "NVML_NVLINK_MAX_LINKS", 18)):
        try:
            if not nvml.nvmlDeviceGetNvLinkState(handle, link):
                continue
            bus = _text(nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId).lower()
        except nvml.NVMLError:
            continue  # there is no such link, or no NVLink at all
        end = buses.index(bus) if bus in buses else None
        found[end] = found.get(end, 0) + 1
    return found


def _text(value: bytes | str) -> str:
    """Older versions of the package give bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _as_matrix(boards: list[Board], cells: list[list[str]]) -> str:
    names = [f"GPU{index}" for index in range(len(boards))]
    lines = ["\t".join(["", *names, "CPU Affinity", "NUMA Affinity"])]
    for name, row, board in zip(names, cells, boards, strict=True):
        lines.append("\t".join([name, *row, "N/A", "N/A" if board.numa is None else str(board.numa)]))
    return "\n".join(lines) + "\n"


def _named(topology: Topology, boards: list[Board], source: str) -> Topology:
    models = list(dict.fromkeys(board.name for board in boards))
    about = topology.about.replace("Imported from `nvidia-smi topo -m`.", f"Read from {source}.")
    return replace(topology, name=f"{len(boards)} x {', '.join(models)}", about=about, text=None)


# nvidia-smi


def of_nvidia_smi() -> tuple[Topology, list[str]]:
    """The same from ``nvidia-smi topo -m``. Raises Unsupported."""
    listed = _smi("--query-gpu=name,uuid,pci.bus_id", "--format=csv,noheader")
    fields = [[field.strip() for field in line.split(",")] for line in listed.splitlines() if line.strip()]
    boards = [Board(row[0], row[1], row[2].lower(), None) for row in fields if len(row) == 3]
    if not boards:
        raise Unsupported("nvidia-smi lists no GPU")
    topology = import_nvidia_smi(_smi("topo", "-m"), gpu=generation(boards[0].name).name)
    return _named(topology, boards, "`nvidia-smi topo -m`"), [board.uuid for board in boards]


def _smi(*arguments: str) -> str:
    program = shutil.which("nvidia-smi")
    if program is None:
        raise Unsupported("there is no nvidia-smi")
    try:
        done = subprocess.run(
            [program, *arguments], capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unsupported(f"nvidia-smi {' '.join(arguments)}: {error}") from None
    if done.returncode != 0:
        text = " ".join((done.stderr or done.stdout).split())[:200]
        raise Unsupported(f"nvidia-smi {' '.join(arguments)}: {text or f'exit code {done.returncode}'}")
    return done.stdout
