"""What other tools say of a machine, read."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from pycoll import InvalidArgument, Topology, TopologyError
from pycoll.topology.importers import (
    import_here,
    import_hwloc_xml,
    import_nccl_xml,
    import_nvidia_smi,
    import_text,
)

SAMPLES = Path(__file__).parent / "samples"
TOOLS = sorted(path.name for path in SAMPLES.iterdir() if path.name != "errors.yaml")


def sample(name: str) -> str:
    return (SAMPLES / name).read_text()


def neighbours(topology: Topology, name: str) -> dict[str, tuple[int, float]]:
    """Neighbour -> number of links to it, and Gbyte/s of all together."""
    found: dict[str, tuple[int, float]] = {}
    for link in topology.links:
        if link.source == topology.index(name):
            target = topology.nodes[link.target].name
            count, rate = found.get(target, (0, 0.0))
            found[target] = (count + 1, round(rate + link.bandwidth / 1e9, 6))
    return found


@pytest.mark.parametrize("name", TOOLS)
def test_every_sample_is_recognised_and_survives_the_file(name: str) -> None:
    topology = import_text(sample(name), file=name)
    assert Topology.from_yaml(topology.to_yaml()) == topology
    assert "not measured" in topology.about  # says where its figures come from
    assert re.search(r"NCCL|McCalpin", topology.about)


# ---- nvidia-smi topo -m


def test_h100_behind_nvswitches() -> None:
    topology = import_nvidia_smi(sample("h100.txt"))
    assert [topology.nodes[index].name for index in topology.ranks] == [f"gpu{i}" for i in range(8)]
    assert neighbours(topology, "gpu3") == {"pix3": (1, 48.0), "nvswitch": (1, 370.8)}
    assert neighbours(topology, "pix3") == {"gpu3": (1, 48.0), "mlx5_3": (1, 48.0), "cpu0": (1, 48.0)}
    assert neighbours(topology, "cpu1").keys() == {"pix4", "pix5", "pix6", "pix7", "cpu0"}


def test_a100_behind_nvswitches_with_bridges() -> None:
    topology = import_nvidia_smi(sample("a100.txt"))
    assert neighbours(topology, "gpu0") == {"pxb0": (1, 24.0), "nvswitch": (1, 240.0)}
    assert neighbours(topology, "pxb0").keys() == {"gpu0", "gpu1", "mlx5_0", "mlx5_1", "cpu0"}


def test_v100_hybrid_cube_mesh_is_the_bundled_one() -> None:
    topology, bundled = import_nvidia_smi(sample("v100.txt")), Topology.load("dgx-1v")
    for gpu in range(8):
        mine, theirs = (
            {name: rate for name, rate in neighbours(each, f"gpu{gpu}").items() if name.startswith("gpu")}
            for each in (topology, bundled)
        )
        assert mine == theirs
    assert neighbours(topology, "pix0").keys() == {"gpu0", "gpu1", "mlx5_0", "cpu0"}


def test_pcie_cards_without_nvlink() -> None:
    topology = import_nvidia_smi(sample("pcie.txt"))
    assert neighbours(topology, "gpu5") == {"pix2": (1, 24.0)}
    assert neighbours(topology, "cpu0").keys() == {"pix0", "pix1", "cpu1"}
    assert neighbours(import_nvidia_smi(sample("pcie.txt"), gpu="H100"), "gpu5") == {"pix2": (1, 48.0)}


def test_two_cards_with_a_bridge() -> None:
    topology = import_nvidia_smi(sample("bridge.txt"))
    assert neighbours(topology, "gpu0") == {"cpu0": (1, 24.0), "gpu1": (4, 48.0)}
    assert neighbours(import_nvidia_smi(sample("bridge.txt"), gpu="p100"), "gpu0")["gpu1"] == (4, 72.0)


def test_one_gpu() -> None:
    topology = import_nvidia_smi("\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0-7\t0\n")
    assert len(topology.ranks) == 1
    assert topology.links == ()


PAIR = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tPHB\t0-7\nGPU1\tPHB\t X \t0-7\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("hello\n", "no header"),
        (PAIR.replace("GPU1\tPHB\t X \t0-7\n", ""), "smi: the row of GPU1 is missing"),
        (PAIR.replace("GPU1\tPHB\t X \t0-7\n", "GPU1\tPHB\n"), "smi:3: GPU1 has 1 cells for 2 columns"),
        (
            PAIR.replace("GPU1\tPHB", "GPU1\tSYS"),
            r"GPU0 to GPU1 is PHB, but the way back is SYS \(line 3\)",
        ),
        (PAIR.replace("PHB", "WIFI"), "smi:2: GPU0 to GPU1 is 'WIFI'; known are NV#, PIX"),
        (PAIR.replace(" X \tPHB", "PIX\tPHB"), "smi:2: GPU0 to GPU0 is PIX; X stands on the diagonal"),
        ("\tNIC0\tNIC1\nNIC0\t X \tPIX\nNIC1\tPIX\t X \n", "has no GPU"),
    ],
)
def test_malformed_matrices_are_refused_with_their_line(text: str, says: str) -> None:
    with pytest.raises(TopologyError, match=says):
        import_nvidia_smi(text, file="smi")


def test_an_unknown_gpu_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="GPU 'voodoo2' is not known"):
        import_nvidia_smi(PAIR, gpu="voodoo2")


# ---- NCCL


def test_nccl_h100() -> None:
    topology = import_nccl_xml(sample("nccl-h100.xml"))
    assert neighbours(topology, "gpu3") == {"pcie3": (1, 48.0), "nvswitch": (1, 370.8)}
    assert neighbours(topology, "pcie3") == {"cpu0": (1, 48.0), "gpu3": (1, 48.0), "mlx5_3": (1, 48.0)}
    assert neighbours(topology, "cpu0")["cpu1"] == (1, 22.0)  # Sapphire Rapids


def test_nccl_v100_joined_directly_with_ranks_in_their_order() -> None:
    topology = import_nccl_xml(sample("nccl-v100.xml"))
    assert [topology.nodes[index].name for index in topology.ranks] == ["gpu3", "gpu2", "gpu1", "gpu0"]
    assert neighbours(topology, "gpu0") == {
        "cpu0": (1, 12.0),  # the bridge above one card is left out
        **{f"gpu{peer}": (2, 40.0) for peer in (1, 2, 3)},
    }
    assert neighbours(topology, "eth0") == {"cpu0": (1, 1.25)}


def test_nccl_several_hosts() -> None:
    one = sample("nccl-h100.xml")
    two = re.sub(r'rank="(\d)"', lambda rank: f'rank="{int(rank[1]) + 8}"', one).replace("0x16fe", "0x17fe")
    both = one.replace("</system>\n", "") + two.removeprefix('<system version="1">\n')
    with pytest.raises(TopologyError, match=r"no path from host0\.gpu0 to host1\.gpu0"):
        import_nccl_xml(both)  # what joins them is not in the file


SLOT = 'link_speed="32.0 GT/s PCIe"'


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("</system>", "", "nccl:127: not valid XML"),
        ('numaid="1"', 'numaid="0"', "nccl:64: <cpu>: numaid 0 comes twice"),
        ('rank="1"', 'rank="0"', "rank 0 is taken, by the GPU on line 5"),
        ('rank="1"', 'rank="one"', "nccl:20: <gpu>: rank='one' is not a whole number"),
        ('dev="1" ', "", "nccl:20: <gpu>: attribute dev is missing"),
        (SLOT, 'link_speed="fast"', "nccl:3: <pci>: link_speed='fast' is not understood"),
        (SLOT, 'link_speed="31 GT/s"', "is the speed of no PCIe generation"),
        ('busid="0000:10:00.0" ', "", "nccl:3: <pci>: attribute busid is missing"),
        ('count="5"', 'count="0"', "<nvlink>: count=0 is not positive"),
        (
            'tclass="0x068000"',
            'tclass="0x030200"',
            "nccl:6: <nvlink>: target='0000:07:00.0' is the bus id of no",
        ),
        ('busid="0000:22:00.0"', 'busid="0000:12:00.0"', "bus id 0000:12:00.0 comes twice"),
    ],
)
def test_malformed_nccl_is_refused_with_its_line(old: str, new: str, says: str) -> None:
    text = sample("nccl-h100.xml")
    assert old in text
    with pytest.raises(TopologyError, match=says):
        import_nccl_xml(text.replace(old, new, 1), file="nccl")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("<graphs/>", "begins with <system"),
        ("<system/>", "holds no <cpu>"),
        ("<system><cpu numaid='0'/></system>", "holds no <gpu>"),
        ("<!DOCTYPE x [<!ENTITY a 'b'>]><system>&a;</system>", "entities"),
        ("<a>" * 200 + "</a>" * 200, "nested too deeply"),
    ],
)
def test_other_xml_is_refused(text: str, says: str) -> None:
    with pytest.raises(TopologyError, match=says):
        import_nccl_xml(text)


# ---- hwloc


def test_hwloc_two_sockets_of_four_caches() -> None:
    topology = import_hwloc_xml(sample("hwloc-epyc.xml"))
    assert len(topology.ranks) == 64  # a rank a core, whatever its threads
    assert neighbours(topology, "core9") == {"l3-1": (1, 12.0)}
    assert neighbours(topology, "numa1").keys() == {"l3-4", "l3-5", "l3-6", "l3-7", "numa0"}
    assert neighbours(topology, "numa0")["numa1"] == (1, 24.0)  # Zen 4


def test_hwloc_laptop_is_one_switch() -> None:
    topology = import_hwloc_xml(sample("hwloc-laptop.xml"))
    assert topology.name == "4 cores of laptop"
    assert [node.kind for node in topology.nodes] == ["device"] * 4 + ["switch"]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('<topology version="2.0">', "<topology>", "hwloc:3: <topology>: this is version 1.0"),
        ('type="Machine"', 'type="Misc"', 'holds no <object type="Machine">'),
        ('type="Package" ', "", "hwloc:9: <object>: attribute type is missing"),
        ("</topology>", "", "not valid XML"),
    ],
)
def test_malformed_hwloc_is_refused_with_its_line(old: str, new: str, says: str) -> None:
    with pytest.raises(TopologyError, match=says):
        import_hwloc_xml(sample("hwloc-laptop.xml").replace(old, new, 1), file="hwloc")


# ---- this machine


def test_this_machine_has_the_cores_that_we_may_use() -> None:
    topology = import_here()
    assert 1 <= len(topology.ranks) <= len(os.sched_getaffinity(0))
    topology.check()


def test_a_machine_in_sys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sockets, each a NUMA node with two caches of two cores of two threads."""
    for cpu in range(16):
        place = tmp_path / "cpu" / f"cpu{cpu}"
        core = cpu % 8  # 8 to 15 are their second threads
        socket, cache = core // 4, core // 2
        (place / "topology").mkdir(parents=True)
        (place / "topology" / "physical_package_id").write_text(f"{socket}\n")
        (place / "topology" / "core_id").write_text(f"{core % 4}\n")
        (place / "cache" / "index3").mkdir(parents=True)
        (place / "cache" / "index3" / "level").write_text("3\n")
        shared = ",".join(str(8 * t + c) for t in (0, 1) for c in range(8) if c // 2 == cache)
        (place / "cache" / "index3" / "shared_cpu_list").write_text(f"{shared}\n")
    for node, cpus in ((0, "0-3,8-11"), (1, "4-7,12-15")):
        (tmp_path / "node" / f"node{node}").mkdir(parents=True)
        (tmp_path / "node" / f"node{node}" / "cpulist").write_text(f"{cpus}\n")
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("vendor_id\t: AuthenticAMD\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: EPYC 9005\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    topology = import_here(system=tmp_path, cpuinfo=cpuinfo)
    assert len(topology.ranks) == 8
    assert neighbours(topology, "core2") == {"l3-1": (1, 12.0)}
    assert neighbours(topology, "l3-1").keys() == {"core2", "core3", "numa0"}
    assert neighbours(topology, "numa0")["numa1"] == (1, 32.0)  # Zen 5
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 8})
    assert len(import_here(system=tmp_path, cpuinfo=cpuinfo).ranks) == 1


# ---- whichever


def test_what_no_tool_wrote_is_refused() -> None:
    with pytest.raises(TopologyError, match="neither"):
        import_text("hello", file="x")
    with pytest.raises(InvalidArgument, match="there is no format"):
        import_text("hello", format="dot")
    with pytest.raises(InvalidArgument, match="gpu goes with nvidia-smi"):
        import_text(sample("nccl-h100.xml"), gpu="a100")
