"""The guide's code blocks, run in order as one program; what they print is what the guide says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

GUIDE = Path(__file__).parents[2] / "docs" / "python.md"
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)


def test_guide():
    blocks = BLOCK.findall(GUIDE.read_text())
    assert len(blocks) >= 8
    program = "\n".join(code for code, _ in blocks)
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    env = {name: value for name, value in os.environ.items() if name not in names}
    env["PYTHONPATH"] = ":".join(sys.path)
    done = subprocess.run([sys.executable, "-"], input=program, capture_output=True, text=True, env=env)
    assert done.stderr == ""
    assert done.stdout == "".join(text for _, text in blocks)
