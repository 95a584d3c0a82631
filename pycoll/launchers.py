"""Which rank this process is, and where the ranks meet, as launchers tell it in environment variables.

Understood are torchrun (and whatever sets its variables), Open MPI, MPICH, Intel MPI and all else that speaks
PMI, and Slurm's srun, with PMI, PMIx or neither. docs/hosts.md lists the variables.
"""

from __future__ import annotations

import os
import re
import sys
import zlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from pycoll.errors import InvalidArgument

#: What torch and others use where nobody says otherwise.
DEFAULT_PORT = 29500
_PORTS_OF_JOBS = range(15000, 29000)  # below what Linux gives to outgoing connections


class _Launcher(NamedTuple):
    """The variables by which a launcher numbers its processes; of `ranks` and the rest the first that is set
    counts."""

    name: str
    rank: str
    ranks: tuple[str, ...]
    local_rank: tuple[str, ...] = ()
    local_ranks: tuple[str, ...] = ()


_LAUNCHERS = (
    _Launcher("torchrun", "RANK", ("WORLD_SIZE",), ("LOCAL_RANK",), ("LOCAL_WORLD_SIZE",)),
    _Launcher(
        "Open MPI",
        "OMPI_COMM_WORLD_RANK",
        ("OMPI_COMM_WORLD_SIZE",),
        ("OMPI_COMM_WORLD_LOCAL_RANK",),
        ("OMPI_COMM_WORLD_LOCAL_SIZE",),
    ),
    _Launcher(
        "an MPI launcher (PMI)",
        "PMI_RANK",
        ("PMI_SIZE",),
        ("MPI_LOCALRANKID", "PMI_LOCAL_RANK"),
        ("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"),
    ),
    _Launcher(
        "Slurm", "SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"), ("SLURM_LOCALID",)
    ),
)

MPI_LAUNCHERS = ("Open MPI", "an MPI launcher (PMI)")


class Place(NamedTuple):
    """What a launcher tells a process of its job."""

    rank: int
    ranks: int
    launcher: str = ""  #: "" where none started this process, which is then a job of its own
    local_rank: int | None = None  #: among the ranks of its host; None where the launcher does not say
    local_ranks: int | None = None

    @property
    def one_host(self) -> bool:
        return self.local_ranks == self.ranks


def place(environment: Mapping[str, str] = os.environ) -> Place:
    """This process's place in the job that it was started in; rank 0 of 1 where no launcher has set anything.

    Raises InvalidArgument, naming the variables, where they are incomplete or contradict each other.
    """
    for launcher in _LAUNCHERS:
        if launcher.name == "Slurm" and _is_batch_script(environment):
            continue
        found = _place_by(launcher, environment)
        if found is not None:
            return found
    if environment.get("PMIX_RANK"):
        looked_at = ", ".join(name for launcher in _LAUNCHERS for name in launcher.ranks)
        raise InvalidArgument(
            f"init: the environment has PMIX_RANK={environment['PMIX_RANK']}, and nothing that tells the "
            f"number of ranks (looked at: {looked_at}): set RANK and WORLD_SIZE"
        )
    return Place(0, 1)


def _place_by(launcher: _Launcher, environment: Mapping[str, str]) -> Place | None:
    """None where this launcher has not set its variables."""
    size = next((name for name in launcher.ranks if environment.get(name)), None)
    has_rank = bool(environment.get(launcher.rank))
    if not has_rank and (size is None or launcher.name == "Slurm"):  # salloc, too, sets sizes
        return None
    if size is None or not has_rank:
        present, missing = (launcher.rank, " or ".join(launcher.ranks)) if has_rank else (size, launcher.rank)
        raise InvalidArgument(
            f"init: the environment has {present} but not {missing}: set both, or start with "
            "torchrun, srun or mpirun, or use pycoll.spawn"
        )
    rank, ranks = _number(environment, launcher.rank), _number(environment, size)
    if ranks < 1 or not 0 <= rank < ranks:
        raise InvalidArgument(
            f"init: rank {rank} of {ranks} ranks, say {launcher.rank} and {size}: ranks go from 0 to "
            "ranks - 1"
        )
    local_rank, local_rank_name = _first_number(environment, launcher.local_rank)
    local_ranks, local_ranks_name = _first_number(environment, launcher.local_ranks)
    if launcher.name == "Slurm" or (local_ranks is None and environment.get("SLURM_STEP_ID")):
        local_ranks, local_ranks_name = _all_on_one_node(environment, ranks), "SLURM_STEP_NUM_NODES"
    if local_rank is not None and local_ranks is not None and not local_rank < local_ranks <= ranks:
        raise InvalidArgument(
            f"init: the environment contradicts itself: {local_rank_name}={local_rank}, "
            f"{local_ranks_name}={local_ranks}, {size}={ranks}"
        )
    return Place(rank, ranks, launcher.name, local_rank, local_ranks)


def _is_batch_script(environment: Mapping[str, str]) -> bool:
    """sbatch numbers the script itself like a task of srun, but starts it once, whatever the number of
    tasks."""
    return environment.get("ENVIRONMENT") == "BATCH" and not environment.get("SLURM_STEP_ID")


def _all_on_one_node(environment: Mapping[str, str], ranks: int) -> int | None:
    """The number of ranks, where Slurm says that they are all on one host."""
    nodes, _ = _first_number(environment, ("SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"))
    return ranks if nodes == 1 else None


def meeting_point(here: Place, environment: Mapping[str, str] = os.environ) -> str:
    """ "host:port" at which rank 0 listens while a group is made, or torchrun keeps its store.

    MASTER_ADDR and MASTER_PORT, where they are set. Otherwise, except under torchrun, which sets both: the
    address is loopback for a job of one host, the first host of Slurm's list, or rank 0's as MPI tells it to
    a program that uses mpi4py; the port is one computed from the job's number, else 29500.

    Raises InvalidArgument, saying what was looked at.
    """
    host, port = environment.get("MASTER_ADDR"), environment.get("MASTER_PORT")
    if host and ":" in host and not host.startswith("["):
        host = f"[{host}]"
    if port and not (port.isdigit() and 0 < int(port) < 65536):
        raise InvalidArgument(
            f'init: address is "{host or "?"}:{port}", by MASTER_ADDR and MASTER_PORT: a port is a number '
            "from 1 to 65535"
        )
    if here.launcher == "torchrun":
        missing = " and ".join(n for n in ("MASTER_ADDR", "MASTER_PORT") if not environment.get(n))
        if missing:
            raise InvalidArgument(
                f"init: the environment has RANK and WORLD_SIZE={here.ranks} but not {missing}: set the "
                "host and port at which rank 0 can be reached, such as MASTER_ADDR=10.0.0.1 MASTER_PORT=29500"
            )
        return f"{host}:{port}"
    if not host and (told := _told_by_mpi(here, port)):
        return told
    return f"{host or _host_of_rank_0(here, environment)}:{port or _port_of_job(environment)}"


def _host_of_rank_0(here: Place, environment: Mapping[str, str]) -> str:
    if here.one_host:
        return "127.0.0.1"
    lists = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
    for name in lists:
        if environment.get(name):
            return first_host(environment[name])
    # Where srun runs; on the first host in a batch job, though not where salloc was called on another one.
    if environment.get("SLURM_LAUNCH_NODE_IPADDR"):
        return environment["SLURM_LAUNCH_NODE_IPADDR"]
    raise InvalidArgument(
        f"init: {here.launcher} started rank {here.rank} of {here.ranks} but does not say on which host "
        f"rank 0 is (looked at: MASTER_ADDR, {', '.join(lists)}): give all ranks MASTER_ADDR, a name or "
        "address of that host (mpirun -x MASTER_ADDR=..., mpiexec -genv MASTER_ADDR ...), or import "
        "mpi4py.MPI before, which can ask MPI"
    )


def _port_of_job(environment: Mapping[str, str]) -> int:
    """The same for all ranks of a job, and most likely another one for another job on these hosts."""
    for names in (("SLURM_JOB_ID", "SLURM_STEP_ID"), ("PMIX_NAMESPACE",), ("OMPI_MCA_ess_base_jobid",)):
        if environment.get(names[0]):
            number = zlib.crc32(".".join(environment.get(name, "") for name in names).encode())
            return _PORTS_OF_JOBS[number % len(_PORTS_OF_JOBS)]
    return DEFAULT_PORT


def _told_by_mpi(here: Place, port: str | None) -> str | None:
    """Where MPI is at work in this process already: rank 0's address and a free port of its host."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None or not mpi.Is_initialized() or mpi.Is_finalized() or mpi.COMM_WORLD.size != here.ranks:
        return None
    told: str = mpi.COMM_WORLD.bcast(_own_address(here, port) if mpi.COMM_WORLD.rank == 0 else None)
    return told


def _own_address(here: Place, port: str | None) -> str:
    from pycoll import _network

    host = "127.0.0.1" if here.one_host else _network.own_address()
    return f"[{host}]:{port or free_port()}" if ":" in host else f"{host}:{port or free_port()}"


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def first_host(nodes: str) -> str:
    """The first host of a Slurm list such as "node[03-05,9],gpu1": node03."""
    return next(_hosts(nodes))


def _hosts(nodes: str) -> Iterator[str]:
    for entry in re.findall(r"[^,\[]+(?:\[[^\]]*\][^,\[]*)*", nodes):
        yield re.sub(r"\[(\w+)[^\]]*\]", r"\1", entry)


def _first_number(environment: Mapping[str, str], names: tuple[str, ...]) -> tuple[int | None, str]:
    for name in names:
        if environment.get(name):
            return _number(environment, name), name
    return None, ""


def _number(environment: Mapping[str, str], name: str) -> int:
    try:
        return int(environment[name])
    except ValueError:
        raise InvalidArgument(
            f"init: the environment has {name}={environment[name]!r}, which is no number"
        ) from None
