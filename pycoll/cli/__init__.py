"""The command `pycoll`, a file a command. Each loads what it needs when called: --help answers at once."""

from __future__ import annotations

import sys

from pycoll.cli import bench, bound, doctor, explain, late_rank, schedule, topo, tune, whatif
from pycoll.cli._app import app, fail

app.command()(bench.bench)
app.command()(tune.tune)
app.command()(explain.explain)
app.command()(whatif.whatif)
app.command()(doctor.doctor)
app.command("algorithms")(schedule.list_algorithms)
schedule.app.command("late-rank")(late_rank.late_rank)
app.add_typer(schedule.app, name="schedule")
topo.app.command()(bound.bound)
app.add_typer(topo.app, name="topo")


def main() -> None:
    """The console script. An error of pycoll's is one sentence on stderr, not a traceback."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except ImportError as error:
        if "pycoll._core" not in str(error):
            raise
        fail(f"pycoll's compiled core is missing ({error}): reinstall with pip install .")
    except Exception as error:
        from pycoll.errors import Error, InvalidArgument, Unsupported

        if not isinstance(error, Error):
            raise
        fail(str(error), 2 if isinstance(error, (InvalidArgument, Unsupported)) else 1)
