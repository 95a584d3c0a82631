"""How GPUs are joined: by topology files, NVML, nvidia-smi."""

from __future__ import annotations

import stat
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import pycoll
from pycoll.gpu import links, wiring


@pytest.mark.parametrize(
    ("name", "first", "expected"),
    [
        ("dgx-h100", None, {"nvswitch": 28}),
        ("dgx-a100", None, {"nvswitch": 28}),
        ("dgx-1v", None, {"nvlink": 16, "pcie": 12}),
        ("pcie-8gpu", None, {"pcie": 28}),
        ("mi300x-8", None, {"nvlink": 28}),
        ("gb200-nvl72", 8, {"nvswitch": 28}),
        ("hgx-h100-4-rail", 16, {"nvswitch": 56, "nic": 64}),
        ("two_racks", None, {"other": 28}),
    ],
)
def test_classes_of_bundled_machines(name: str, first: int | None, expected: dict[str, int]) -> None:
    topology = pycoll.Topology.load(name)
    if first is not None:
        topology = topology.first(first)
    assert links.classes(topology) == expected
    assert links.summary_of(topology) == "+".join(expected)


def test_one_gpu_has_no_links() -> None:
    assert links.summary_of(pycoll.Topology.load("dgx-h100").first(1)) == "one gpu"


def test_class_of_a_pair() -> None:
    mesh = pycoll.Topology.load("dgx-1v")
    assert links.class_of_pair(mesh, 0, 3) == "nvlink"
    assert links.class_of_pair(mesh, 0, 7) == "pcie"


# NVML


class NvmlError(Exception):
    pass


def nvml(
    names: list[str | bytes],
    nvlinks: dict[tuple[int, int | None], int],
    ancestors: dict[tuple[int, int], int],
) -> Any:
    """A module like pynvml. ``nvlinks``: how many from a GPU to another, or to a switch (None)."""
    buses = [f"00000000:{16 * (i + 1):02X}:00.0" for i in range(len(names))]

    def ends(handle: int) -> list[str]:
        return [
            "00000000:FF:00.0" if other is None else buses[other]
            for (gpu, other), count in nvlinks.items()
            if gpu == handle
            for _ in range(count)
        ]

    def state(handle: int, link: int) -> int:
        if not ends(handle):
            raise NvmlError("Not Supported")
        return int(link < len(ends(handle)))

    module = types.ModuleType("pynvml")
    functions: dict[str, Any] = {
        "NVMLError": NvmlError,
        "NVML_NVLINK_MAX_LINKS": 18,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: len(names),
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetName": lambda handle: names[handle],
        "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}abc",
        "nvmlDeviceGetPciInfo": lambda handle: types.SimpleNamespace(busId=buses[handle]),
        "nvmlDeviceGetCudaComputeCapability": lambda handle: (9, 0),
        "nvmlDeviceGetNvLinkState": state,
        "nvmlDeviceGetNvLinkRemotePciInfo": lambda handle, link: types.SimpleNamespace(
            busId=ends(handle)[link].encode()
        ),
        "nvmlDeviceGetTopologyCommonAncestor": lambda a, b: ancestors[min(a, b), max(a, b)],
    }
    for name, function in functions.items():
        setattr(module, name, function)
    return module


PAIRS = [(a, b) for a in range(4) for b in range(a + 1, 4)]


def test_nvml_with_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    module = nvml(["NVIDIA H100 80GB HBM3"] * 4, {(i, None): 18 for i in range(4)}, dict.fromkeys(PAIRS, 40))
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = wiring.here()
    assert found.name == "4 x NVIDIA H100 80GB HBM3"
    assert links.classes(found) == {"nvswitch": 6}
    (rate,) = {link.bandwidth for link in found.links if "NVLink" in link.kind}
    assert rate == pytest.approx(18 * 20.6e9)
    assert pycoll.Topology.from_yaml(found.to_yaml()) == found


def test_nvml_with_direct_links_and_pcie(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two pairs joined by two links each; between the pairs PCIe and the other socket."""
    ancestors = dict.fromkeys(PAIRS, 50) | {(0, 1): 10, (2, 3): 10}
    joined = {(0, 1): 2, (1, 0): 2, (2, 3): 2, (3, 2): 2}
    monkeypatch.setitem(sys.modules, "pynvml", nvml([b"Tesla V100-SXM2-16GB"] * 4, joined, ancestors))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = wiring.here()
    assert links.classes(found) == {"nvlink": 2, "pcie": 4}
    assert {link.bandwidth for link in found.links if "NVLink" in link.kind} == {20e9}


@pytest.mark.parametrize(
    ("visible", "kept"), [("2,3", [2, 3]), ("GPU-3,0", [3, 0]), ("1,9,2", [1]), ("", None)]
)
def test_visible_gpus(visible: str, kept: list[int] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    module = nvml(["NVIDIA A100-SXM4-40GB"] * 4, {(i, None): 12 for i in range(4)}, dict.fromkeys(PAIRS, 40))
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    if kept is None:
        with pytest.raises(pycoll.Unsupported, match="CUDA_VISIBLE_DEVICES"):
            wiring.here()
        return
    found = wiring.here()
    assert [found.nodes[index].name for index in found.ranks] == [f"gpu{index}" for index in kept]


def test_the_gpus_of_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    module = nvml(["NVIDIA A100-SXM4-40GB"] * 4, {(i, None): 12 for i in range(4)}, dict.fromkeys(PAIRS, 40))
    monkeypatch.setitem(sys.modules, "pynvml", module)
    found = wiring.of_places(["3", "GPU-1", "3"])
    assert [found.nodes[index].name for index in found.ranks] == ["gpu3", "gpu1"]


@pytest.mark.parametrize(
    ("name", "capability", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", None, "h100"),
        ("NVIDIA H200", None, "h100"),
        ("Tesla V100-SXM2-16GB", None, "v100"),
        ("NVIDIA A100-SXM4-40GB", None, "a100"),
        ("NVIDIA GB200", None, "b200"),
        ("NVIDIA Something 9", (9, 0), "h100"),
        ("NVIDIA Something 9", None, "a100"),
    ],
)
def test_generations(name: str, capability: tuple[int, int] | None, expected: str) -> None:
    assert wiring.generation(name, capability).name == expected


# nvidia-smi, where NVML is not

MATRIX = """\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity
GPU0\tX\tNV4\t0-15\t0
GPU1\tNV4\tX\t0-15\t0
"""


def smi(folder: Path, text: str) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


def test_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    listed = "NVIDIA A40, GPU-1, 00000000:01:00.0\nNVIDIA A40, GPU-2, 00000000:02:00.0"
    smi(
        tmp_path,
        f"if [ \"$1\" = topo ]; then cat <<'E'\n{MATRIX}E\nelse cat <<'E'\n{listed}\nE\nfi",
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    found = wiring.here()
    assert found.name == "2 x NVIDIA A40"
    assert links.classes(found) == {"nvlink": 1}
    assert {link.bandwidth for link in found.links if "NVLink" in link.kind} == {12e9}


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo 'NVIDIA-SMI has failed' >&2; exit 9", "NVIDIA-SMI has failed"),
        ("exit 0", "lists no GPU"),
        (None, "there is no nvidia-smi"),
    ],
)
def test_nobody_says_it(
    script: str | None, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    if script is not None:
        smi(tmp_path, script)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(pycoll.Unsupported, match="nvidia-ml-py") as raised:
        wiring.here()
    assert words in str(raised.value)


def test_nvml_that_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = nvml([], {}, {})

    def fails() -> None:
        raise NvmlError("Driver Not Loaded")

    module.nvmlInit = fails
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(pycoll.Unsupported, match="NVML: Driver Not Loaded"):
        wiring.here()
