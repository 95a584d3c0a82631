"""`pycoll doctor` on a host of several: what it finds before a job does."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

JOB = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_PORT": "29700"}


def doctor(lab, host, **variables):
    """(exit code, topic -> finding)"""
    done = subprocess.run(
        lab.command(host, [sys.executable, "-m", "pycoll.cli", "doctor", "--network", "--json"]),
        env={**os.environ, "PYTHONPATH": ":".join(sys.path), **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout, done.stderr
    return done.returncode, {finding["topic"]: finding for finding in json.loads(done.stdout)}


def verdict(findings, topic):
    finding = findings[topic]
    if finding["verdict"] not in ("ok", "absent"):
        assert finding["remedy"], finding
    return finding["verdict"], finding["found"]


def test_all_is_well(labs):
    lab = labs.get(2)
    code, findings = doctor(lab, 1, **JOB, MASTER_ADDR="h0")
    assert verdict(findings, "host name") == ("ok", f"h1 is {lab.ip(1)}")
    assert verdict(findings, "job") == ("ok", "rank 1 of 2, by torchrun; the ranks meet at h0:29700")
    answer = f"{lab.ip(0)} is reached; nobody listens at port 29700 yet"
    assert verdict(findings, "meeting point") == ("ok", answer)
    assert verdict(findings, "network interfaces")[0] == "ok"
    assert f"eth0 {lab.ip(1)}/16" in findings["network interfaces"]["found"]
    assert code == 0


def test_on_rank_0s_host(labs):
    lab = labs.get(2)
    _, findings = doctor(lab, 0, **{**JOB, "RANK": "0"}, MASTER_ADDR=lab.ip(0))
    answer = f"{lab.ip(0)} is this host, and port 29700 is free"
    assert verdict(findings, "meeting point") == ("ok", answer)


def test_all_is_ill(labs):
    lab = labs.make(hosts=2, rate=None)
    lab.write_hosts_file(1, "127.0.1.1 h1\n")
    lab.partition(0, 1)
    code, findings = doctor(lab, 1, **JOB, MASTER_ADDR=lab.ip(0), PYCOLL_IFNAME="wlan7", PYCOLL_LANES="0")
    assert code == 1
    assert verdict(findings, "host name")[0] == "warning"
    assert "127.0.1.1" in findings["host name"]["found"]
    assert verdict(findings, "network interfaces")[0] == "problem"
    assert "wlan7" in findings["network interfaces"]["found"]
    assert "eth0" in findings["network interfaces"]["found"]
    assert verdict(findings, "network settings")[0] == "problem"
    assert "PYCOLL_LANES='0'" in findings["network settings"]["found"]
    assert verdict(findings, "meeting point")[0] == "problem"
    assert "port 29700" in findings["meeting point"]["found"]


@pytest.mark.parametrize(
    ("variables", "topic", "says"),
    [
        ({**JOB, "MASTER_ADDR": "h7"}, "meeting point", "h7 is no name of a host"),
        ({"RANK": "1"}, "job", "RANK but not WORLD_SIZE"),
        ({**JOB, "MASTER_ADDR": ""}, "job", "not MASTER_ADDR"),
    ],
)
def test_wrong_variables(labs, variables, topic, says):
    code, findings = doctor(labs.get(2), 1, **variables)
    assert code == 1
    assert verdict(findings, topic)[0] == "problem"
    assert says in findings[topic]["found"]


def test_name_without_an_address(labs):
    lab = labs.make(hosts=2, rate=None)
    lab.write_hosts_file(0, "")
    code, findings = doctor(lab, 0)
    assert (code, verdict(findings, "host name")) == (0, ("warning", "h0 resolves to nothing"))
    assert verdict(findings, "job")[0] == "absent"
