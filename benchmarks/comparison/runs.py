"""One run of one library: start its ranks, wait with a deadline, read the rows."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import IO

from comparison.libraries import Library, Prepared

PAGE_BYTES = 16 << 20  # more than sizeof(bench::SharedPage); a memfd costs only what is touched


@dataclass(frozen=True)
class Settings:
    sizes: tuple[int, ...]  # bytes
    seconds: float  # of measurement for one size
    min_samples: int
    patience: float  # seconds: a size whose calls take longer ends the run
    deadline: float  # seconds, for a whole run
    processors: int


@dataclass(frozen=True)
class Row:
    """One size of one run, in one state of the machine. Times are of one call, at its slowest rank."""

    library: str
    ranks: int
    round: int
    bytes: int
    state: str  # core, near, far; mixed: the state changed meanwhile; "": no state, the library was given up
    samples: int = 0
    calls_per_sample: int = 1
    min_us: float = 0.0
    median_us: float = 0.0
    p99_us: float = 0.0
    wrong: int = 0
    probe_min_ns: float = 0.0
    probe_max_ns: float = 0.0
    gave_up_us: float = 0.0  # a call took this long

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


class RunFailed(Exception):
    """A run did not end well; the text says how."""


@contextmanager
def shared_page() -> Iterator[str]:
    """Anonymous memory, opened by path by processes of this user: nothing is left, whatever fails."""
    descriptor = os.memfd_create("pycoll-benchmark")
    try:
        os.ftruncate(descriptor, PAGE_BYTES)
        yield f"/proc/{os.getpid()}/fd/{descriptor}"
    finally:
        os.close(descriptor)


def run_once(library: Library, prepared: Prepared, ranks: int, round_: int, settings: Settings) -> list[Row]:
    with (
        shared_page() as page,
        tempfile.TemporaryFile("w+") as output,
        tempfile.TemporaryFile("w+") as errors,
    ):
        arguments = {
            "--page": page,
            "--ranks": ranks,
            "--processors": settings.processors,
            "--sizes": ",".join(map(str, settings.sizes)),
            "--seconds": settings.seconds,
            "--min-samples": settings.min_samples,
            "--patience": settings.patience,
        }
        command = [str(prepared.program)]
        for name, value in arguments.items():
            command += [name, str(value)]
        command += prepared.arguments
        job = start(prepared, command, ranks, settings.processors, output, errors)
        try:
            wait(job, settings.deadline)
        except RunFailed as failure:
            raise RunFailed(f"{failure}\n{tail(errors)}".strip()) from None
        output.seek(0)
        rows = [json.loads(line) for line in output if line.startswith("{")]
    return [Row(library.name, ranks, round_, state=row.pop("state", ""), **row) for row in rows]


def start(
    prepared: Prepared, command: list[str], ranks: int, processors: int, output: IO[str], errors: IO[str]
) -> subprocess.Popen[str]:
    environment = {**os.environ, **prepared.environment}
    if prepared.launcher:
        extra = prepared.oversubscribed if ranks > processors else ()
        launched = [*prepared.launcher, *extra, "-n", str(ranks), *command]
    else:
        launched = ["/bin/sh", "-c", LAUNCH, "sh", str(ranks), *command]
    return subprocess.Popen(
        launched,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=errors,
        text=True,
        start_new_session=True,
    )


# All ranks in one session, as mpiexec has them: the kernel shares processors out between sessions, and a rank
# that yields gives way within its own only. The first rank that fails ends them all.
LAUNCH = """
ranks=$1; shift; rank=0
while [ $rank -lt $ranks ]; do
  { "$@" --rank $rank || kill 0; } &
  rank=$((rank + 1))
done
wait
"""


def wait(job: subprocess.Popen[str], deadline: float) -> None:
    """Until the job has ended well."""
    try:
        job.wait(deadline)
    except subprocess.TimeoutExpired:
        raise RunFailed(f"not finished after {deadline:.0f} s") from None
    finally:
        stop(job)
    if job.returncode:
        raise RunFailed(f"exit code {job.returncode}")


def stop(job: subprocess.Popen[str]) -> None:
    """Politely first, so that a launcher takes its ranks with it."""
    for signal_ in (signal.SIGTERM, signal.SIGKILL):
        if job.poll() is None:
            os.killpg(job.pid, signal_)
            with contextlib.suppress(subprocess.TimeoutExpired):
                job.wait(5.0)


def tail(file: IO[str]) -> str:
    file.seek(0)
    return "\n".join(file.read().strip().splitlines()[-10:])
