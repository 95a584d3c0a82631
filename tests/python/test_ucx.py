"""Which UCX is found, and what is said of those that are not fit."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from pycoll import _ucx


def found_in_child(environment: dict[str, str], elsewhere: Path) -> str:
    """In a process of its own, as what is found once stays, and away from the source tree."""
    code = "from pycoll._ucx import information; i = information(); print(i.found, i.origin, i.passed_over)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PATH": "/usr/bin:/bin", **environment},
        cwd=elsewhere,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout


def test_what_is_found_is_told() -> None:
    found = _ucx.information()
    if not found.found:
        assert found.passed_over, "no reason is given"
        pytest.skip("no UCX here: " + "; ".join(found.passed_over))
    assert "libucp.so" in found.path
    assert tuple(int(part) for part in found.version.split(".")[:2]) >= (1, 14)
    assert any(transport.startswith("tcp/") for transport in found.transports)


@pytest.mark.skipif(find_spec("libucx") is None, reason="the package libucx is not installed")
def test_the_wheel_is_found(tmp_path: Path) -> None:
    printed = found_in_child({}, tmp_path)
    assert printed.startswith(("True the libucx wheel's", "True the system's")) or "built without" in printed


def test_what_the_user_names_is_taken_or_nothing(tmp_path: Path) -> None:
    named = tmp_path / "libucp.so.0"
    printed = found_in_child({"PYCOLL_UCX": str(tmp_path)}, tmp_path)
    if "built without" in printed:
        pytest.skip("this pycoll was built without UCX")
    assert printed.startswith(f"False  ['PYCOLL_UCX {named}: ")
    named.write_text("no library\n" * 100)
    assert "invalid ELF header" in found_in_child({"PYCOLL_UCX": str(tmp_path)}, tmp_path)
