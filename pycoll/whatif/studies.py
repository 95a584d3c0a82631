"""Many points of a study: computed over the cores or a cluster, kept in a file, taken up again where they
stopped."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from pycoll.errors import InvalidArgument, Unsupported
from pycoll.whatif.scenario import Scenario

__all__ = ["Store", "Study", "fingerprint"]

Point = dict[str, Any]

_OTHERS = (".parquet", ".csv", ".json", ".xlsx")  # what a name promises that SQLite is not
_SHORT = 10.0  # seconds that are not worth starting other processes for
_OF_RAY = 1000  # points that a Ray cluster has at once


def fingerprint(scenario: Scenario, *more: object) -> str:
    """A key of a scenario and of what is done to it: equal for equal ones, on every machine and day."""
    from pycoll import __version__

    topology = scenario.topology
    parts = (
        __version__,
        *(topology.nodes, topology.links, topology.ranks),
        *(scenario.late, scenario.lateness, scenario.routing, scenario.seed, scenario.flows),
        *more,
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()


class Store:
    """Results by key in an SQLite file, each written when it is there. Raises InvalidArgument for another
    file, and for a name that promises one."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        if self.path.suffix.lower() in _OTHERS:
            raise InvalidArgument(
                f"--store {path}: results are kept in SQLite, each as soon as it is there: name the file "
                f"{self.path.stem}.sqlite; the finished table comes by --csv, --json or, in Python, "
                "to_frame().to_parquet()"
            )
        with self._said_clearly(), closing(self._open()) as data, data:
            data.execute("CREATE TABLE IF NOT EXISTS whatif (key TEXT PRIMARY KEY, name TEXT, result TEXT)")

    @contextmanager
    def _said_clearly(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise InvalidArgument(
                f"--store {self.path}: {error}; name an SQLite file or a new one"
            ) from error

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=30)

    def get(self, key: str) -> Point | None:
        """A result, or None."""
        with self._said_clearly(), closing(self._open()) as data:
            row = data.execute("SELECT result FROM whatif WHERE key = ?", (key,)).fetchone()
        try:
            return None if row is None else json.loads(row[0])
        except (TypeError, ValueError):
            return None  # damaged: it is computed again

    def put(self, key: str, name: str, result: Point) -> None:
        """Keeps a result; ``name`` is for people who look into the file."""
        with self._said_clearly(), closing(self._open()) as data, data:
            data.execute("INSERT OR REPLACE INTO whatif VALUES (?, ?, ?)", (key, name, json.dumps(result)))


@dataclass(frozen=True)
class Study:
    """How the points of a study are computed.

    ``jobs`` processes (0: one a core, where that is worth starting them), or those of the cluster that
    ``on`` names (``ray://HOST:PORT``, ``dask://HOST:PORT``); results are kept in ``store`` and not computed
    again. ``progress`` is called with (done, all).
    """

    jobs: int = 0
    store: Store | None = None
    on: str = ""
    progress: Callable[[int, int], None] = lambda done, total: None

    def map(
        self,
        function: Callable[..., Point],
        tasks: Sequence[tuple[Any, ...]],
        keys: Sequence[str],
        names: Sequence[str],
    ) -> list[Point]:
        """``function(*task)`` of every task, in order."""
        found: dict[int, Point] = {}
        if self.store is not None:
            for index, key in enumerate(keys):
                known = self.store.get(key)
                if known is not None:
                    found[index] = known
        left = [index for index in range(len(tasks)) if index not in found]
        self.progress(len(found), len(tasks))
        for index, result in self._computed(function, tasks, left):
            found[index] = result
            if self.store is not None:
                self.store.put(keys[index], names[index], result)
            self.progress(len(found), len(tasks))
        return [found[index] for index in range(len(tasks))]

    def _computed(
        self, function: Callable[..., Point], tasks: Sequence[tuple[Any, ...]], left: list[int]
    ) -> Iterator[tuple[int, Point]]:
        waiting = list(left)
        if not self.on and self.jobs in (0, 1):
            while waiting:
                index = waiting.pop(0)
                began = time.process_time()
                yield index, function(*tasks[index])
                seconds = time.process_time() - began
                if self.jobs == 0 and len(waiting) > 2 and seconds * len(waiting) > _SHORT:
                    break
        if not waiting:
            return
        from joblib import Parallel, delayed

        from pycoll.bench.environment import usable_cpus

        with _cluster(self.on):
            workers = None if self.on else min(self.jobs or usable_cpus(), len(waiting))
            # joblib's backend for Ray has no generators: results come, and are kept, some at a time.
            ray = self.on.startswith("ray")
            at_once = _OF_RAY if ray else len(waiting)
            parallel = Parallel(n_jobs=workers, return_as="list" if ray else "generator")
            for first in range(0, len(waiting), at_once):
                part = waiting[first : first + at_once]
                results = parallel(delayed(function)(*tasks[index]) for index in part)
                yield from zip(part, results, strict=True)


def _cluster(on: str) -> AbstractContextManager[Any]:
    """joblib's backend for a cluster; Unsupported where its package is missing or nobody answers."""
    if not on:
        return nullcontext()
    import joblib

    sort, sign, address = on.partition("://")
    if sort not in ("ray", "dask") or not sign or not address:
        raise InvalidArgument(f"--on {on}: write ray://HOST:PORT or dask://HOST:PORT")
    package = {"ray": "ray", "dask": "distributed"}[sort]
    try:
        if sort == "ray":
            import ray
            from ray.util.joblib import (
                register_ray,
            )

            ray.init(address=on, ignore_reinit_error=True)
            register_ray()
        else:
            from distributed import Client

            Client(f"tcp://{address}", timeout=10)
    except ImportError as error:
        name = {"ray": "'ray[client]'", "dask": "'dask[distributed]'"}[sort]
        raise Unsupported(f"--on {on} needs {package}, which is not installed: pip install {name}") from error
    except (OSError, RuntimeError, ConnectionError) as error:
        raise Unsupported(f"--on {on}: no cluster answers there: {error}") from error
    backend: AbstractContextManager[Any] = joblib.parallel_config(backend=sort, n_jobs=-1)
    return backend
