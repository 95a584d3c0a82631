"""The code blocks of docs/simulator.md, run in order as one program, print what stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

TEXT = (Path(__file__).parents[2] / "docs" / "simulator.md").read_text()
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)


def test_the_code_prints_what_stands_there() -> None:
    blocks = BLOCK.findall(TEXT)
    assert len(blocks) == 2
    program = "\n".join(code for code, _ in blocks)
    done = subprocess.run([sys.executable, "-"], input=program, capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout == "".join(text for _, text in blocks)
