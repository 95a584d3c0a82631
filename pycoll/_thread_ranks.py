"""Ranks that are threads of one process."""

from __future__ import annotations

import contextlib
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from pycoll._failures import Failures, from_exit
from pycoll._rendezvous import ThreadMeeting, rank_list
from pycoll.bootstrap import make, set_default
from pycoll.communicator import Communicator
from pycoll.errors import Error, Timeout


class Threads:
    """Ranks that are threads of this process."""

    def __init__(
        self,
        fn: Callable[..., Any],
        ranks: int,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        timeout: float,
        group: str,
        deadline: float | None,
    ) -> None:
        self._fn = fn
        self._ranks = ranks
        self._args = args
        self._kwargs = kwargs
        self._timeout = timeout
        self._group = group
        self._limit = deadline
        self._meeting = ThreadMeeting(ranks, group, timeout)
        self._results: list[Any] = [None] * ranks
        self._failures = Failures(ranks)
        self._communicators: list[Communicator] = []
        self._lock = threading.Lock()

    def run(self) -> list[Any]:
        threads = [
            threading.Thread(target=self._rank, args=(rank,), name=f"rank {rank}", daemon=True)
            for rank in range(self._ranks)
        ]
        end = None if self._limit is None else time.monotonic() + self._limit
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive():  # in steps, between which an interrupt gets through
                    thread.join(0.1)
                    if end is not None and time.monotonic() > end:
                        late = [rank for rank, thread in enumerate(threads) if thread.is_alive()]
                        raise Timeout(
                            f"spawn: {rank_list(late)} of {self._ranks} had not ended after {self._limit:g} s"
                        )
        except BaseException as error:
            self._abort(f"{type(error).__name__}: {error}")
            raise
        if self._failures:
            raise self._failures.cause()
        return self._results

    def _rank(self, rank: int) -> None:
        try:
            with make(
                self._meeting.of_rank(rank), rank, self._ranks, self._group, self._timeout
            ) as communicator:
                with self._lock:
                    self._communicators.append(communicator)
                set_default(communicator, of_thread=True)
                self._results[rank] = self._fn(communicator, *self._args, **self._kwargs)
        except BaseException as raised:
            error = from_exit(raised)
            if error is None:
                return
            with self._lock:
                self._failures.add(rank, error, traceback.format_exc())
            self._abort(f"rank {rank} raised {type(error).__name__}: {error}")

    def _abort(self, reason: str) -> None:
        with self._lock:
            communicators = list(self._communicators)
        for communicator in communicators:
            if not communicator.closed:
                with contextlib.suppress(Error):
                    communicator.abort(reason)
