"""Which device of a topology each rank of a group lives on."""

from __future__ import annotations

import pytest

import pycoll
from pycoll.selection import group as selection
from pycoll.selection.hosts_on_topology import flat_hosts, settle, with_overheads
from pycoll.topology import Topology

RACKS = Topology.load("two_racks")


def homes(topology):
    return [topology.nodes[index].name for index in topology.ranks]


def placed(topology, *hosts):
    """The topology for one rank a name, and how it was placed."""
    names = list(dict.fromkeys(hosts))
    return settle(topology, names, [names.index(host) for host in hosts])


def test_ranks_live_on_the_devices_named_like_their_hosts():
    dealt = ["h0", "h4", "h1", "h5", "h2", "h6", "h3", "h7"]
    topology, how = placed(RACKS, *dealt)
    assert homes(topology) == dealt
    assert "by the names of their hosts" in how
    ring = pycoll.build("ring", ranks=8, topology=topology)
    crossing = {
        (int(t["src"]), int(t["dst"])) for t in ring.transfers if int(t["src"]) % 2 != int(t["dst"]) % 2
    }
    assert len(crossing) == 2  # there and back


def test_a_group_may_be_on_some_of_the_hosts():
    assert homes(placed(RACKS, "h6", "h1")[0]) == ["h6", "h1"]


def test_a_domain_is_no_part_of_the_name_unless_the_topology_has_it():
    assert homes(placed(RACKS, "h6.cluster.example", "h1.cluster.example")[0]) == ["h6", "h1"]


def test_several_ranks_of_a_host_share_its_device():
    topology, _ = placed(RACKS, "h0", "h4", "h0", "h4")
    assert homes(topology) == ["h0.0", "h4.0", "h0.1", "h4.1"]
    assert {topology.nodes[topology.index(host)].kind for host in ("h0", "h4")} == {"switch"}
    # All bytes of the host still go through its one link.
    one_each = placed(RACKS, "h0", "h4")[0]
    assert topology.bound("allreduce", 2**20) == pytest.approx(one_each.bound("allreduce", 2**20), rel=1e-3)


def test_ranks_take_a_hosts_devices_in_order():
    text = """
pycoll: 1
name: two hosts of two
nodes:
  - {name: "a.[0-1]", kind: device}
  - {name: "b.[0-1]", kind: device}
  - {name: s, kind: switch}
links:
  - {between: ["a.[0-1]", s], bandwidth: 1 GB/s, latency: 1 us}
  - {between: ["b.[0-1]", s], bandwidth: 1 GB/s, latency: 1 us}
ranks: ["a.[0-1]", "b.[0-1]"]
"""
    topology = Topology.from_yaml(text)
    assert homes(placed(topology, "b", "a", "b", "a")[0]) == ["b.0", "a.0", "b.1", "a.1"]
    assert homes(placed(topology, "b", "a")[0]) == ["b.0", "a.0"]
    with pytest.raises(pycoll.InvalidArgument, match=r"host 'a' has 3 ranks, and .* 2 devices for it"):
        placed(topology, "a", "b", "a", "a")


def test_without_a_name_that_fits_ranks_are_taken_in_order():
    topology, how = placed(RACKS, *(f"node{n}" for n in range(8)))
    assert topology is RACKS
    assert "rank i is taken to live on the topology's rank i" in how
    with pytest.raises(pycoll.InvalidArgument, match="places for 8 ranks, the group has 2, and no device"):
        placed(RACKS, "node0", "node1")


def test_hosts_of_one_name_are_not_told_apart():
    topology, how = settle(RACKS, ["h0"] * 8, list(range(8)))
    assert topology is RACKS
    assert "several hosts are called 'h0'" in how


def test_names_that_fit_in_part_are_an_error():
    with pytest.raises(pycoll.InvalidArgument, match="no device for host 'x', but has some for 'h0'"):
        placed(RACKS, "h0", "x")


def test_hosts_of_which_nothing_is_known():
    topology = flat_hosts([0, 1, 0, 1, 2])
    assert homes(topology) == ["host0.0", "host1.0", "host0.1", "host1.1", "host2"]
    topology.check()


def test_overheads_are_supplied_only_where_there_are_none():
    assert all(node.overhead for node in with_overheads(RACKS).nodes if node.kind == "device")
    told = Topology.flat(2, "1 GB/s", overhead="1 us")
    assert with_overheads(told) is told


# What rank 0 decides


@pytest.fixture(autouse=True)
def nothing_is_set(monkeypatch, tmp_path):
    for name in ("PYCOLL_ALGO", "PYCOLL_TOPOLOGY", "PYCOLL_DETERMINISTIC", "PYCOLL_REDECIDE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYCOLL_PROFILE", "none")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def rows(text, collective="allreduce"):
    """(begin, end, ways) of the table's rows."""
    lines = [line.split("\t") for line in text.splitlines() if line.startswith(f"row\t{collective}\t")]
    return [(int(line[4]), line[5], line[6].split(",")) for line in lines]


HOSTS = [f"h{host}" for host in range(8)]


def test_what_travels_with_the_meeting_of_hosts_goes_no_schedule(monkeypatch):
    monkeypatch.setenv("PYCOLL_TOPOLOGY", "two_racks")
    text = selection.begin(0, 8).decide(HOSTS, range(8))
    assert rows(text)[0] == (0, "4097", ["direct"])
    assert all(way != "direct" for begin, _, ways in rows(text)[1:] for way in ways)
    assert rows(text)[-1][2][0].startswith("ring")
    assert len(rows(text)[-1][2]) == 4  # others, for when it turns out slow
    assert rows(text, "all_gather")[0][:2] == (0, "32769")
    assert rows(text, "broadcast")[0][:2] == (0, "16385")


def test_pins_beat_the_topology(monkeypatch):
    monkeypatch.setenv("PYCOLL_ALGO", "allreduce=binary_tree")
    text = selection.begin(0, 8, topology=RACKS).decide(HOSTS, range(8))
    assert rows(text) == [(0, "-", ["binary_tree"])]
    assert "\ntopology\t" in text


def test_one_order_across_hosts_at_every_size():
    for topology in (RACKS, None):
        text = selection.begin(0, 8, deterministic=True, topology=topology).decide(HOSTS, range(8))
        assert len({way for _, _, ways in rows(text) for way in ways}) == 1


def test_no_topology_is_no_table():
    assert selection.begin(0, 8).decide(HOSTS, range(8)) == ""
    assert selection.begin(1, 8).decide is None


def test_a_topology_that_is_none_is_refused(monkeypatch):
    with pytest.raises(pycoll.InvalidArgument, match="topology is a int"):
        selection.begin(0, 8, topology=3)
    monkeypatch.setenv("PYCOLL_TOPOLOGY", "/nowhere.yaml")
    with pytest.raises(pycoll.TopologyError, match="nowhere"):
        selection.begin(0, 8)


def test_a_group_chooses_on_the_topology_that_it_was_given(on_threads, monkeypatch, tmp_path):
    chain = Topology.flat(3, "1 GB/s", 50e-6)
    chain.save(tmp_path / "chain.yaml")
    monkeypatch.setenv("PYCOLL_TOPOLOGY", str(tmp_path / "chain.yaml"))

    def rank(comm):
        import numpy as np

        table = comm.decisions()
        return float(comm.allreduce(np.ones(2**18))[5]), table.find("allreduce", 2**21).basis

    assert on_threads(3, rank) == [(3.0, "modelled")] * 3


def test_one_variable_serves_groups_of_other_sizes_and_init_does_not(monkeypatch, caplog):
    with pytest.raises(pycoll.InvalidArgument, match="places for 8 ranks, the group has 2"):
        selection.begin(0, 2, topology=RACKS).decide(["x", "y"], [0, 1])
    monkeypatch.setenv("PYCOLL_TOPOLOGY", "two_racks")
    assert selection.begin(0, 2).decide(["x", "y"], [0, 1]) == ""
    assert "places for 8 ranks, the group has 2" in caplog.text
    assert rows(selection.begin(0, 2).decide(["h0", "h7"], [0, 1])) != []
