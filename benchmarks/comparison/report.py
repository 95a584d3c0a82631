"""From rows to tables, ratios, and targets met or missed."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from comparison.libraries import Library
from comparison.runs import Row

KIB, MIB = 1 << 10, 1 << 20
STATES = {
    "near": "the two processors share an L3 cache (20 to 60 ns for a cache line)",
    "far": "they share no cache (over 60 ns)",
    "core": "they are the two threads of one core (under 20 ns)",
}
MIN_SAMPLES = 3  # a run with fewer in one state says nothing about that state


@dataclass(frozen=True)
class Cell:
    """What one library took for one size in one state: the median over runs of each run's median."""

    median_us: float
    least_us: float  # of the runs' medians
    most_us: float
    runs: int


@dataclass(frozen=True)
class Ratio:
    """How many times as fast as what it is compared with; of the floor, the fraction that is reached."""

    ranks: int
    state: str
    bytes: int
    what: str
    against: str
    value: float
    target: float | None  # None: shown, not judged

    @property
    def met(self) -> bool | None:
        return None if self.target is None else self.value >= self.target


class Report:
    def __init__(self, rows: Sequence[Row], libraries: Sequence[Library], processors: int) -> None:
        self.rows, self.libraries, self.processors = rows, libraries, processors

    @cached_property
    def cells(self) -> dict[tuple[int, str, int, str], Cell]:
        medians = defaultdict(list)
        for row in self.rows:
            if row.state in STATES and row.samples >= MIN_SAMPLES:
                medians[row.ranks, row.state, row.bytes, row.library].append(row.median_us)
        return {
            key: Cell(statistics.median(values), min(values), max(values), len(values))
            for key, values in medians.items()
        }

    @property
    def wrong(self) -> int:
        return sum(row.wrong for row in self.rows)

    @property
    def mixed_rows(self) -> int:
        return sum(row.state == "mixed" for row in self.rows)

    def tables(self) -> list[tuple[int, str]]:
        """The (ranks, state) pairs for which anything was measured."""
        seen = {(ranks, state) for ranks, state, _, _ in self.cells}
        return [
            pair for ranks in sorted({r for r, _ in seen}) for s in STATES if (pair := (ranks, s)) in seen
        ]

    def sizes(self) -> list[int]:
        return sorted({row.bytes for row in self.rows})

    def text_of(self, ranks: int, state: str, size: int, library: str) -> str:
        cell = self.cells.get((ranks, state, size, library))
        if cell:
            return format_us(cell.median_us)
        gave_up = [r for r in self.rows if r.library == library and r.ranks == ranks and r.gave_up_us]
        if gave_up and size >= min(r.bytes for r in gave_up):
            return f"> {format_us(min(r.gave_up_us for r in gave_up))}"
        return "-"

    def best_peer(self, ranks: int, state: str, size: int) -> tuple[str, float] | None:
        peers = [
            (library.title, cell.median_us)
            for library in self.libraries
            if library.kind == "peer" and (cell := self.cells.get((ranks, state, size, library.name)))
        ]
        return min(peers, key=lambda peer: peer[1]) if peers else None

    @cached_property
    def ratios(self) -> list[Ratio]:
        return [ratio for ranks, state in self.tables() for ratio in self._ratios(ranks, state)]

    def _ratios(self, ranks: int, state: str) -> Iterable[Ratio]:
        for size in self.sizes():
            best = self.best_peer(ranks, state, size)
            floor = self.cells.get((ranks, state, size, "floor"))
            for name in ("pycoll", "pycoll-zero-copy"):
                ours = self.cells.get((ranks, state, size, name))
                if not ours:
                    continue
                if best:
                    target = self.target_over_peers(name, ranks, state, size)
                    value = best[1] / ours.median_us
                    yield Ratio(ranks, state, size, name, best[0], value, target)
                if floor:
                    target = self.target_of_floor(name, ranks, state, size)
                    yield Ratio(ranks, state, size, name, "floor", floor.median_us / ours.median_us, target)

    def target_over_peers(self, name: str, ranks: int, state: str, size: int) -> float | None:
        if ranks > self.processors:
            return 1.0 if name == "pycoll" else None
        if state == "far":
            return 1.0 if name == "pycoll" else None
        if state != "near" or ranks != 2:
            return None
        if name == "pycoll-zero-copy":
            return 3.0 if size >= 64 * KIB else None
        if size < 64 * KIB:
            return 1.0
        if size < MIB:
            return 1.5
        return 1.3 if size < 64 * MIB else 2.0

    def target_of_floor(self, name: str, ranks: int, state: str, size: int) -> float | None:
        judged = name == "pycoll-zero-copy" and ranks == 2 and ranks <= self.processors and state == "near"
        return 0.6 if judged and size >= 16 * MIB else None

    def lines_of(self, ranks: int, state: str) -> list[list[str]]:
        """A table with a heading: one row a library, then one a ratio; one column a size."""
        sizes = self.sizes()
        lines = [["microseconds", *map(format_bytes, sizes)]]
        for library in self.libraries:
            texts = [self.text_of(ranks, state, size, library.name) for size in sizes]
            if any(text != "-" for text in texts):
                lines.append([library.title, *texts])
        for what, against, label in (
            ("pycoll", "peer", "best peer / pycoll"),
            ("pycoll-zero-copy", "peer", "best peer / zero-copy"),
            ("pycoll-zero-copy", "floor", "floor / zero-copy"),
        ):
            here = {
                r.bytes: r
                for r in self.ratios
                if (r.ranks, r.state, r.what) == (ranks, state, what)
                and (r.against == "floor") == (against == "floor")
            }
            if here:
                lines.append([label, *(format_ratio(here[size]) if size in here else "-" for size in sizes)])
        runs = [self._runs(ranks, state, size) for size in sizes]
        lines.append(["runs a library", *runs])
        return lines

    def _runs(self, ranks: int, state: str, size: int) -> str:
        counts = [
            cell.runs
            for library in self.libraries
            if (cell := self.cells.get((ranks, state, size, library.name)))
        ]
        if not counts:
            return "-"
        return str(counts[0]) if min(counts) == max(counts) else f"{min(counts)}-{max(counts)}"

    def missed(self) -> list[str]:
        return [
            f"{r.ranks} ranks, {r.state}, {format_bytes(r.bytes)}: {r.what} is {r.value:.2f} x {r.against}, "
            f"target {r.target:g}"
            for r in self.ratios
            if r.met is False
        ]

    def given_up(self) -> list[str]:
        """Which libraries were not tried at larger sizes, and in how many runs."""
        longest: dict[tuple[str, int, int], list[float]] = defaultdict(list)
        for row in self.rows:
            if row.gave_up_us:
                longest[row.library, row.ranks, row.bytes].append(row.gave_up_us)
        return [
            f"{self._title(library)}, {ranks} ranks: given up from {format_bytes(size)} on in {len(times)} "
            f"runs, where a call took {min(times) / 1e6:.1f} s or more"
            for (library, ranks, size), times in sorted(longest.items())
        ]

    def markdown(
        self, stamp: dict[str, str], versions: dict[str, str], absent: dict[str, str], command: str
    ) -> str:
        parts = [
            "# AllReduce against other libraries",
            "Written by `benchmarks/peers.py`. What is measured, and how: [README.md](README.md).",
            "\n".join(f"- {name}: {value}" for name, value in stamp.items()),
            "\n".join(f"- {self._title(name)}: {version}" for name, version in versions.items()),
        ]
        parts += [f"**Left out**: {self._title(name)}: {reason}" for name, reason in absent.items()]
        parts.append(
            "Microseconds of one AllReduce (float32, sum, in place) at its slowest rank; the median over "
            "runs of each run's median. A ratio over 1 says how many times as fast as the best peer pycoll "
            "is; ✓ and ✗: its target is met or missed. Compare within one table only."
        )
        for ranks, state in self.tables():
            crowd = f" on {self.processors} processors" if ranks > self.processors else ""
            parts.append(f"## {ranks} ranks{crowd}, {state}: {STATES[state]}")
            parts.append(markdown_table(self.lines_of(ranks, state)))
        if given_up := self.given_up():
            parts.append("\n".join(f"- {line}" for line in given_up))
        missed = self.missed()
        judged = sum(ratio.target is not None for ratio in self.ratios)
        parts.append(f"## Targets\n{judged - len(missed)} of {judged} met; wrong elements: {self.wrong}.")
        if missed:
            parts.append("\n".join(f"- {line}" for line in missed))
        parts.append(f"## Again\n```\n{command}\n```")
        return "\n\n".join(parts) + "\n"

    def _title(self, name: str) -> str:
        return next((library.title for library in self.libraries if library.name == name), name)


def markdown_table(lines: Sequence[Sequence[str]]) -> str:
    rule = ["---", *["--:"] * (len(lines[0]) - 1)]
    return "\n".join("| " + " | ".join(line) + " |" for line in (lines[0], rule, *lines[1:]))


def format_us(microseconds: float) -> str:
    if microseconds < 9.995:
        return f"{microseconds:.2f}"
    return f"{microseconds:.1f}" if microseconds < 99.95 else f"{microseconds:.0f}"


def format_ratio(ratio: Ratio) -> str:
    mark = {None: "", True: " ✓", False: " ✗"}[ratio.met]
    return f"{ratio.value:.2f}{mark}"


def format_bytes(size: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"
