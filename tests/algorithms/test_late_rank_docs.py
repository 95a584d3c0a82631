"""docs/late-rank.md: its programs and commands print what stands there, its pictures exist."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pycoll.cli import app

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "late-rank.md").read_text()


def test_the_code_prints_what_stands_there() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```\n```text\n(.*?)^```\n", TEXT, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 4
    program: dict[str, object] = {}
    for code, expected in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, program)
        assert printed.getvalue() == expected


@pytest.mark.parametrize("line", re.findall(r"^\$ pycoll (.*)$", TEXT, re.MULTILINE))
def test_the_commands_print_what_stands_there(line: str) -> None:
    found = re.search(rf"^\$ pycoll {re.escape(line)}\n(.*?)^```\n", TEXT, re.DOTALL | re.MULTILINE)
    assert found is not None
    assert CliRunner().invoke(app, line.split()).stdout == found[1]


def test_its_flags_and_pictures_exist() -> None:
    text = CliRunner().invoke(app, ["schedule", "late-rank", "--help"], env={"COLUMNS": "200"}).stdout
    text += CliRunner().invoke(app, ["bench", "--help"], env={"COLUMNS": "200"}).stdout
    text += "--late"  # of `pycoll explain`
    for flag in set(re.findall(r"`(--[a-z-]+)", TEXT)):
        assert flag in text
    for picture in re.findall(r"\((images/[^)]+)\)", TEXT):
        assert (DOCS / picture).is_file()


def test_the_picture_of_lateness(tmp_path: Path) -> None:
    file = tmp_path / "lateness.svg"
    done = CliRunner().invoke(app, ["schedule", "late-rank", "-n", "4", "--draw", str(file)])
    assert done.exit_code == 0
    assert file.read_text().count("<!-- lateness (ms) -->") == 1
    wrong = CliRunner().invoke(app, ["schedule", "late-rank", "-n", "4", "--draw", "x.nothing"])
    assert "cannot draw to 'x.nothing'" in str(wrong.exception)
