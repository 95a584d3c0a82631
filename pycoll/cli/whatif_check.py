"""`pycoll whatif --check`: the ranks that it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pycoll.errors import InvalidArgument

if TYPE_CHECKING:
    from pycoll import Topology
    from pycoll.communicator import Communicator
    from pycoll.whatif.check import Check


def check_here(machine: Topology, collective: str, size: str) -> Check | None:
    """Checks in the job that this process is part of, or with processes started here, one a rank; keeps what
    is found. None for ranks other than 0."""
    import typer

    import pycoll
    from pycoll.cli.bench import job_size
    from pycoll.whatif.check import keep
    from pycoll.whatif.compare import sizes_of

    ranks = len(machine.ranks)
    if ranks < 2:
        raise InvalidArgument("--check needs a topology of 2 ranks or more")
    sizes = sizes_of(size) if size else []
    joined = job_size()
    if joined is None:
        found: Check | None = pycoll.spawn(_run_rank, ranks=ranks, args=(machine, collective, sizes))[0]
    else:
        with pycoll.init() as comm:
            found = _run_rank(comm, machine, collective, sizes)
    if found is not None:
        typer.echo(f"kept in {keep(found, machine)}", err=True)
    return found


def _run_rank(comm: Communicator, machine: Topology, collective: str, sizes: list[int]) -> Check | None:
    from pycoll.whatif.check import check

    return check(comm, machine, collective, sizes)
