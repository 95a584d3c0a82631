"""Which network interface is used: found, pinned, wrong, behind a misleading host name, IPv6 only."""

from __future__ import annotations

import subprocess

import numpy as np
import pytest

import pycoll


def total(comm):
    return float(comm.allreduce(np.full(100_000, comm.rank + 1.0))[-1])


def test_pinned(on_hosts):
    names = ["eth0", "eth"]  # or how it begins
    assert on_hosts(2, total, env=lambda rank: {"PYCOLL_IFNAME": names[rank]}) == [3, 3]


def joins(rank, ranks, address):
    try:
        with pycoll.init(15, rank=rank, ranks=ranks, address=address) as comm:
            return "a sum", total(comm)
    except pycoll.Error as error:
        return type(error).__name__, str(error)


@pytest.mark.long
def test_wrong_name_lists_what_there_is(start_hosts, labs):
    job = start_hosts(2, joins, 2, f"{labs.get(2).ip(0)}:29604", init=False, env={"PYCOLL_IFNAME": "wlan7"})
    for outcome in job.outcomes().values():
        kind, text = outcome.value
        assert kind in ("InvalidArgument", "Aborted"), text
        assert "wlan7" in text
        assert "eth0" in text


def test_wrong_name_on_one_host_is_told_to_the_other(start_hosts, labs):
    job = start_hosts(
        2,
        joins,
        2,
        f"{labs.get(2).ip(0)}:29605",
        init=False,
        env=lambda rank: {"PYCOLL_IFNAME": "wlan7"} if rank == 1 else {},
    )
    (kind, text), (kind1, text1) = [outcome.value for outcome in job.outcomes().values()]
    assert kind in ("Aborted", "InvalidArgument", "PeerLost")
    assert "rank 1" in text
    assert kind1 == "InvalidArgument"
    assert "wlan7" in text1


def test_host_name_that_resolves_to_loopback(start_hosts, labs):
    """As Debian has it: each host finds its own name at 127.0.1.1, and that is also how rank 0 is called."""
    lab = labs.make(hosts=2, rate=None)
    for host in range(2):
        others = "".join(f"{lab.ip(i)} h{i}\n" for i in range(2) if i != host)
        lab.write_hosts_file(host, f"127.0.1.1 h{host}\n{others}")
    job = start_hosts(lab, joins, 2, "h0:29606", init=False)
    assert [outcome.value for outcome in job.outcomes().values()] == [("a sum", 3.0)] * 2


@pytest.mark.long
def test_host_name_that_resolves_to_nothing(start_hosts, labs):
    lab = labs.make(hosts=2, rate=None)
    for host in range(2):
        lab.write_hosts_file(host, "")
    job = start_hosts(lab, joins, 2, f"{lab.ip(0)}:29607", init=False)
    assert [outcome.value for outcome in job.outcomes().values()] == [("a sum", 3.0)] * 2


def test_decoys(start_hosts, labs):
    """Each host has a container bridge with one address everywhere, and an interface that leads nowhere."""
    lab = labs.make(hosts=2, rate=None)
    for host in range(2):
        for command in (
            "link add docker0 type bridge",
            "addr add 172.17.0.1/16 dev docker0",
            "link set docker0 up",
            "link add aaa0 type dummy",
            "addr add 192.168.99.1/24 dev aaa0",
            "link set aaa0 up",
        ):
            subprocess.run(["ip", "-n", lab.ns(host), *command.split()], check=False, capture_output=True)
    job = start_hosts(lab, joins, 2, f"{lab.ip(0)}:29608", init=False)
    assert [outcome.value for outcome in job.outcomes().values()] == [("a sum", 3.0)] * 2
    assert on_one_wire(lab)


def on_one_wire(lab):
    """Whether the bytes went over eth0: more than a megabyte and a half in both directions together."""
    return sum(lab.bytes_sent(host) for host in range(2)) > 1_500_000


def test_ipv6_only(on_hosts, labs):
    assert on_hosts(labs.get(2, ipv6=True), total) == [3, 3]


def test_lanes(on_hosts):
    assert on_hosts(2, total, env={"PYCOLL_LANES": "4"}) == [3, 3]
