"""The topology file: what it says, and what its errors say."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pycoll import Topology, TopologyError
from pycoll.topology import Link, Node
from pycoll.topology.document import schema_text

ROOT = Path(__file__).parents[2]
RACKS = (ROOT / "topologies" / "two_racks.yaml").read_text()


def links(text: str) -> list[str]:
    """Names of the directed links of a file whose nodes are a[0-3], b[0-3], x."""
    head = 'pycoll: 1\nname: t\nnodes: [{name: "a[0-3]"}, {name: "b[0-3]"}, {name: x, kind: switch}]\n'
    hub = '  - {between: ["a[0-3]", x], bandwidth: 1 GB/s, latency: 0 s}\n'
    hub += '  - {between: ["b[0-3]", x], bandwidth: 1 GB/s, latency: 0 s}\n'
    topology = Topology.from_yaml(f"{head}links:\n{hub}  - {{{text}, bandwidth: 2 GB/s, latency: 1 us}}\n")
    return [link.name for link in topology.links if link.bandwidth == 2e9]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("between: [a0, b0]", "a0->b0 b0->a0"),
        ('between: ["a[0-1]", b0]', "a0->b0 b0->a0 a1->b0 b0->a1"),
        ('between: ["a[0-1]", "b[0-1]"]', "a0->b0 b0->a0 a0->b1 b1->a0 a1->b0 b0->a1 a1->b1 b1->a1"),
        ('between: ["a[i=0-1]", "b[i]"]', "a0->b0 b0->a0 a1->b1 b1->a1"),
        ('between: ["a[i]", "b[i=2-3]"]', "a2->b2 b2->a2 a3->b3 b3->a3"),
        ("between: [a0, b0], count: 2", "a0->b0#0 b0->a0#0 a0->b0#1 b0->a0#1"),
        ("from: a0, to: b1", "a0->b1"),
        ('from: "a[i=0-1]", to: "b[i]"', "a0->b0 a1->b1"),
        ('among: "a[0-2]"', "a0->a1 a1->a0 a0->a2 a2->a0 a1->a2 a2->a1"),
        ('chain: "a[0-2]"', "a0->a1 a1->a0 a1->a2 a2->a1"),
        ('ring: "a[0-2]"', "a0->a1 a1->a0 a1->a2 a2->a1 a2->a0 a0->a2"),
        ('ring: "a[0-1]"', "a0->a1 a1->a0"),  # of two: there and back
    ],
)
def test_links(text: str, expected: str) -> None:
    assert links(text) == expected.split()


def test_a_ring_for_each_value_of_a_named_range() -> None:
    torus = Topology.load("torus-4x4x4")
    assert len(torus.links) == 64 * 6
    assert {link.name for link in torus.links if link.name.startswith("t0.0.0->")} == {
        f"t0.0.0->t{place}" for place in ("1.0.0", "3.0.0", "0.1.0", "0.3.0", "0.0.1", "0.0.3")
    }
    out: dict[int, int] = {}
    for link in torus.links:
        out[link.source] = out.get(link.source, 0) + 1
    assert set(out.values()) == {6}


def test_templates_are_used_by_name_and_inside_each_other() -> None:
    text = """
pycoll: 1
name: t
classes:
  fast: {bandwidth: 10 GB/s, latency: 1 us, source: made up}
templates:
  pair:
    nodes: [{name: "g[0-1]", ports: 1, overhead: 2 us, intra: {copy: 8 GB/s, reduce: 6 GB/s}}]
    links: [{between: [g0, g1], class: fast}]
  box:
    nodes: [{use: pair, as: "p[0-1]"}, {name: sw, kind: switch}]
    links: [{between: ["p[0-1].g[0-1]", sw], class: fast, latency: 3 us}]
nodes: [{use: box, as: "b[0-1]"}]
links: [{between: [b0.sw, b1.sw], class: fast, bandwidth: 1 GB/s, count: 2}]
ranks: ["b[0-1].p[0-1].g[k=0-1]"]
"""
    topology = Topology.from_yaml(text)
    assert [node.name for node in topology.nodes[:5]] == [
        "b0.p0.g0",
        "b0.p0.g1",
        "b0.p1.g0",
        "b0.p1.g1",
        "b0.sw",
    ]
    assert topology.nodes[0] == Node("b0.p0.g0", "device", 1, 2e-6, 8e9, 6e9)
    figures = {link.name: (link.bandwidth, link.latency, link.kind) for link in topology.links}
    assert figures["b1.p0.g0->b1.p0.g1"] == (1e10, 1e-6, "fast")
    assert figures["b1.sw->b1.p1.g1"] == (1e10, 3e-6, "fast")
    assert figures["b0.sw->b1.sw#1"] == (1e9, 1e-6, "fast")
    ranks = [topology.nodes[index].name for index in topology.ranks]
    assert ranks == [f"b{b}.p{p}.g{g}" for g in (0, 1) for b in (0, 1) for p in (0, 1)]


def test_ranks_are_all_devices_in_order_by_default() -> None:
    topology = Topology.from_yaml(RACKS.replace('ranks: ["h[0-7]"]\n', ""))
    assert topology.ranks == tuple(range(8))
    backwards = Topology.from_yaml(RACKS.replace('ranks: ["h[0-7]"]', 'ranks: [h7, "h[0-2]"]'))
    assert backwards.ranks == (7, 0, 1, 2)


CASES = yaml.safe_load((Path(__file__).parent / "samples" / "errors.yaml").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["says"][:40])
def test_errors_name_line_column_field_and_remedy(case: dict[str, str]) -> None:
    text = case.get("text")
    if text is None:
        assert case["replace"] in RACKS
        text = RACKS.replace(case["replace"], case["by"], 1)
    with pytest.raises(TopologyError) as raised:
        Topology.from_yaml(text, file="f.yaml")
    assert case["says"] in str(raised.value)
    assert str(raised.value).startswith("f.yaml")


def test_several_errors_come_at_once() -> None:
    text = RACKS.replace("bandwidth: 1 Gbit/s", "bandwidth: 1").replace("kind: switch", "kind: hub")
    with pytest.raises(TopologyError) as raised:
        Topology.from_yaml(text, file="f.yaml")
    lines = str(raised.value).splitlines()
    assert len(lines) == 4
    assert all(line.startswith("f.yaml:") for line in lines)


def test_load_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(RACKS.replace("tor0, tor1", "tor0, tor9"))
    with pytest.raises(TopologyError, match=rf"^{path}:13:22: "):
        Topology.load(path)
    for missing in (tmp_path / "none.yaml", tmp_path, "dgx-h1000"):
        with pytest.raises(TopologyError):
            Topology.load(missing)
    path.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(TopologyError, match="not UTF-8"):
        Topology.load(path)


def test_a_file_that_was_loaded_is_saved_as_it_was(tmp_path: Path) -> None:
    topology = Topology.from_yaml(RACKS)
    assert topology.to_yaml() == RACKS
    topology.save(tmp_path / "same.yaml")
    assert (tmp_path / "same.yaml").read_text() == RACKS
    changed = topology.scaled("tor0<->tor1", 0.5)
    assert changed.to_yaml() != RACKS
    assert Topology.from_yaml(changed.to_yaml()) == changed


def test_what_is_written_out_is_short() -> None:
    text = dataclasses.replace(Topology.from_yaml(RACKS), text=None, about="").to_yaml()
    assert text == (
        "pycoll: 1\n"
        "name: two racks of four hosts\n"
        "nodes:\n"
        '  - {name: "h[0-7]", kind: device}\n'
        '  - {name: "tor[0-1]", kind: switch}\n'
        "links:\n"
        '  - {between: ["h[0-3]", tor0], bandwidth: 1 Gbit/s, latency: 30 us}\n'
        '  - {between: ["h[4-7]", tor1], bandwidth: 1 Gbit/s, latency: 30 us}\n'
        "  - {between: [tor0, tor1], bandwidth: 1 Gbit/s, latency: 30 us}\n"
        "ranks:\n"
        '  - "h[0-7]"\n'
    )


node_names = st.from_regex(r"[A-Za-z0-9._:/-]{1,6}", fullmatch=True) | st.sampled_from(
    [
        "yes",
        "no",
        "on",
        "null",
        "1",
        "1.5",
        "1e3",
        "0x1",
        "07",
        "a1",
        "a2",
        "a3",
        "b1",
        "b2",
        "b3",
        "12:30",
        "-",
        ".",
    ]
)
rates = st.floats(min_value=1e-3, max_value=1e15, allow_nan=False)
times = st.floats(min_value=0, max_value=10, allow_nan=False)
words = st.text(st.characters(blacklist_categories=("Cs",)), max_size=20)


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    """Connected through a switch, with whatever else."""
    found = draw(st.lists(node_names.filter(lambda name: name != "hub"), min_size=1, max_size=8, unique=True))
    nodes = []
    for name in found:
        nodes.append(
            Node(
                name,
                "device",
                draw(st.integers(0, 3)),
                draw(times),
                draw(rates | st.just(float("inf"))),
                draw(rates | st.just(float("inf"))),
                draw(st.booleans()),
            )
            if draw(st.booleans()) or name == found[0]
            else Node(name, "switch")
        )
    hub = len(nodes)
    nodes.append(Node("hub", "switch"))
    figures = st.sampled_from([(1e9, 1e-6, ""), (1e9, 1e-6, "fast"), (2e9, 1e-6, "fast"), (2e9, 0.0, "a: b")])
    chosen: list[Link] = []
    for index in range(hub):
        bandwidth, latency, kind = draw(figures)
        for _ in range(draw(st.integers(1, 2))):
            chosen += [Link(index, hub, bandwidth, latency, kind), Link(hub, index, bandwidth, latency, kind)]
    ends = st.tuples(st.integers(0, hub), st.integers(0, hub)).filter(lambda pair: pair[0] != pair[1])
    for source, target in draw(st.lists(ends, max_size=8)):
        chosen.append(Link(source, target, draw(rates), draw(times), draw(st.sampled_from(["", "x"]))))
    devices = [index for index, node in enumerate(nodes) if node.kind == "device"]
    ranks = draw(st.permutations(devices))[: draw(st.integers(1, len(devices)))]
    return Topology(
        draw(words), tuple(nodes), tuple(draw(st.permutations(chosen))), tuple(ranks), about=draw(words)
    )


@given(topologies())
def test_every_topology_survives_the_file(topology: Topology) -> None:
    again = Topology.from_yaml(topology.to_yaml())
    assert again == topology
    assert again.about == topology.about


@pytest.mark.parametrize("place", ["pycoll/topology/schema.json", "docs/topology.schema.json"])
def test_the_published_schema_is_the_models(place: str) -> None:
    assert (ROOT / place).read_text(encoding="utf-8") == schema_text()
    schema = json.loads(schema_text())
    assert set(schema["required"]) == {"pycoll", "name", "nodes"}
    assert set(schema["$defs"]["LinkGroup"]["properties"]) >= {
        "between",
        "from",
        "to",
        "among",
        "ring",
        "chain",
        "class",
    }
