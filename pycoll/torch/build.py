"""Compile and load the adapter: c10d's Backend in C++, built against the torch that runs.

A C++ backend fits one version of torch only, and pip may install pycoll before torch, so it is compiled where
it is first used, once a machine, into a cache; `python -m pycoll.torch.build` does it beforehand.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import importlib.machinery
import importlib.util
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

# The minor releases of torch that the adapter is tested with: the first and the last.
TORCH = ((2, 13), (2, 15))

MODULE_NAME = "_pycoll_torch"
BEFOREHAND = "python -m pycoll.torch.build"
DAY = 24 * 3600.0  # seconds


_loaded: ModuleType | None = None


def load(timeout: float | None = None) -> ModuleType:
    """The compiled adapter; compiled first if this machine's cache has none for this torch and this pycoll.

    Args:
        timeout: seconds that compiling, or waiting for the process that compiles, may take.

    Raises:
        RuntimeError: this torch is older than those supported, pycoll's core is of other sources, there is no
            compiler, it failed (with its message), or time ran out.
    """
    global _loaded
    if _loaded is None:
        _loaded = _load(compiled(timeout))
    return _loaded


def loaded() -> ModuleType | None:
    """The adapter if this process has loaded it."""
    return _loaded


def _load(path: Path) -> ModuleType:
    import torch  # noqa: F401  the adapter needs torch's libraries in the process

    # Loaded first and by its path, libpycoll is found under its bare name when the adapter asks for it, so
    # that one compiled adapter serves every installation of the same pycoll.
    ctypes.CDLL(str(library()))
    loader = importlib.machinery.ExtensionFileLoader(MODULE_NAME, str(path))
    spec = importlib.util.spec_from_file_location(MODULE_NAME, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def compiled(timeout: float | None = None) -> Path:
    """Path of the compiled adapter, compiling it if need be. One process a machine does, the others wait.

    Args, Raises: see `load`.
    """
    foreign = unsupported_torch()
    if foreign and _torch_release() < TORCH[0]:
        raise RuntimeError(foreign)
    _require_core_of_these_headers()
    target = cache_directory() / f"{MODULE_NAME}-{_key()}.so"
    deadline = math.inf if timeout is None else time.monotonic() + timeout
    if not target.exists():
        with _locked(target.with_suffix(".lock"), deadline):
            if not target.exists():
                _remove_what_the_killed_left(target)
                _compile(target, deadline)
    return target


def unsupported_torch() -> str:
    """A sentence that says so where the installed torch is none of those supported; else ""."""
    import torch

    if TORCH[0] <= _torch_release() <= TORCH[1]:
        return ""
    oldest, newest = (".".join(map(str, release)) for release in TORCH)
    return (
        f"pycoll's torch backend supports torch {oldest} to {newest}; this is torch {torch.__version__}: "
        f"pip install 'torch>={oldest},<{TORCH[1][0]}.{TORCH[1][1] + 1}'"
    )


def _torch_release() -> tuple[int, int]:
    import torch

    major, minor = re.findall(r"\d+", torch.__version__)[:2]
    return int(major), int(minor)


def library() -> Path:
    """libpycoll.so of the installed package."""
    spec = importlib.util.find_spec("pycoll._core")
    if spec is None or spec.origin is None:
        raise RuntimeError(
            "pycoll is not installed: its compiled core is missing; run `pip install .` in its source"
        )
    return Path(spec.origin).parent / "libpycoll.so"


def source_directory() -> Path:
    """`csrc`: the repository's where pycoll is installed in place (`pip install -e`), else the package's."""
    repository = Path(__file__).resolve().parents[2]
    if (repository / "pyproject.toml").exists() and (repository / "csrc" / "torch").is_dir():
        return repository / "csrc"
    return library().parent / "csrc"


def cache_directory() -> Path:
    """$PYCOLL_CACHE, else pycoll in the user's XDG cache; where that is read-only, one in /tmp."""
    asked = os.environ.get("PYCOLL_CACHE")
    if asked:
        path = Path(asked).expanduser()
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RuntimeError(
                f"PYCOLL_CACHE={asked}: the folder cannot be made ({error.strerror}); name one that can, for "
                "the compiled adapter"
            ) from None
        return path
    path = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "pycoll"
    try:
        path.mkdir(parents=True, exist_ok=True)
        if os.access(path, os.W_OK):
            return path
    except OSError:
        pass
    path = Path(tempfile.gettempdir()) / f"pycoll-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022:  # others could plant a library there
        raise RuntimeError(
            f"{path} belongs to, or is open to, another user; set PYCOLL_CACHE to a directory of yours"
        )
    return path


def compiler() -> str:
    """$CXX, else the first C++ compiler on PATH."""
    asked = os.environ.get("CXX")
    for name in [asked] if asked else ["c++", "g++", "clang++"]:
        words = name.split()
        if words and shutil.which(words[0]):
            return name
    where = f"$CXX names {asked!r}, which" if asked else "a C++ compiler (c++, g++ or clang++)"
    raise RuntimeError(
        f"{where} is not on PATH. The pycoll backend is compiled once against the installed torch and needs "
        "one with C++20: install g++ 11 or newer (Debian and Ubuntu: apt install g++; "
        "Fedora: dnf install gcc-c++; "
        "conda: conda install -c conda-forge cxx-compiler)"
    )


def command(unit: Path, output: Path) -> list[str]:
    """The one compiler line."""
    import torch

    torch_directory = Path(torch.__file__).parent
    torch_headers = torch_directory / "include"
    python_headers = sysconfig.get_paths()["include"]
    if not (Path(python_headers) / "Python.h").exists():
        raise RuntimeError(
            f"Python.h is not in {python_headers}; install Python's development files "
            "(Debian and Ubuntu: apt install python3-dev; Fedora: dnf install python3-devel)"
        )
    line = [*compiler().split(), "-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-w"]
    line += [
        f"-DPYCOLL_TORCH_MODULE={MODULE_NAME}",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
    ]
    for path in [torch_headers, torch_headers / "torch/csrc/api/include", python_headers]:
        line += ["-isystem", str(path)]
    line += ["-I", str(source_directory()), str(unit), "-o", str(output)]
    line += [str(library()), f"-L{torch_directory / 'lib'}", "-ltorch_python", "-ltorch_cpu", "-lc10", "-ldl"]
    return line


def _require_core_of_these_headers() -> None:
    """An adapter of other headers than its core's would crash."""
    from pycoll import _core

    root = source_directory()
    names = sorted(str(path.relative_to(root)) for path in root.rglob("*.h"))
    digests = (
        f"{name} {hashlib.sha256((root / name).read_bytes()).hexdigest()}\n"
        for name in names
        if not name.startswith(("torch/", "python/"))
    )
    if hashlib.sha256("".join(digests).encode()).hexdigest() != _core.headers:
        raise RuntimeError(
            f"pycoll's compiled core ({library()}) was made from other sources than those in {root}, which "
            "have changed since: install again, as you did (pip install . or pip install -e .)"
        )


def _sources() -> list[Path]:
    return sorted((source_directory() / "torch").glob("*.cpp"))


def _key() -> str:
    """What a compiled adapter depends on. Of libpycoll that is its headers: its code is another library's."""
    import torch

    digest = hashlib.sha256()
    for path, text in sorted(_with_headers(_sources()).items()):
        digest.update(path.encode() + b"\0" + text)
    abi = f"{sysconfig.get_config_var('SOABI')}-abi{int(torch.compiled_with_cxx11_abi())}"
    return f"torch{torch.__version__}-{abi}-{digest.hexdigest()[:16]}"


def _with_headers(sources: list[Path]) -> dict[str, bytes]:
    """The files and all headers of pycoll that they include, by path below `csrc`, with their texts."""
    root = source_directory()
    found: dict[str, bytes] = {}
    pending = [str(source.relative_to(root)) for source in sources]
    while pending:
        name = pending.pop()
        if name in found or not (root / name).is_file():
            continue
        found[name] = (root / name).read_bytes()
        pending += re.findall(r'^#include "([^"]+)"', found[name].decode(), re.MULTILINE)
    return found


@contextmanager
def _locked(path: Path, deadline: float) -> Iterator[None]:
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel drops it with the process
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise RuntimeError(
                        "timed out: another process is still compiling the pycoll adapter; compile it "
                        f"beforehand ({BEFOREHAND}), or give the group a longer timeout"
                    ) from None
                time.sleep(0.02)
        yield


def _remove_what_the_killed_left(target: Path) -> None:
    """Folders of compilations whose process was killed: this target's, of which we hold the lock, and old
    ones."""
    for path in target.parent.glob("building-*"):
        with contextlib.suppress(OSError):
            if path.name.startswith(_building(target)) or time.time() - path.stat().st_mtime > DAY:
                shutil.rmtree(path, ignore_errors=True)


def _building(target: Path) -> str:
    return f"building-{target.stem}-"


def _compile(target: Path, deadline: float) -> None:
    import torch

    with tempfile.TemporaryDirectory(dir=target.parent, prefix=_building(target)) as directory:
        # One translation unit: nearly all the time goes into torch's headers.
        unit, output = Path(directory) / "adapter.cpp", Path(directory) / "adapter.so"
        unit.write_text("".join(f'#include "{source}"\n' for source in _sources()))
        line = command(unit, output)
        foreign = unsupported_torch()
        if foreign:
            print(f"pycoll: {foreign}. Trying nevertheless.", file=sys.stderr)
        print(
            f"pycoll: compiling its adapter for torch {torch.__version__}, once for this machine, "
            "about half a minute ...",
            end="", file=sys.stderr, flush=True,
        )  # fmt: skip
        start = time.monotonic()
        status, said = run_while_we_live(line, deadline, Path(directory) / "log")
        print(f" {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
        if status is None:
            raise RuntimeError(
                f"timed out after {time.monotonic() - start:.0f} s compiling the pycoll adapter; compile it "
                f"beforehand ({BEFOREHAND}), or give the group a longer timeout"
            )
        if status != 0:
            raise RuntimeError(
                (f"{foreign}\n" if foreign else "")
                + f"compiling the pycoll adapter for torch {torch.__version__} failed; the command was\n"
                f"  {' '.join(line)}\nand it said\n{_head(said)}"
            )
        output.rename(target)  # at once whole, for whoever looks


def run_while_we_live(command: list[str], deadline: float, log: Path) -> tuple[int | None, str]:
    """Run a command that ends, with all its children, when this process does, even by SIGKILL.

    Returns its exit status, None if it was stopped at the `deadline` (of time.monotonic()), and its output.
    """
    # The shell's standard input is a pipe that closes with this process: whoever reads its end then kills the
    # shell's process group.
    script = (
        'exec 3<&0; "$@" </dev/null 3<&- & run=$!; { cat <&3; kill -KILL 0; } & wait $run; status=$?; kill $!'
    )
    with log.open("w+") as output:
        process = subprocess.Popen(
            ["/bin/sh", "-c", f"{script}; exit $status", "sh", *command],
            stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
        status = None
        try:
            status = process.wait(None if deadline == math.inf else max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            pass
        finally:  # an interrupt too
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            assert process.stdin is not None
            process.stdin.close()
        output.seek(0)
        return status, output.read()


def _head(text: str, lines: int = 30) -> str:
    kept = text.splitlines()
    return "\n".join(kept[:lines] + ([f"... {len(kept) - lines} more lines"] if len(kept) > lines else []))


def main() -> None:
    """`python -m pycoll.torch.build`: compile now, say where to."""
    import argparse

    argparse.ArgumentParser(prog="python -m pycoll.torch.build", description=main.__doc__).parse_args()
    print(compiled())


if __name__ == "__main__":
    main()
