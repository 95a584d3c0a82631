"""Decision tables: which algorithm runs for which collective, size and dtype.

    table = pycoll.DecisionTable([pycoll.Decision("allreduce", 2**20, None, "ring/16", basis="rule")])
    comm.install(table)             # a collective call: the table holds for all calls after it
    print(comm.decisions())

A row says what runs for sizes [begin, end): the engine's fast path ("direct"), or an algorithm, with its
number of pieces after a slash ("ring/16"). Sizes are bytes of the larger of a rank's two buffers, as
nccl-tests counts them. What no row covers goes the fast path.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pycoll._core import InvalidArgument

if TYPE_CHECKING:
    from pycoll.schedule import Schedule
    from pycoll.topology import Topology

__all__ = ["BASES", "Decision", "DecisionTable", "split_way", "way_name"]

#: What a row can rest on; where rows overlap, the later in this list wins.
BASES = ("modelled", "measured", "rule", "pin")
#: Reductions of 16- and 8-bit floats ("narrow") convert every element, so their times are others.
DTYPE_CLASSES = ("wide", "narrow")
#: How far the ranks' processors are from each other, as the engine finds while it runs: on a virtual machine
#: that changes, and with it what is quickest. Ranks that share processors are "near".
DISTANCES = ("near", "far")
NARROW = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
#: The way that needs no schedule: the engine's own, through memory that all ranks share.
FAST_PATH = "direct"
_MOST_WAYS = 4


def dtype_class(dtype: str) -> str:
    return "narrow" if dtype in NARROW else "wide"


def way_name(algorithm: str, pieces: int = 0) -> str:
    """`ring`, or with pieces `ring/16`."""
    return f"{algorithm}/{pieces}" if pieces else algorithm


def split_way(way: str) -> tuple[str, int]:
    """(algorithm, pieces) of `ring/16`; pieces is 0 where none are named, for the algorithm's own number."""
    algorithm, slash, pieces = way.partition("/")
    if slash and not (pieces.isdecimal() and int(pieces) > 0):
        raise InvalidArgument(f"{way!r}: the number of pieces after the slash must be a positive number")
    return algorithm, int(pieces) if slash else 0


@dataclass(frozen=True)
class Decision:
    """One row: `collective` of [begin, end) bytes (end None: and more) goes `way`.

    `dtypes` is "any", "wide" or "narrow" (16- and 8-bit floats); `distance` "any", "near" (processors under
    one shared cache) or "far". `alpha` (seconds) and `beta` (seconds a
    byte) predict the time; with them, and with `others`, the engine watches the row, and tries the others
    when the time leaves its prediction.
    """

    collective: str
    begin: int
    end: int | None
    way: str
    dtypes: str = "any"
    distance: str = "any"
    basis: str = "rule"
    reason: str = ""
    alpha: float = 0.0
    beta: float = 0.0
    others: tuple[str, ...] = ()
    typical: float = 0.0  #: of a table in force: time of late calls / prediction; 0 where not watched yet

    def __post_init__(self) -> None:
        if self.basis not in BASES:
            raise InvalidArgument(f"basis {self.basis!r} is none of {', '.join(BASES)}")
        if self.dtypes not in ("any", *DTYPE_CLASSES):
            raise InvalidArgument(f"dtypes {self.dtypes!r} is none of any, {', '.join(DTYPE_CLASSES)}")
        if self.distance not in ("any", *DISTANCES):
            raise InvalidArgument(f"distance {self.distance!r} is none of any, {', '.join(DISTANCES)}")
        if self.begin < 0 or (self.end is not None and self.end <= self.begin):
            raise InvalidArgument(f"{self.collective}: the sizes from {self.begin} to {self.end} are none")

    def covers(self, size: int) -> bool:
        return self.begin <= size and (self.end is None or size < self.end)

    def concerns(self, dtypes: str, distance: str) -> bool:
        return self.dtypes in ("any", dtypes) and self.distance in ("any", distance)

    @property
    def where(self) -> str:
        """For which dtypes and distances; empty for all."""
        return " ".join(each for each in (self.dtypes, self.distance) if each != "any")

    @property
    def sizes(self) -> str:
        from pycoll.bench.units import format_size

        if self.end is None:
            return f"{format_size(self.begin)} and more" if self.begin else "any size"
        return f"{format_size(self.begin)} to {format_size(self.end)}"

    def _line(self) -> str:
        ways = ",".join(dict.fromkeys((self.way, *self.others[: _MOST_WAYS - 1])))
        end = "-" if self.end is None else str(self.end)
        reason = " ".join(self.reason.split())
        fields = ("row", self.collective, self.dtypes, self.distance, str(self.begin), end, ways, self.basis)
        return "\t".join((*fields, f"{self.alpha:.9g}", f"{self.beta:.9g}", reason))


@dataclass(frozen=True)
class DecisionTable:
    """Rows in any order; where several cover a size, pins beat rules, rules what was measured, and that what
    was modelled; among equals the later row wins.

    `schedules` holds what a way of "@name" runs. `factor` is by how much a time must leave its prediction
    for the engine to try other ways; 0: never. `topology`: where the ranks live; the engine builds the rows'
    algorithms for it, and when it tries other ways it looks for them there.
    """

    rows: tuple[Decision, ...] = ()
    schedules: Mapping[str, Schedule] = field(default_factory=dict)
    factor: float = 2.0
    topology: Topology | None = None

    def __init__(
        self,
        rows: Iterable[Decision] = (),
        schedules: Mapping[str, Schedule] | None = None,
        factor: float = 2.0,
        topology: Topology | None = None,
    ) -> None:
        if factor != 0 and factor <= 1:
            raise InvalidArgument(f"factor is {factor}: it must be more than 1, or 0 for never")
        object.__setattr__(self, "rows", tuple(rows))
        object.__setattr__(self, "schedules", dict(schedules or {}))
        object.__setattr__(self, "factor", factor)
        object.__setattr__(self, "topology", topology)

    def find(
        self, collective: str, size: int, dtype: str = "float32", distance: str = "near"
    ) -> Decision | None:
        """The row that counts for a size; None: the fast path."""
        dtypes = dtype_class(dtype)
        covering = [
            (BASES.index(row.basis), number, row)
            for number, row in enumerate(self.rows)
            if row.collective == collective and row.concerns(dtypes, distance) and row.covers(size)
        ]
        return max(covering, key=lambda entry: entry[:2])[2] if covering else None

    def merged_with(self, *others: DecisionTable) -> DecisionTable:
        """This table's rows and the others', as one table without overlaps."""
        tables = (self, *others)
        schedules = {name: made for table in tables for name, made in table.schedules.items()}
        rows = tuple(row for table in tables for row in table.rows)
        topologies = [table.topology for table in tables if table.topology is not None]
        topology = topologies[-1] if topologies else None
        return DecisionTable(DecisionTable(rows)._flat(), schedules, tables[-1].factor, topology)

    def _flat(self) -> Iterator[Decision]:
        for collective in dict.fromkeys(row.collective for row in self.rows):
            mine = [row for row in self.rows if row.collective == collective]
            of_dtypes = {}
            for dtypes in DTYPE_CLASSES:
                each = {distance: _without_overlap(mine, dtypes, distance) for distance in DISTANCES}
                of_dtypes[dtypes] = _joined(each, "distance")
            yield from _joined(of_dtypes, "dtypes")

    def to_text(self) -> str:
        """What `Communicator.install` and the engine read; "" for a table without rows and topology."""
        rows = DecisionTable(self._flat()).rows
        if not rows and self.topology is None:
            return ""
        used = {way[1:] for row in rows for way in (row.way, *row.others) if way.startswith("@")}
        lines = [f"decisions\t1\t{self.factor:g}"]
        if self.topology is not None:
            lines += _topology_lines(self.topology)
        for name in sorted(used):
            if name not in self.schedules:
                raise InvalidArgument(f"a row goes @{name}, and the table has no schedule of that name")
            lines.append(_schedule_line(name, self.schedules[name]))
        return "\n".join([*lines, *(row._line() for row in rows)])

    def to_dict(self) -> dict[str, Any]:
        return {"factor": self.factor, "rows": [dataclasses.asdict(row) for row in self.rows]}

    def __str__(self) -> str:
        if not self.rows:
            return "no decisions: every call goes the fast path (direct)"
        cells = [(row.collective, row.where, row.sizes, row.way, row.basis, row.reason) for row in self.rows]
        widths = [max(len(line[i]) for line in cells) for i in range(6)]
        padded = ([text.ljust(width) for text, width in zip(line, widths, strict=True)] for line in cells)
        return "\n".join("  ".join(line).rstrip() for line in padded)


def _without_overlap(rows: list[Decision], dtypes: str, distance: str) -> list[Decision]:
    """The rows that count for one dtype class and distance, cut where another one takes over."""
    standing = [
        dataclasses.replace(row, dtypes="any", distance="any")
        for row in rows
        if row.concerns(dtypes, distance)
    ]
    table = DecisionTable(standing)
    edges = sorted({edge for row in standing for edge in (row.begin, row.end) if edge is not None})
    found: list[Decision] = []
    for begin, end in zip(edges, [*edges[1:], None][: len(edges)], strict=True):
        row = table.find(rows[0].collective, begin)
        if row is None:
            continue
        before = found[-1] if found else None
        if before and before.end == begin and _same_but_for_sizes(row, before):
            found[-1] = dataclasses.replace(before, end=end)
        else:
            found.append(dataclasses.replace(row, begin=begin, end=end))
    return found


def _same_but_for_sizes(a: Decision, b: Decision) -> bool:
    return dataclasses.replace(a, begin=0, end=None) == dataclasses.replace(b, begin=0, end=None)


def _joined(of_class: dict[str, list[Decision]], name: str) -> list[Decision]:
    """The rows of two classes, as one where they are the same."""
    first, second = of_class.values()
    if first == second:
        return first
    classes: list[Any] = list(of_class)
    return [
        dataclasses.replace(row, **{name: each})
        for each, rows in zip(classes, (first, second), strict=True)
        for row in rows
    ]


def _topology_lines(topology: Topology) -> Iterator[str]:
    yield f"topology\t{' '.join(topology.name.split())}"
    for node in topology.nodes:
        figures = (node.overhead, node.copy_rate, node.reduce_rate)
        numbers = (str(node.ports), *(f"{figure:.17g}" for figure in figures), str(int(node.forwards)))
        yield "\t".join(("node", " ".join(node.name.split()), node.kind, *numbers))
    for link in topology.links:
        yield f"link\t{link.source}\t{link.target}\t{link.bandwidth:.17g}\t{link.latency:.17g}"
    yield f"ranks\t{','.join(map(str, topology.ranks))}"


def _schedule_line(name: str, schedule: Schedule) -> str:
    head = (schedule.collective, schedule.ranks, schedule.pieces, schedule.root)
    rows = (",".join(str(int(value)) for value in transfer) for transfer in schedule.transfers)
    return "\t".join(("schedule", name, *map(str, head), *rows))
