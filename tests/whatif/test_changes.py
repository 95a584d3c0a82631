"""Changes do exactly what they say, and say what is wrong with a name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from pycoll import InvalidArgument, Topology, TopologyError, whatif
from pycoll.whatif import Change, Disconnected, Scenario, parsing
from pycoll.whatif.connected import parts


def after(machine: str | Topology, *changes: Change) -> Topology:
    topology = Topology.load(machine) if isinstance(machine, str) else machine
    return whatif.apply(Scenario(topology), changes).topology


def bandwidths(topology: Topology) -> dict[str, float]:
    return {link.name: link.bandwidth for link in topology.links}


def hosts(topology: Topology) -> list[str]:
    return [topology.nodes[node].name for node in topology.ranks]


# ---- each change


def test_a_link_is_meant_both_ways_unless_a_direction_is_given() -> None:
    gigabit = 125e6
    both = bandwidths(after("two_racks", whatif.Slow("tor0-tor1", 0.5)))
    assert (both["tor0->tor1"], both["tor1->tor0"]) == (gigabit / 2, gigabit / 2)
    assert both == bandwidths(after("two_racks", whatif.Slow("tor1<->tor0", 0.5)))
    one = bandwidths(after("two_racks", whatif.Slow("tor0->tor1", 0.5)))
    assert (one["tor0->tor1"], one["tor1->tor0"]) == (gigabit / 2, gigabit)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("h*-tor0", 8),
        ("h[0-1]-tor0", 4),
        ("h0", 2),
        ("tor1", 10),
        ("tor", 18),  # a sort of nodes: all their links
        ("h", 16),
    ],
)
def test_names_of_links(name: str, count: int) -> None:
    changed = bandwidths(after("two_racks", whatif.Slow(name, 2)))
    assert sum(rate == 250e6 for rate in changed.values()) == count


def test_classes_of_links_parallel_links_and_groups() -> None:
    pod = Topology.load("hgx-h100-4-fat")
    spines = {link.name for link in pod.links if link.kind == "uplink"}
    slower = bandwidths(after(pod, whatif.Slow("uplink", 0.5)))
    before = bandwidths(pod)
    assert {name for name, rate in slower.items() if rate != before[name]} == spines
    one = after(pod, whatif.Fail("link:r0.leaf-spine0#1"))
    assert len(one.links) == len(pod.links) - 2
    every = after(pod, whatif.Fail("link:r0.leaf-spine0"))
    assert len(every.links) == len(pod.links) - 8
    server = after(pod, whatif.Fail("r0.s1"))
    assert hosts(server) == [name for name in hosts(pod) if not name.startswith("r0.s1.")]


def test_fail_a_node_and_remove_a_rack() -> None:
    assert hosts(after("two_racks", whatif.Fail("node:h3"))) == [f"h{i}" for i in (0, 1, 2, 4, 5, 6, 7)]
    rest = after("two_racks", whatif.Remove("tor1"))
    assert hosts(rest) == ["h0", "h1", "h2", "h3"]
    assert [node.name for node in rest.nodes] == ["h0", "h1", "h2", "h3", "tor0"]


def test_latency_busy_and_oversubscription() -> None:
    racks = Topology.load("two_racks")
    for change, latency in (
        (whatif.Latency("tor0-tor1", 0.02), 0.02003),
        (whatif.Latency("tor0-tor1", 1e-6, more=False), 1e-6),
    ):
        link = next(link for link in after(racks, change).links if link.name == "tor0->tor1")
        assert link.latency == pytest.approx(latency, rel=1e-12)
    assert bandwidths(after(racks, whatif.Busy("h0", 0.25)))["h0->tor0"] == 125e6 * 0.75
    assert bandwidths(after(racks, whatif.Oversubscribe(2)))["tor0->tor1"] == 250e6
    pod = bandwidths(after("hgx-h100-4-fat", whatif.Oversubscribe(4)))
    up = sum(rate for name, rate in pod.items() if name.startswith("r0.leaf->spine"))
    down = sum(rate for name, rate in pod.items() if name.startswith("r0.leaf->r0.s"))
    assert down / up == pytest.approx(4, rel=1e-12)


def test_add_hosts_racks_and_groups() -> None:
    host = after("two_racks", whatif.Add("h3", 2))
    assert hosts(host)[8:] == ["h8", "h9"]
    assert bandwidths(host)["h9->tor0"] == 125e6
    rack = after("two_racks", whatif.Add("tor0"))
    assert hosts(rack)[8:] == ["h8", "h9", "h10", "h11"]
    assert bandwidths(rack)["tor2->tor1"] == 125e6
    pod = Topology.load("hgx-h100-4-fat")
    bigger = after(pod, whatif.Add("r0", 2))
    assert len(bigger.ranks) == 2 * len(pod.ranks)
    assert hosts(bigger)[32] == "r2.s0.gpu0"
    # The same machine as if it had been written with four racks, up to the order of its nodes.
    assert sorted(bandwidths(bigger).values()) == sorted(2 * [*bandwidths(pod).values()])


def test_placements(tmp_path: Path) -> None:
    racks = Topology.load("two_racks")
    dealt = after(racks, whatif.Place("interleaved"))
    assert hosts(dealt) == ["h0", "h4", "h1", "h5", "h2", "h6", "h3", "h7"]
    assert hosts(after(dealt, whatif.Place("packed"))) == hosts(racks)
    file = tmp_path / "order.txt"
    file.write_text("h7 h6 # the rest idles\n0, 1")
    assert hosts(after(racks, whatif.Place.from_file(file))) == ["h7", "h6", "h0", "h1"]
    pod = Topology.load("hgx-h100-4-rail")
    by_server = hosts(after(pod, whatif.Place("interleaved")))
    assert by_server[:5] == ["s0.gpu0", "s1.gpu0", "s2.gpu0", "s3.gpu0", "s0.gpu1"]
    assert hosts(after(pod, whatif.Place("interleaved"), whatif.Place("packed"))) == hosts(pod)


def test_late_ranks_and_flows() -> None:
    racks = Scenario(Topology.load("two_racks"))
    late = whatif.apply(racks, [whatif.Late(3, 5e-3), whatif.Late("h0", 1e-3)])
    assert late.starts() == [(1e-3, 0, 0, 5e-3, 0, 0, 0, 0)]
    # A rank keeps its lateness when it is numbered anew.
    fewer = whatif.apply(late, [whatif.Fail("h1")])
    assert fewer.starts() == [(1e-3, 0, 5e-3, 0, 0, 0, 0)]
    drawn = whatif.apply(racks, [whatif.LateDist(whatif.Lateness("uniform", 2e-3, seed=4))]).starts()
    assert len(drawn) == 15
    assert all(row is not None and min(row) == 0 and max(row) < 2e-3 for row in drawn)
    assert whatif.apply(racks, [whatif.Ecmp(3), whatif.Flows(2)]).routing == "hash"


def test_the_change_can_be_undone() -> None:
    racks = Topology.load("two_racks")
    assert after(racks, whatif.Slow("tor0-tor1", 0.25), whatif.Slow("tor0-tor1", 4)) == racks
    assert after(racks, whatif.Add("h3"), whatif.Fail("h8")) == racks


# ---- what goes wrong


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            whatif.Slow("tro0-tor1", 0.5),
            "no link of topology 'two racks of four hosts' matches 'tro0-tor1'; nearest: tor0-tor1",
        ),
        (whatif.Fail("node:h9"), "no node of topology 'two racks of four hosts' matches 'h9'; nearest: h"),
        (whatif.Slow("spine", 0.5), r"there are h\[0-3\]-tor0, h\[4-7\]-tor1, tor0-tor1"),
        (whatif.Remove("rack0"), r"there are h\[0-7\], tor\[0-1\]"),
        (whatif.Late(8, 1e-3), "there is no rank 8; there are 8, 0 to 7"),
        (whatif.Late("tor0", 1e-3), "no rank lives on tor0"),
        (whatif.Oversubscribe(4, "h0"), "h0 has no links upwards|h0 has no links"),
        (whatif.Fail("node:h*"), "leaves no ranks"),
    ],
)
def test_names_that_mean_nothing(change: Change, text: str) -> None:
    with pytest.raises(TopologyError, match=text):
        after("two_racks", change)


def test_ranks_that_are_cut_off() -> None:
    with pytest.raises(
        Disconnected,
        match=r"--fail tor0-tor1 leaves h\[4-7\] cut off from h\[0-3\].*--remove h4.*h\[4-7\]-tor1",
    ):
        after("two_racks", whatif.Fail("tor0-tor1"))
    with pytest.raises(Disconnected) as caught:
        after("hgx-h100-4-rail", whatif.Fail("link:s0.gpu0-s0.nic0"))
    assert caught.value.cut_off == ("s0.gpu0",)
    with pytest.raises(Disconnected, match=r"leaves gpu1 without a path to some of gpu\[0,2-7\]"):
        after("mi300x-8", whatif.Fail("gpu0-gpu1"))
    assert hosts(after("two_racks", whatif.Fail("tor0-tor1"), whatif.Remove("tor1"))) == [
        "h0",
        "h1",
        "h2",
        "h3",
    ]


@pytest.mark.parametrize("name", ["two_racks", "dgx-1v", "torus-4x4x4", "hgx-h100-4-rail", "wan-pair"])
def test_parts_are_those_of_the_plain_search(name: str) -> None:
    topology = Topology.load(name)
    assert parts(topology) == topology.parts()
    left = tuple(link for index, link in enumerate(topology.links) if index % 3)
    broken = Topology(topology.name, topology.nodes, left, topology.ranks)
    assert (len(parts(broken)) == 1) == (len(broken.parts()) == 1)


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (parsing.slow, "tor0-tor1", "--slow tor0-tor1: write LINKS=FACTOR"),
        (parsing.slow, "tor0-tor1=fast", "'fast' is no number; write 0.5, 50% or 1/2"),
        (parsing.busy, "=0.3", "--busy =0.3: write LINKS=SHARE"),
        (parsing.latency, "wan=+20", "--latency wan=.20: time '20' has no unit"),
        (parsing.late, "5ms", "write RANK:TIME"),
        (parsing.late_dist, "gauss:2ms", "write exponential:MEAN, uniform:MOST or normal:DEVIATION"),
        (parsing.add, "two*rack0", r"write COUNT\*PART"),
        (parsing.oversubscribe, "4:0", "write DOWN:UP, such as 4:1"),
        (parsing.ecmp, "seed", "write seed=NUMBER"),
        (parsing.place, "spread", "it is packed, interleaved or a file"),
    ],
)
def test_figures_that_are_not_understood(read: object, text: str, message: str) -> None:
    assert callable(read)
    with pytest.raises(InvalidArgument, match=message):
        read(text)


@pytest.mark.parametrize(
    "change",
    [
        whatif.Slow("tor0-tor1", 0),
        whatif.Slow("tor0-tor1", -1),
        whatif.Busy("tor0-tor1", 1),
        whatif.Late(0, -1),
        whatif.Add("h0", 0),
        whatif.Flows(0),
        whatif.Latency("tor0-tor1", -1),
        whatif.Oversubscribe(0),
        whatif.Place("anyhow"),
    ],
    ids=str,
)
def test_figures_that_make_no_sense(change: Change) -> None:
    with pytest.raises(InvalidArgument):
        after("two_racks", change)


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (parsing.slow, "tor0-tor1=0.5"),
        (parsing.latency, "wan=+20ms"),
        (parsing.latency, "wan=20ms"),
        (parsing.late, "3:5ms"),
        (parsing.add, "2*rack0"),
        (parsing.oversubscribe, "4:1"),
        (parsing.oversubscribe, "leaf*=4:1"),
    ],
)
def test_changes_are_printed_as_they_are_written(read: object, text: str) -> None:
    assert callable(read)
    assert str(read(text)).split(" ", 1)[1] == text


def test_all_changes_have_a_flag() -> None:
    changes: Sequence[Change] = [whatif.Remove("a"), whatif.Spread(), whatif.Ecmp(2), whatif.Place("packed")]
    assert [str(change) for change in changes] == [
        "--remove a",
        "--spread",
        "--ecmp seed=2",
        "--place packed",
    ]
