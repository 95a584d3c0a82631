"""docs/topology.md: its files load, its program prints what it says, its tables are complete."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

from pycoll import Topology
from pycoll.topology.bundled import bundled

GUIDE = (Path(__file__).parents[2] / "docs" / "topology.md").read_text()
FILES = re.findall(r"^```yaml\n(.*?)^```\n", GUIDE, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("text", FILES, ids=lambda text: text.splitlines()[1])
def test_its_files_load(text: str) -> None:
    Topology.from_yaml(text)


def test_its_examples_are_the_bundled_ones() -> None:
    assert Topology.from_yaml(FILES[0]) == Topology.load("two_racks")
    assert Topology.from_yaml(FILES[1]) == Topology.load("hgx-h100-128-rail")


def test_its_program_prints_what_it_says() -> None:
    found = re.search(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```\n", GUIDE, re.DOTALL | re.MULTILINE)
    assert found is not None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(found[1], {})
    assert printed.getvalue() == found[2]


def test_every_bundled_machine_is_in_its_table() -> None:
    rows = "\n".join(line for line in GUIDE.splitlines() if line.startswith("| `"))
    named = re.findall(r"`([^`]+)`", rows)
    for name in bundled():
        assert name in named
    assert f"[{len(bundled())} machines" in GUIDE
