"""docs/whatif.md: its program and commands print what stands there, its workload loads, its flags exist."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pycoll import Topology
from pycoll.cli import app
from pycoll.topology.bundled import bundled
from pycoll.whatif import Workload

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "whatif.md").read_text()


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


def figures(text: str) -> list[str]:
    """The words of a table or sentence, without rules and line breaks."""
    return [word for word in text.split() if not word.startswith("─")]


COMMANDS = [
    (command.split()[1:], printed)
    for block in re.findall(r"^```console\n(.*?)^```\n", TEXT, re.DOTALL | re.MULTILINE)
    for command, _, printed in (part.partition("\n") for part in block.split("$ ")[1:])
]


@pytest.mark.parametrize(
    ("arguments", "printed"),
    # Steps, and machines of more than 32 ranks, take too long to be priced in a test.
    [each for each in COMMANDS if "--workload" not in each[0] and "-128-" not in each[0][1]],
)
def test_its_commands_print_what_it_says(arguments: list[str], printed: str) -> None:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0
    assert " ".join(figures(printed)) in " ".join(figures(done.stdout))


def test_its_commands_are_found() -> None:
    assert len(COMMANDS) >= 9
    for arguments, _ in COMMANDS:
        assert arguments[0] == "whatif"


def test_the_three_questions_of_the_first_page_are_answered() -> None:
    """What if a node fails, several machines behind one switch, where does the topology come from."""
    answers = TEXT.split("## Changes")[0]
    assert "`pycoll whatif machine.yaml --fail node:h3`" in answers
    done = CliRunner().invoke(app, ["whatif", "two_racks", "--fail", "node:h3", "-s", "64KiB"])
    assert "with 7 ranks in place of 8" in " ".join(done.stdout.split())
    topology = (DOCS / "topology.md").read_text()
    assert "(topology.md#several-machines-behind-one-switch)" in answers
    section = topology.partition("## Several machines behind one switch\n")[2]
    machine = Topology.from_yaml(section.partition("```yaml\n")[2].partition("```")[0])
    assert len(machine.ranks) == 6
    assert f"[{len(bundled())} machines](topology.md#machines-that-come-with-pycoll)" in answers
    assert "## Machines that come with pycoll\n" in topology
    for command in ("probe", "import", "list"):
        assert f"`pycoll topo {command}`" in answers + topology
        assert CliRunner().invoke(app, ["topo", command, "--help"]).exit_code == 0
