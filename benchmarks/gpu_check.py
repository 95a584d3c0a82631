"""Builds pycoll's CUDA part, checks it and times it on the GPU of this machine. One command, under 6 minutes:

    python benchmarks/gpu_check.py --json gpu_check.json

Works offline with what a CUDA machine has: nvcc, CMake, ninja, pybind11, scikit-build-core, torch, cupy.
Several ranks share one GPU: as threads of one process (all kernels at once: for checks and times), and as
processes that reach each other by CUDA IPC and by address ranges.

Each step (gpu_steps.py) is a process of its own with a time limit: one that crashes, hangs or spoils its CUDA
context is ended and noted, what it had found so far is kept, and the others go on. The JSON is written after
every step; the table comes last.

Exit code: 0 if everything ran and was right, 1 if not, 3 where there is no GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
STEPS_FILE = Path(__file__).resolve().parent / "gpu_steps.py"
LIMIT = 340.0  # seconds for everything
BUILD_LIMIT = 200.0
LEAST = 12.0  # seconds that a step must have left to be begun
GRACE = 6.0  # before its end a step that hangs says where

Results = dict[str, Any]


@dataclass(frozen=True)
class Step:
    """A function of gpu_steps.py, by its name; those that say most come first."""

    name: str
    limit: float  # seconds


STEPS = (
    Step("kernels right", 75),
    Step("bandwidth", 45),
    Step("latency", 45),
    Step("against NCCL", 45),
    Step("late rank", 40),
    Step("processes right", 60),
    Step("sanitizers", 110),
    Step("torch.distributed", 90),
    Step("pools", 45),
    Step("NVLS", 60),
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, default=Path("gpu_check.json"))
    parser.add_argument("--no-build", action="store_true", help="use the pycoll that is installed")
    parser.add_argument("--only", default="", help="names of steps, separated by commas")
    options = parser.parse_args(arguments)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        return Check(Path(folder), options.json, begin).run(options.no_build, options.only)


class Check:
    """One run. ``folder`` is for what it makes and needs no longer."""

    def __init__(self, folder: Path, path: Path, begin: float) -> None:
        self.folder, self.path, self.begin = folder, path, begin
        self.results: Results = {"gpu": None, "facts": {}, "steps": {}, "failures": [], "seconds": 0.0}
        self.environment = {
            **os.environ,
            "PYCOLL_CACHE": str(folder / "cache"),
            "PYCOLL_PROFILE": "none",
            "PYCOLL_CUDA_PROFILE": "none",
            "PYCOLL_ALGO": "",
            # Streams of ranks that are threads must not queue behind each other's waiting kernels.
            "CUDA_DEVICE_MAX_CONNECTIONS": "32",
            "PYTHONUNBUFFERED": "1",
        }
        self.put_on_path(STEPS_FILE.parent)

    def run(self, no_build: bool, only: str) -> int:
        if not no_build and not driver():
            print("Nothing was checked: there is no GPU here (no driver: libcuda.so.1 cannot be loaded)")
            return 3
        (self.folder / "cache").mkdir()
        self.save()
        if not no_build and not self.record("build", BUILD_LIMIT, self.build):
            return self.end()
        facts = self.record("facts", 60, self.child("facts")) or {}
        self.results["facts"], self.results["gpu"] = facts, facts.get("gpu")
        if not facts.get("gpu"):
            print(f"Nothing was checked: {facts.get('reason') or 'what there is could not be found out'}")
            self.save()
            return 3 if facts.get("reason") else 1
        print(", ".join(f"{k}: {v}" for k, v in facts.items() if isinstance(v, (str, int)) and v), flush=True)
        wanted = [step for step in STEPS if not only or step.name in only.split(",")]
        adapter = None
        if any(step.name == "torch.distributed" for step in wanted):
            adapter = self.start_compiling()
        try:
            for step in wanted:
                left = LIMIT - (time.monotonic() - self.begin)
                if left < LEAST:
                    self.results["failures"].append(f"{step.name}: left out, the time is up")
                    continue
                self.record(step.name, min(step.limit, left), self.child(step.name))
        finally:
            if adapter is not None:
                end_group(adapter)
        return self.end()

    def end(self) -> int:
        self.save()
        print_table(self.results)
        return 1 if self.results["failures"] else 0

    def save(self) -> None:
        """At once whole, for whoever reads what a run that was ended had found."""
        self.results["seconds"] = round(time.monotonic() - self.begin, 1)
        text = json.dumps(self.results, indent=1, default=str) + "\n"
        beside = self.path.with_name(self.path.name + ".part")
        beside.write_text(text)
        beside.replace(self.path)

    def record(self, name: str, limit: float, step: Callable[[float], tuple[Results, str]]) -> Results:
        """Runs a step: what it found, empty where it found nothing."""
        begin = time.monotonic()
        found, problem = step(limit)
        seconds = round(time.monotonic() - begin, 1)
        self.results["steps"][name] = {"seconds": seconds, "found": found}
        wrong = list(found.get("wrong", []))
        self.results["failures"] += [f"{name}: {text}" for text in wrong[:5]]
        if problem:
            self.results["failures"].append(f"{name}: {problem}")
        self.save()
        print(f"[{seconds:6.1f} s] {name}: {problem or f'{len(wrong)} wrong'}", flush=True)
        return found

    def child(self, name: str) -> Callable[[float], tuple[Results, str]]:
        """A step of gpu_steps.py, in a process of its own."""

        def run(limit: float) -> tuple[Results, str]:
            number = len(self.results["steps"])
            path, log = self.folder / f"found-{number}.json", self.folder / f"log-{number}"
            command = [sys.executable, str(STEPS_FILE), name, str(path), str(max(limit - GRACE, 1))]
            return supervised(command, limit, path, log, self.environment)

        return run

    def build(self, limit: float) -> tuple[Results, str]:
        """pycoll with its CUDA part for this GPU alone, into a folder of its own."""
        target = self.folder / "site"
        command = [sys.executable, "-m", "pip", "install", "-v", "--no-build-isolation", "--no-deps"]
        command += ["--no-index", "--no-compile", "--target", str(target), str(ROOT)]
        command += ["-C", "cmake.define.PYCOLL_CUDA=ON"]
        command += ["-C", f"cmake.define.PYCOLL_CUDA_ARCHITECTURES={architecture()}"]
        environment = {**self.environment, "CMAKE_BUILD_PARALLEL_LEVEL": str(os.cpu_count() or 4)}
        none = self.folder / "no-file"
        _, problem = supervised(command, limit, none, self.folder / "log-build", environment)
        library = target / "pycoll" / "_cuda.so"
        if problem or not library.exists():
            return {}, problem or f"{library.name} was not made"
        self.put_on_path(target)
        return {"library_bytes": library.stat().st_size}, ""

    def put_on_path(self, folder: Path) -> None:
        """First of where the steps' Python looks."""
        before = self.environment.get("PYTHONPATH")
        self.environment["PYTHONPATH"] = os.pathsep.join([str(folder), *([before] if before else [])])

    def start_compiling(self) -> subprocess.Popen[bytes]:
        """The torch adapter, meanwhile: it takes no GPU, and the step that needs it waits for it."""
        with (self.folder / "log-adapter").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, str(STEPS_FILE), "torch adapter", str(self.folder / "adapter.json"), "200"],
                stdout=log,
                stderr=log,
                env=self.environment,
                start_new_session=True,
            )


def driver() -> bool:
    """Whether there is one: minutes of building are for nothing where there is none."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def architecture() -> str:
    """The GPU's, as CMake names it: CMake's own "native" asks a GPU too, and fails where it finds none."""
    try:
        said = subprocess.run(
            ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        said = ""
    found = sorted({major + minor for major, minor in re.findall(r"^(\d+)\.(\d+)\s*$", said, re.MULTILINE)})
    return ";".join(f"{number}-real" for number in found) or "native"


def supervised(
    command: Sequence[str], limit: float, path: Path, log: Path, environment: Mapping[str, str]
) -> tuple[Results, str]:
    """Runs a command for so many seconds at most, and ends it with all that it started: what it wrote into
    ``path``, and what went wrong, with the end of what it said."""
    problem = ""
    with log.open("wb") as output:
        process = subprocess.Popen(
            list(command), stdout=output, stderr=output, env=dict(environment), start_new_session=True
        )
        try:
            code = process.wait(limit)
            if code < 0:
                problem = f"was killed by {signal.Signals(-code).name}"
            elif code > 0:
                problem = f"ended with exit code {code}"
        except subprocess.TimeoutExpired:
            problem = f"was ended after {limit:.0f} s"
        finally:
            end_group(process)
    found: Results = {}
    with contextlib.suppress(OSError, ValueError):
        found = dict(json.loads(path.read_text()))
    if problem:
        said = log.read_bytes()[-6000:].decode(errors="replace")
        print(f"--- {' '.join(command[1:4])} {problem}; it said last:\n{said}\n---", flush=True)
        found["log"] = said
        last = next((line.strip() for line in reversed(said.splitlines()) if line.strip()), "nothing")
        problem = f"{problem}; it said last: {last[:300]}"
    return found, problem


def end_group(process: subprocess.Popen[bytes]) -> None:
    """The ranks that it started are in its process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):  # a driver may hold on to it for a while
        process.wait(15)


# The table


def print_table(results: Results) -> None:
    def found(name: str) -> Results:
        return dict(results["steps"].get(name, {}).get("found") or {})

    def rows(name: str) -> list[dict[str, Any]]:
        return list(found(name).get("rows", []))

    print(f"\n{results['gpu']}, {results['seconds']} s")
    if copied := found("bandwidth").get("copy_bytes_per_s"):
        print(f"  copies on the GPU: {copied / 1e9:.0f} GB/s, read and written")
    for step in STEPS:
        for note in found(step.name).get("notes", []):
            print(f"  {note}")
    for row in rows("latency"):
        what = f"{row['ranks']} ranks {row['bytes']:>9} B  {row['algorithm']:<16}"
        print(f"  {what} {row['median_s'] * 1e6:9.1f} us")
    for row in rows("bandwidth"):
        print(
            f"  {row['ranks']} ranks {row['bytes'] >> 20:>5} MiB  {row['algorithm']:<20} "
            f"{row['median_s'] * 1e3:8.3f} ms  {row.get('of_bound', 0):.2f} of the copy bound"
        )
    for row in rows("against NCCL"):
        what = f"{row['ranks']} ranks {row['bytes']:>9} B  {row['library']:<17} {row['algorithm']:<8}"
        print(f"  {what} {row['median_s'] * 1e6:10.1f} us")
    for row in rows("NVLS"):
        what = f"{row['ranks']} GPUs {row['bytes']:>9} B  {row['algorithm']:<15}"
        print(f"  {what} {row['median_s'] * 1e6:9.1f} us")
    for row in rows("pools"):
        times = ", ".join(f"{k} {v * 1e3:.3f} ms" for k, v in row.items() if k != "bytes")
        print(f"  2 ranks {row['bytes'] >> 20} MiB, buffers in: {times}")
    for row in rows("late rank"):
        times = ", ".join(f"{k} {v * 1e3:.3f} ms" for k, v in row.items() if k not in ("ranks", "bytes"))
        print(f"  {row['ranks']} ranks {row['bytes'] >> 20} MiB, one late: {times}")
    print("FAILED:" if results["failures"] else "everything ran and was right")
    for failure in results["failures"]:
        print(f"  {failure}")


if __name__ == "__main__":
    sys.exit(main())
