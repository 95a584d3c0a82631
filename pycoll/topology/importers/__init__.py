"""Topologies from what other tools write: nvidia-smi, NCCL, hwloc, and from this machine itself."""

from __future__ import annotations

import re

from pycoll.errors import InvalidArgument, TopologyError
from pycoll.topology.importers.here import import_here
from pycoll.topology.importers.hwloc_xml import import_hwloc_xml
from pycoll.topology.importers.nccl_xml import import_nccl_xml
from pycoll.topology.importers.nvidia_smi import import_nvidia_smi
from pycoll.topology.model import Topology

__all__ = [
    "FORMATS",
    "import_here",
    "import_hwloc_xml",
    "import_nccl_xml",
    "import_nvidia_smi",
    "import_text",
]

FORMATS = ("nvidia-smi", "nccl", "hwloc")


def import_text(text: str, *, format: str = "auto", gpu: str | None = None, file: str = "input") -> Topology:
    """The topology that a text describes, whichever tool wrote it.

    ``format`` is "nvidia-smi", "nccl", "hwloc", or "auto" to tell by the text. ``gpu`` is for nvidia-smi.
    Raises TopologyError for text that none of them wrote.
    """
    if format == "auto":
        format = _recognised(text, file)
    if format == "nvidia-smi":
        return import_nvidia_smi(text, gpu=gpu, file=file)
    if gpu is not None:
        raise InvalidArgument("gpu goes with nvidia-smi topo -m only; XML says itself what it holds")
    if format == "nccl":
        return import_nccl_xml(text, file=file)
    if format == "hwloc":
        return import_hwloc_xml(text, file=file)
    raise InvalidArgument(f"there is no format {format!r}; there are auto, {', '.join(FORMATS)}")


def _recognised(text: str, file: str) -> str:
    if re.search(r"<system\b", text):
        return "nccl"
    if re.search(r"<topology\b", text):
        return "hwloc"
    if re.search(r"\bGPU0\b", text):
        return "nvidia-smi"
    raise TopologyError(
        f"{file}: neither `nvidia-smi topo -m` (GPU0 ...), NCCL's XML (<system>) nor hwloc's (<topology>)"
    )
