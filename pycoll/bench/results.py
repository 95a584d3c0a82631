"""Rows of results, and the files they are kept in."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pycoll.bench.environment import Stamp
from pycoll.probe import State


def bus_factor(collective: str, ranks: int) -> float:
    """busbw / algbw, as nccl-tests defines it: what every link carries does not depend on the number of
    ranks."""
    if collective == "allreduce":
        return 2 * (ranks - 1) / ranks
    if collective in ("reduce_scatter", "all_gather", "gather", "scatter", "all_to_all"):
        return (ranks - 1) / ranks
    return 1.0


@dataclass(frozen=True)
class Row:
    """One measurement. Times are seconds, of the slowest rank of each iteration; bandwidths GB/s (1e9
    bytes)."""

    collective: str
    bytes: int
    count: int
    dtype: str
    op: str
    root: int
    library: str
    interface: str
    algorithm: str
    algorithm_chosen: bool  # by the library, not by the user
    pieces: int
    in_place: bool
    zero_copy: bool
    iterations: int
    batch: int
    min_s: float
    median_s: float
    p99_s: float
    algbw_gb_s: float
    busbw_gb_s: float
    wrong: int | None  # None: not checked
    state: State
    probe_before_ns: float
    probe_after_ns: float
    late: str = ""  # who came late, and how; min, median, p99 are then times after the last arrival
    late_s: float | None = None  # the latest rank's lateness, or the distribution's scale
    total_median_s: float | None = None  # the same calls' time from the first possible arrival
    pycoll_speedup: float | None = None  # median of this row / median of pycoll's through the same interface

    @property
    def label(self) -> str:
        """The row's line in tables and plots."""
        if self.library != "pycoll":
            return self.library
        name = "pycoll (torch)" if self.interface == "torch" else "pycoll"
        if self.algorithm and not self.algorithm_chosen:
            name += f" {self.algorithm}" + (f"/{self.pieces}" if self.pieces else "")
        return name + (" zero-copy" if self.zero_copy else "")


@dataclass
class Report:
    """All that a run found."""

    environment: Stamp
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    error: str = ""

    @property
    def wrong(self) -> int:
        return sum(row.wrong or 0 for row in self.rows)

    @property
    def succeeded(self) -> bool:
        return not self.error and self.wrong == 0 and bool(self.rows)

    def to_json(self) -> str:
        """{"environment": {...}, "rows": [...], "notes": [...], "error": ""}; what is not known is null."""
        document = {
            "environment": self.environment,
            "rows": [_plain(row) for row in self.rows],
            "notes": self.notes,
            "error": self.error,
        }
        return json.dumps(document, indent=1, allow_nan=False) + "\n"

    def to_csv(self) -> str:
        """A header, then one line a row: the row's fields, then the environment's."""
        text = io.StringIO()
        names = [field.name for field in dataclasses.fields(Row)] + list(self.environment)
        writer = csv.DictWriter(text, names, lineterminator="\n")
        writer.writeheader()
        for row in self.rows:
            writer.writerow({**_plain(row), **self.environment})
        return text.getvalue()


def title_of(environment: Stamp) -> str:
    """A picture's title: ranks, machine, day."""
    ranks, cpu, cpus = (environment[name] for name in ("ranks", "cpu", "cpus"))
    return f"{ranks} ranks, {cpu}, {cpus} cpus, {str(environment['date'])[:10]}"


def rows_from_json(text: str) -> list[Row]:
    """The rows of a file that `to_json` wrote."""
    names = {field.name for field in dataclasses.fields(Row)}
    rows = []
    for entry in json.loads(text)["rows"]:
        known = {name: value for name, value in entry.items() if name in names}
        for probe in ("probe_before_ns", "probe_after_ns"):
            known[probe] = math.nan if known[probe] is None else known[probe]
        rows.append(Row(**known))
    return rows


def times(slowest: npt.NDArray[np.float64]) -> dict[str, float]:
    """min, median and p99 of the iterations' times. The p99 is one that was measured, not an
    interpolation."""
    return {
        "min_s": float(slowest.min()),
        "median_s": float(np.median(slowest)),
        "p99_s": float(np.quantile(slowest, 0.99, method="higher")),
    }


def with_speedups(rows: Sequence[Row]) -> list[Row]:
    """The rows, each peer's with its ratio to pycoll's of the same measurement, interface and state."""
    own = {_comparable(row): row.median_s for row in rows if row.library == "pycoll"}
    return [
        dataclasses.replace(row, pycoll_speedup=row.median_s / own[_comparable(row)])
        if row.library != "pycoll" and own.get(_comparable(row))
        else row
        for row in rows
    ]


def _comparable(row: Row) -> tuple[Any, ...]:
    return (row.collective, row.bytes, row.dtype, row.op, row.interface, row.state, row.late)


def _plain(row: Row) -> dict[str, Any]:
    values = dataclasses.asdict(row)
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}
