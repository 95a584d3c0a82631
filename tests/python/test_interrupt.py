"""Ctrl-C in a collective that waits for a late rank."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

import numpy as np

import pycoll

from .job import Job


def test_interrupt_ends_a_blocked_collective(start_job: Callable[..., Job]) -> None:
    def run(comm: pycoll.Communicator) -> tuple[float, str]:
        if comm.rank == 1:
            time.sleep(3)
            return 0.0, ""
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        start = time.monotonic()
        try:
            comm.allreduce(np.ones(3))
        except KeyboardInterrupt:
            waited = time.monotonic() - start
        try:
            comm.allreduce(np.ones(3))
        except pycoll.Aborted as error:
            return waited, str(error)
        return waited, ""

    waited, later = start_job(2, run).outcomes()[0].value
    assert waited < 2
    assert "interrupted by a signal" in later
