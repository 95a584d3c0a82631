"""`pycoll whatif --check`: the ranks that it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pycoll.errors import InvalidArgument

if TYPE_CHECKING:
    from pycoll import Topology
    from pycoll.communicator import Communicator
    from pycoll.whatif.check import Check

_HARDLY_THIS = 1.0  # of the measured time: a median error above it is no inexactness


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
    if joined is not None and joined != ranks:
        raise InvalidArgument(
            f"topology {machine.name!r} has {ranks} ranks and this job {joined}: check the topology of these "
            f"machines, or start {ranks} ranks"
        )
    if joined is None:
        found: Check | None = pycoll.spawn(_run_rank, ranks=ranks, args=(machine, collective, sizes))[0]
    else:
        with pycoll.init() as comm:
            found = _run_rank(comm, machine, collective, sizes)
    if found is not None:
        typer.echo(f"kept in {keep(found, machine)}", err=True)
        if found.median > _HARDLY_THIS:
            typer.echo(
                f"predictions are off by {found.median:.0%} in the median: topology {machine.name!r} is "
                "hardly of the machine that this ran on; pycoll topo probe measures one that is",
                err=True,
            )
    return found


def _run_rank(comm: Communicator, machine: Topology, collective: str, sizes: list[int]) -> Check | None:
    from pycoll.whatif.check import check

    return check(comm, machine, collective, sizes)
