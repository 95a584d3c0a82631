"""This host's network interfaces, as `pycoll doctor` shows them. tests/multihost has hosts of other kinds."""

from __future__ import annotations

import pytest

import pycoll
from pycoll import _core


def test_every_interface_has_a_reason():
    rows = _core.network_interfaces()
    assert any(row["chosen"] for row in rows)
    for row in rows:
        assert set(row) == {"name", "addresses", "up", "loopback", "internal", "chosen", "reason"}
        assert row["reason"]
        assert not row["chosen"] or (row["up"] and row["addresses"])
    outward = [row for row in rows if row["up"] and row["addresses"] and not row["loopback"]]
    assert any(row["chosen"] and row["loopback"] for row in rows) == (not outward)


def test_loopback():
    (row,) = (row for row in _core.network_interfaces(pinned="lo") if row["chosen"])
    assert row["name"] == "lo"
    assert "127.0.0.1/8" in row["addresses"]
    assert row["reason"] == "pinned by 'lo'"


def test_unknown_name_lists_what_there_is():
    with pytest.raises(pycoll.InvalidArgument, match=r"'wlan77' .* does not exist; this host has: .*lo \(up"):
        _core.network_interfaces(pinned="wlan77")


def test_unresolvable_host_is_told():
    rows = _core.network_interfaces(towards="no-such-host.invalid")
    assert any(row["chosen"] and "'no-such-host.invalid' does not resolve" in row["reason"] for row in rows)
