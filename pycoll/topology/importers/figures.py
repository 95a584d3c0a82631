"""What importers assume where their input names a sort of link but no rate, each figure with its source.

Rates are effective ones of one direction, in bytes/s; latencies are of one link, in seconds. NCCL's are in
its src/graph/topo.h and, for latencies (hwLat, LL protocol), src/graph/tuning.cc.
"""

from __future__ import annotations

from dataclasses import dataclass

from pycoll.errors import InvalidArgument

__all__ = [
    "CPU_SOURCE",
    "GPUS",
    "NVLINK_LATENCY",
    "PCIE_LATENCY",
    "SOURCE",
    "SYS_LATENCY",
    "Gpu",
    "gpu_named",
]

GB = 1e9
SOURCE = (
    "Rates and latencies are not measured: they are the effective figures that NCCL assumes for each sort of "
    "link (src/graph/topo.h, src/graph/tuning.cc). `pycoll topo probe` measures."
)

# GPU to GPU over NVLink takes 0.6 us, over PCIe 1 us; half of it on either side of a switch.
NVLINK_LATENCY = 0.3e-6
NVLINK_DIRECT_LATENCY = 0.6e-6
PCIE_LATENCY = 0.5e-6
SYS_LATENCY = 0.5e-6


@dataclass(frozen=True)
class Gpu:
    """A generation of GPUs: compute capability, rate of one NVLink, the most NVLinks a GPU has, PCIe."""

    name: str
    capability: int
    nvlink: float
    nvlinks: int
    pcie_generation: int


# NCCL: SM60_NVLINK_BW 18, SM70 20, SM80 20, SM86 12, SM90 20.6, SM100 40.1 GB/s. Links: NVIDIA's data sheets.
GPUS = (
    Gpu("p100", 60, 18.0 * GB, 4, 3),
    Gpu("v100", 70, 20.0 * GB, 6, 3),
    Gpu("a100", 80, 20.0 * GB, 12, 4),
    Gpu("a40", 86, 12.0 * GB, 4, 4),
    Gpu("h100", 90, 20.6 * GB, 18, 5),
    Gpu("b200", 100, 40.1 * GB, 18, 5),
)
_ALIASES = {"h200": "h100", "h800": "h100", "gb200": "b200", "b300": "b200", "a800": "a100", "a30": "a100"}
_ALIASES |= {"a6000": "a40", "3090": "a40", "rtx3090": "a40", "a10": "a40", "l40": "a40", "l40s": "a40"}


def gpu_named(name: str) -> Gpu:
    """The generation of a GPU by its name; InvalidArgument, with the names known, otherwise."""
    plain = name.lower().replace(" ", "").removeprefix("nvidia")
    for gpu in GPUS:
        if gpu.name == _ALIASES.get(plain, plain):
            return gpu
    known = [gpu.name for gpu in GPUS] + list(_ALIASES)
    raise InvalidArgument(f"GPU {name!r} is not known; there are {', '.join(known)}")


def gpu_of_capability(capability: int) -> Gpu:
    """The newest generation that is not newer than a compute capability (90 for sm_90)."""
    older = [gpu for gpu in GPUS if gpu.capability <= capability]
    return older[-1] if older else GPUS[0]


def pcie_rate(generation: int, width: int = 16) -> float:
    """NCCL's 12 GB/s for Gen3 x16, twice that a generation: 76 % of the data sheet's figure."""
    return 12.0 * GB * 2.0 ** (generation - 3) * width / 16


# GT/s of a lane -> generation
PCIE_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}


def socket_rate(arch: str, vendor: str, family: int, model: int) -> tuple[float, str]:
    """Rate between two sockets, and NCCL's name for it (BDW_QPI_BW, SKL_QPI_BW, ...)."""
    if arch.startswith("arm") or arch == "aarch64":
        return 6.0 * GB, "ARM_BW"
    if arch.startswith("ppc"):
        return 32.0 * GB, "P9_BW"
    if vendor == "AuthenticAMD":
        if family >= 26:
            return 32.0 * GB, "AMD_ZEN5_BW"
        return (24.0 * GB, "AMD_ZEN34_BW") if family == 25 else (16.0 * GB, "AMD_ZEN12_BW")
    if vendor == "GenuineIntel" and family == 6:
        for least, rate, name in (
            (0xCF, 40.0, "ERP_QPI_BW"),
            (0x8F, 22.0, "SRP_QPI_BW"),
            (0x55, 10.0, "SKL_QPI_BW"),
        ):
            if model >= least:
                return rate * GB, name
    return 6.0 * GB, "BDW_QPI_BW"


# Where nothing tells the CPUs: those usually found with PCIe of a generation (NCCL's SKL_QPI_BW, AMD_BW for
# Rome, SRP_QPI_BW for Sapphire Rapids).
SOCKET_RATE_BESIDE = {3: 10.0 * GB, 4: 16.0 * GB, 5: 22.0 * GB}

# Ranks on cores. One core moves 10 to 14 GB/s (McCalpin on single-core bandwidth, 2010 to 2023); core to core
# takes 20 to 50 ns within an L3, 100 ns and more between two of a socket (AnandTech's core-to-core tables).
CORE_RATE = 12.0 * GB
CORE_LATENCY = 20e-9
# 32 B a cycle at 2 GHz between a core complex and the I/O die (AMD, EPYC 9004 architecture overview).
COMPLEX_RATE = 64.0 * GB
COMPLEX_LATENCY = 30e-9
SOCKET_LATENCY = 70e-9  # remote over local memory, as Intel's Memory Latency Checker shows it
CPU_SOURCE = (
    "Rates and latencies are typical, not measured: 12 GB/s a core (J. McCalpin on single-core bandwidth), "
    "64 GB/s between an L3 and the rest of its socket (AMD, EPYC 9004 architecture overview), between "
    "sockets what NCCL assumes (src/graph/topo.h). `pycoll topo probe` measures."
)
