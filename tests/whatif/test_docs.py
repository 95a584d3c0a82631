"""docs/whatif.md: its program prints what stands there, its workload loads, its flags exist."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

from typer.testing import CliRunner

from pycoll.cli import app
from pycoll.whatif import Workload

TEXT = (Path(__file__).parents[2] / "docs" / "whatif.md").read_text()


def test_its_program_prints_what_it_says() -> None:
    found = re.search(r"^```python\n(.*?)^```\n```text\n(.*?)^```\n", TEXT, re.DOTALL | re.MULTILINE)
    assert found is not None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(found[1], {})
    assert printed.getvalue() == found[2]


def test_its_workload_loads() -> None:
    found = re.search(r"^```yaml\n(.*?)^```\n", TEXT, re.DOTALL | re.MULTILINE)
    assert found is not None
    assert len(Workload.from_yaml(found[1]).layers) == 34


def test_its_flags_exist() -> None:
    text = CliRunner().invoke(app, ["whatif", "--help"], env={"COLUMNS": "200"}).stdout
    for flag in set(re.findall(r"`(--[a-z-]+)", TEXT)):
        assert flag in text
