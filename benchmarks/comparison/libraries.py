"""The libraries that are compared: how each is installed, compiled against and launched.

Every peer lives in a virtual environment of its own under a cache folder, because their packages overwrite
each other's files (Intel MPI and MPICH both bring a `libmpi.so.12`).
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

SOURCES = Path(__file__).resolve().parent.parent / "peers"
FLAGS = ["-std=c++20", "-O3", "-march=native", "-Wall", "-Wextra"]


class Unavailable(Exception):
    """A library cannot be had here; the text says why."""


@dataclass(frozen=True)
class Prepared:
    """A compiled benchmark program and how to start it."""

    program: Path
    version: str
    launcher: tuple[str, ...] = ()  # empty: start one process a rank ourselves, and tell each its rank
    oversubscribed: tuple[str, ...] = ()  # what the launcher takes besides when ranks outnumber processors
    environment: dict[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Library:
    name: str
    title: str
    kind: str  # "peer", "pycoll" or "floor"

    def prepare(self, cache: Path) -> Prepared:
        raise NotImplementedError


@dataclass(frozen=True)
class Peer(Library):
    """A library from PyPI. `bare` packages are installed without what they depend on."""

    home: str = ""  # the name of its virtual environment
    packages: tuple[str, ...] = ()
    bare: tuple[str, ...] = ()
    source: str = "mpi_allreduce.cpp"
    link: str = "mpi"
    launcher: tuple[str, ...] = ("mpiexec",)
    oversubscribed: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()  # "{home}" stands for the virtual environment

    def prepare(self, cache: Path) -> Prepared:
        home = cache / self.home
        install(home, self.packages, self.bare)
        library = home / "lib"
        program = compile_program(
            cache,
            self.home,
            self.source,
            [f"-isystem{home / 'include'}", f"-L{library}", f"-l{self.link}", f"-Wl,-rpath,{library}"],
        )
        launcher = [str(home / "bin" / self.launcher[0]), *self.launcher[1:]]
        if self.home == "openmpi" and os.geteuid() == 0:
            launcher.append("--allow-run-as-root")
        return Prepared(
            program,
            version=f"{self.packages[0].split('<')[0]} {installed_version(home, self.packages[0])}",
            launcher=tuple(launcher),
            oversubscribed=self.oversubscribed,
            environment={name: value.format(home=home) for name, value in self.environment},
        )


@dataclass(frozen=True)
class Pycoll(Library):
    zero_copy: bool = False
    shared_object: Path | None = None  # None: the installed package's

    def prepare(self, cache: Path) -> Prepared:
        shared_object = self.shared_object or installed_engine()
        if not shared_object.is_file():
            raise Unavailable(f"{shared_object} does not exist")
        program = compile_program(
            cache,
            "pycoll",
            "pycoll_allreduce.cpp",
            [f"-I{engine_headers()}", str(shared_object), f"-Wl,-rpath,{shared_object.parent}", "-pthread"],
        )
        return Prepared(program, pycoll_version(), arguments=("--zero-copy", str(int(self.zero_copy))))


@dataclass(frozen=True)
class Floor(Library):
    def prepare(self, cache: Path) -> Prepared:
        return Prepared(compile_program(cache, "floor", "floor.cpp", []), "compiler's vector code")


def oneccl(name: str, title: str, *environment: tuple[str, str]) -> Peer:
    return Peer(
        name,
        title,
        "peer",
        home="oneccl",
        packages=("oneccl-cpu<2021.15",),  # 2021.15 and later bring no library for the CPU
        bare=("oneccl-devel<2021.15",),  # for its headers; its dependencies would bring a library for GPUs
        source="oneccl_allreduce.cpp",
        link="ccl",
        environment=(
            ("CCL_ROOT", "{home}"),
            ("I_MPI_ROOT", "{home}"),
            ("FI_PROVIDER_PATH", "{home}/lib/libfabric/prov"),
            ("LD_LIBRARY_PATH", "{home}/lib:{home}/lib/libfabric"),
            ("CCL_KVS_IFACE", "lo"),
            ("CCL_LOG_LEVEL", "error"),
            *environment,
        ),
    )


def all_libraries(libpycoll: Path | None) -> list[Library]:
    return [
        Peer(
            "openmpi",
            "Open MPI",
            "peer",
            home="openmpi",
            packages=("openmpi",),
            launcher=("mpirun",),
            oversubscribed=("--oversubscribe",),
        ),
        Peer("mpich", "MPICH", "peer", home="mpich", packages=("mpich",)),
        Peer(
            "impi",
            "Intel MPI",
            "peer",
            home="impi",
            packages=("impi-rt", "impi-devel"),
            environment=(("I_MPI_FABRICS", "shm"),),
        ),
        oneccl("oneccl", "oneCCL"),
        oneccl("oneccl-ofi", "oneCCL (ofi)", ("CCL_ATL_TRANSPORT", "ofi"), ("FI_TCP_IFACE", "lo")),
        Pycoll("pycoll", "pycoll", "pycoll", shared_object=libpycoll),
        Pycoll("pycoll-zero-copy", "pycoll, zero-copy", "pycoll", zero_copy=True, shared_object=libpycoll),
        Floor("floor", "in-place floor", "floor"),
    ]


def install(home: Path, packages: Sequence[str], bare: Sequence[str]) -> None:
    """Makes the virtual environment unless it is there, complete, with just these packages."""
    stamp = home / "installed.txt"
    wanted = "\n".join([sys.version, *packages, "--no-deps", *bare])
    if stamp.is_file() and stamp.read_text() == wanted:
        return
    shutil.rmtree(home, ignore_errors=True)
    venv.create(home, with_pip=True)
    pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run_or_unavailable([*pip, *packages], "pip could not install it")
    if bare:
        run_or_unavailable([*pip, "--no-deps", *bare], "pip could not install it")
    stamp.write_text(wanted)


def installed_version(home: Path, package: str) -> str:
    name = package.split("<")[0]
    code = f"import importlib.metadata; print(importlib.metadata.version({name!r}))"
    return subprocess.check_output([str(home / "bin" / "python"), "-c", code], text=True).strip()


def compile_program(cache: Path, name: str, source: str, options: list[str]) -> Path:
    """Compiles `source` unless the same sources were compiled by the same command before."""
    compiler = os.environ.get("CXX", "g++")
    if not shutil.which(compiler):
        raise Unavailable(f"there is no compiler {compiler} (set CXX)")
    digest = hashlib.sha256(repr([compiler, FLAGS, options]).encode())
    for file in sorted([*SOURCES.glob("*.h"), SOURCES / source]):
        digest.update(file.read_bytes())
    for option in options:
        if Path(option).is_file():  # a shared object whose interface may have changed
            digest.update(str(Path(option).stat().st_mtime_ns).encode())
    folder = cache / "programs"
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / f"{name}-{digest.hexdigest()[:16]}"
    if not program.is_file():
        partial = program.with_suffix(".partial")
        command = [compiler, *FLAGS, str(SOURCES / source), "-o", str(partial), *options]
        run_or_unavailable(command, "its benchmark program does not compile")
        partial.rename(program)
    return program


def installed_engine() -> Path:
    try:
        spec = importlib.util.find_spec("pycoll._core")
    except ImportError as error:
        raise Unavailable(f"pycoll is not installed for {sys.executable}: {error}") from error
    if spec is None or spec.origin is None:
        raise Unavailable(f"pycoll is not installed for {sys.executable}")
    return Path(spec.origin).parent / "libpycoll.so"


def engine_headers() -> Path:
    in_tree = SOURCES.parent.parent / "csrc"
    if in_tree.is_dir():
        return in_tree
    return installed_engine().parent / "csrc"


def pycoll_version() -> str:
    try:
        version = importlib.metadata.version("pycoll")
    except importlib.metadata.PackageNotFoundError:
        version = "not installed"
    git = ["git", "-C", str(SOURCES), "describe", "--always", "--dirty"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    return f"{version} ({commit})" if commit else version


def run_or_unavailable(command: list[str], failure: str) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        complaint = (done.stderr or done.stdout).strip().splitlines()[-8:]
        raise Unavailable(failure + ":\n" + "\n".join(complaint))
