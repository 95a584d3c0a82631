"""The tests are of the installed package. The source folder pycoll/ lacks the compiled core, so it must
not be found first: not by `python -m pytest`, which puts the current folder on the path, and not by the
processes tests start."""

import os
import sys
from pathlib import Path

_ROOT = Path(__file__).parent.resolve()

sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != _ROOT]
os.environ["PYTHONSAFEPATH"] = "1"  # Python 3.11 and newer leave the current folder out
