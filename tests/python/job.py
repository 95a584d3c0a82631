"""A job whose ranks are ordinary processes that meet at an address, as a user's launcher would start them."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle

_PROGRAM = """
import pickle, sys, traceback
sys.path[:] = sys.argv[3].split(":")
import pycoll
source, target = sys.argv[1], sys.argv[2]
with open(source, "rb") as file:
    fn, args, rank, ranks, address, timeout = pickle.load(file)
comm = None
try:
    if address is None:
        said = ("returned", fn(*args))
    else:
        comm = pycoll.init(timeout=timeout, rank=rank, ranks=ranks, address=address)
        said = ("returned", fn(comm, *args))
except BaseException as error:
    said = ("raised", type(error).__name__, str(error))
with open(target + ".part", "wb") as file:
    pickle.dump(said, file)
import os
os.rename(target + ".part", target)
"""


@dataclass
class Outcome:
    """How a rank ended."""

    code: int
    value: Any = None
    error: str = ""  # the name of the class of what it raised
    text: str = ""
    output: str = ""  # what it wrote to stderr


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def _popen(_: int, command: list[str], **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(command, **options)


class Job:
    """Started at once. `only` starts some of the ranks; `init=False` calls fn(rank, *args), with no group.

    `popen(rank, command, **options)` starts a rank's process: elsewhere than here, where it is given.
    """

    def __init__(
        self,
        ranks: int,
        fn: Callable[..., Any],
        args: tuple[Any, ...] = (),
        *,
        address: str = "",
        timeout: float = 30.0,
        only: list[int] | None = None,
        init: bool = True,
        env: dict[str, str] | Callable[[int], dict[str, str]] | None = None,
        popen: Callable[..., subprocess.Popen[str]] = _popen,
    ) -> None:
        self.address = address or free_address()
        self._folder = tempfile.TemporaryDirectory()
        self.processes: dict[int, subprocess.Popen[str]] = {}
        for rank in range(ranks) if only is None else only:
            where = self.address if init else None
            arguments = args if init else (rank, *args)
            source = Path(self._folder.name, f"{rank}.in")
            source.write_bytes(cloudpickle.dumps((fn, arguments, rank, ranks, where, timeout)))
            self.processes[rank] = popen(
                rank,
                [sys.executable, "-c", _PROGRAM, str(source), self._target(rank), ":".join(sys.path)],
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, **((env(rank) if callable(env) else env) or {})},
            )

    def _target(self, rank: int) -> str:
        return str(Path(self._folder.name, f"{rank}.out"))

    def outcomes(self, patience: float = 60.0) -> dict[int, Outcome]:
        """Waits for all ranks; those that do not end in time are killed, and count as ended by SIGKILL."""
        deadline = time.monotonic() + patience
        return {rank: self.outcome(rank, deadline - time.monotonic()) for rank in self.processes}

    def outcome(self, rank: int, patience: float = 60.0) -> Outcome:
        process = self.processes[rank]
        try:
            _, output = process.communicate(timeout=max(0.1, patience))
        except subprocess.TimeoutExpired:
            process.kill()
            _, output = process.communicate()
        outcome = Outcome(process.returncode, output=output)
        if os.path.exists(self._target(rank)):
            said = pickle.loads(Path(self._target(rank)).read_bytes())
            if said[0] == "returned":
                outcome.value = said[1]
            else:
                _, outcome.error, outcome.text = said
        return outcome

    def signal(self, rank: int, number: int) -> None:
        self.processes[rank].send_signal(number)

    def end(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()
            if process.stderr is not None:
                process.stderr.close()
        self._folder.cleanup()
