"""The machines that come with pycoll."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
import yaml

from pycoll import Topology, TopologyError
from pycoll.topology.bundled import bundled, find
from pycoll.topology.summary import examine

NAMES = list(bundled())


def bandwidths(name: str, source: str, target: str) -> float:
    """Gbyte/s from one node to another, over all links."""
    topology = Topology.load(name)
    ends = (topology.index(source), topology.index(target))
    return sum(link.bandwidth for link in topology.links if (link.source, link.target) == ends) / 1e9


def test_there_are_at_least_twelve() -> None:
    assert len(NAMES) >= 12
    assert {"laptop", "server-2s", "dgx-1v", "dgx-a100", "dgx-h100", "pcie-8gpu", "two_racks"} <= set(NAMES)
    assert {"torus-8x8", "torus-4x4x4", "wan-pair"} <= set(NAMES)
    for servers in (4, 16, 128):
        assert {f"hgx-h100-{servers}-{fabric}" for fabric in ("rail", "fat", "fat-4to1")} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_each_loads_says_what_it_is_and_survives_the_file(name: str) -> None:
    topology = Topology.load(name)
    assert len(topology.about) > 40
    assert examine(topology).warnings == ()
    written = dataclasses.replace(topology, text=None)
    assert Topology.from_yaml(written.to_yaml()) == topology


@pytest.mark.parametrize("name", NAMES)
def test_each_figure_has_a_source(name: str) -> None:
    text = bundled()[name].read_text()
    document = yaml.safe_load(text)
    assert len(document["source"]) > 40
    for link_class in document.get("classes", {}).values():
        assert len(link_class["source"]) > 10
    assert re.search(r"data[- ]sheet|published measurement", text)
    assert len(text.splitlines()) <= 60  # on one screen, also with 1,024 GPUs


@pytest.mark.parametrize("name", NAMES)
def test_each_can_be_cut_to_64(name: str) -> None:
    topology = Topology.load(name)
    cut = topology.first(64)
    assert len(cut.ranks) == min(64, len(topology.ranks))
    assert len(cut.parts()) == 1


def test_dgx_1v_is_a_hybrid_cube_mesh() -> None:
    topology = Topology.load("dgx-1v")
    assert {bandwidths("dgx-1v", "gpu0", f"gpu{peer}") for peer in (1, 2)} == {20}
    assert {bandwidths("dgx-1v", "gpu0", f"gpu{peer}") for peer in (3, 4)} == {40}
    for gpu in range(8):
        out = [link for link in topology.links if link.source == gpu and link.kind == "nvlink2"]
        assert len(out) == 6
        assert len({link.target for link in out}) == 4


@pytest.mark.parametrize(
    ("name", "per_gpu"), [("dgx-a100", 240), ("dgx-h100", 370.8), ("gb200-nvl72", 721.8)]
)
def test_what_leaves_a_gpu(name: str, per_gpu: float) -> None:
    topology = Topology.load(name)
    for device in topology.ranks:
        out = sum(link.bandwidth for link in topology.links if link.source == device)
        assert out == pytest.approx(per_gpu * 1e9)


@pytest.mark.parametrize("servers", [4, 16, 128])
@pytest.mark.parametrize(("fabric", "ratio"), [("rail", 1), ("fat", 1), ("fat-4to1", 4)])
def test_leaves_are_oversubscribed_as_they_say(servers: int, fabric: str, ratio: int) -> None:
    topology = Topology.load(f"hgx-h100-{servers}-{fabric}")
    assert len(topology.ranks) == 8 * servers
    leaves = [index for index, node in enumerate(topology.nodes) if "leaf" in node.name]
    for leaf in leaves:
        out = [link for link in topology.links if link.source == leaf]
        up = sum(link.bandwidth for link in out if link.kind == "uplink")
        down = sum(link.bandwidth for link in out if link.kind == "ndr")
        assert down == pytest.approx(ratio * up)


def test_rails_keep_to_themselves() -> None:
    topology = Topology.load("hgx-h100-4-rail")
    for link in topology.links:
        source, target = topology.nodes[link.source].name, topology.nodes[link.target].name
        if target.startswith("leaf") and ".nic" in source:
            assert source.split(".nic")[1] == target.removeprefix("leaf")


def test_names_are_forgiving_and_misses_suggest() -> None:
    assert find("two-racks") == find("two_racks") == find("Two_Racks")
    assert Topology.load(find("dgx-h100")).name == "DGX H100"
    with pytest.raises(TopologyError, match="did you mean dgx-h100"):
        find("dgx-h10")
    with pytest.raises(TopologyError, match="no such file"):
        find("nowhere/machine.yaml")
    with pytest.raises(TopologyError, match="is a folder"):
        find(Path(__file__).parent)


def test_an_installed_package_finds_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = tmp_path / "site-packages" / "pycoll"
    (installed / "topology").mkdir(parents=True)
    (installed / "topologies").mkdir()
    (installed / "topologies" / "mine.yaml").write_text(Topology.load("two_racks").to_yaml())
    monkeypatch.setattr("pycoll.topology.bundled.__file__", str(installed / "topology" / "bundled.py"))
    monkeypatch.setattr("pycoll.__path__", [str(installed)])
    assert list(bundled()) == ["mine"]
    assert find("mine") == installed / "topologies" / "mine.yaml"
