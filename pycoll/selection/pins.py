"""Pins: the user's own choice of algorithms, as `PYCOLL_ALGO` gives it.

    PYCOLL_ALGO="allreduce:0-64k=direct,allreduce:64k-=ring/16"

Rules apart by commas, each `COLLECTIVE[:SIZES][:DTYPES]=ALGORITHM[/PIECES]`. SIZES is `FROM-TO` (FROM counts,
TO does not), `FROM-` or a single size, in bytes with k, m or g for powers of 1024; without it the rule is for
all sizes. DTYPES is `wide` or `narrow` (16- and 8-bit floats). Where rules overlap the later one counts.

A rule may begin with `cpu:` or `cuda:`, and then is for processors or GPUs alone; without, those for
allreduce are for both. GPUs have ways of their own: `cuda:allreduce:0-32k=one_shot,cuda:allreduce:32k-=nccl`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pycoll._core import InvalidArgument, Unsupported
from pycoll.selection.decisions import DTYPE_CLASSES, Decision, DecisionTable, split_way

if TYPE_CHECKING:
    from pycoll.schedule import Schedule

VARIABLE = "PYCOLL_ALGO"


DEVICES = ("cpu", "cuda")


def parse_pins(
    text: str, ranks: int | None = None, where: str = VARIABLE, device: str = "cpu"
) -> DecisionTable:
    """The table that the rules say for a device. `ranks`: check that each algorithm runs on so many, and
    builds.

    Raises:
        InvalidArgument: naming the rule and the column, with what there is to choose from.
    """
    rows: list[Decision] = []
    schedules: dict[str, Schedule] = {}
    column = 1
    for number, rule in enumerate(text.split(","), 1):
        if rule.strip():
            begins = column + len(rule) - len(rule.lstrip())
            try:
                meant, plain = _device(rule.strip())
                skipped = len(rule.strip()) - len(plain)
                begins += skipped
                row = _rule(plain)
                if meant not in ("", device) or (device == "cuda" and not _of_gpus(meant, row)):
                    column += len(rule) + 1
                    continue
                check = _checked_on_gpus if device == "cuda" else _checked
                way, own = check(row, ranks, plain.index("=") + 1)
            except _At as error:
                at = begins + error.offset
                raise InvalidArgument(
                    f"{where}: rule {number} ({rule.strip()!r}), column {at}: {error}"
                ) from None
            schedules.update(own)
            rows.append(replace(row, way=way, reason=f"{where}: {rule.strip()}"))
        column += len(rule) + 1
    return DecisionTable(rows, schedules)


class _At(Exception):
    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.offset = offset


def _device(rule: str) -> tuple[str, str]:
    """The device that a rule begins with, "" where it is for both, and the rest."""
    first, colon, rest = rule.partition(":")
    if colon and first.strip() in DEVICES:
        return first.strip(), rest.lstrip()
    return "", rule


def _of_gpus(meant: str, row: Decision) -> bool:
    """Of the rules for both, GPUs' tables have those for allreduce."""
    if row.collective == "allreduce":
        return True
    if meant == "cuda":
        raise _At(
            f"tables of GPUs are for allreduce: give {row.collective} its algorithm= in the call",
            0,
        )
    return False


def _rule(rule: str) -> Decision:
    from pycoll.bench.workload import COLLECTIVES

    left, equals, way = rule.partition("=")
    if not equals or not way.strip():
        example = "write COLLECTIVE:SIZES=ALGORITHM, as in allreduce:0-64k=direct"
        raise _At(f"it has no =ALGORITHM: {example}", len(left))
    fields = left.split(":")
    collective = fields[0].strip()
    if collective not in COLLECTIVES:
        raise _At(f"there is no collective {collective!r}; there are: {', '.join(COLLECTIVES)}", 0)
    begin, dtypes, offset = 0, "any", len(fields[0]) + 1
    end: int | None = None
    for field in fields[1:]:
        if field.strip() in DTYPE_CLASSES:
            dtypes = field.strip()
        else:
            begin, end = _sizes(field, offset)
        offset += len(field) + 1
    return Decision(collective, begin, end, way.strip(), dtypes, basis="pin")


def _sizes(text: str, offset: int) -> tuple[int, int | None]:
    from pycoll.bench.units import parse_size

    first, dash, last = text.partition("-")
    try:
        begin = parse_size(first)
        if not dash:
            return begin, begin + 1
        end = parse_size(last) if last.strip() else None
    except InvalidArgument as error:
        raise _At(f"{error}, and sizes as FROM-TO", offset) from None
    if end is not None and end <= begin:
        raise _At(f"the sizes {text.strip()} end before they begin", offset)
    return begin, end


def _checked(row: Decision, ranks: int | None, offset: int) -> tuple[str, dict[str, Schedule]]:
    """The way as the engine knows it: a user's own algorithm goes along as a schedule."""
    from pycoll import schedule

    known = schedule.algorithms()
    try:
        algorithm, pieces = split_way(row.way)
    except InvalidArgument as error:
        raise _At(str(error), offset) from None
    if algorithm not in known:
        from pycoll.gpu.ways import only_on_gpus

        if only_on_gpus(row.way):
            raise _At(f"{row.way} is for GPUs: write cuda:{row.collective}", offset)
        raise _At(f"there is no algorithm {algorithm!r}; there are: {', '.join(known)}", offset)
    if row.way == "direct":
        return row.way, {}
    if row.collective not in known[algorithm].collectives:
        able = [name for name, info in known.items() if row.collective in info.collectives]
        raise _At(f"{algorithm} does not do {row.collective}; these do: {', '.join(able)}", offset)
    if ranks is None:
        return row.way, {}
    try:
        made = schedule.build(algorithm, collective=row.collective, ranks=ranks, pieces=pieces or None)
    except (InvalidArgument, Unsupported) as error:
        raise _At(str(error), offset) from None
    if known[algorithm].builtin:
        return row.way, {}
    return f"@{algorithm}-{made.hash:x}", {f"{algorithm}-{made.hash:x}": made}


def _checked_on_gpus(row: Decision, ranks: int | None, offset: int) -> tuple[str, dict[str, Schedule]]:
    """The way as groups of GPUs know it."""
    from pycoll import schedule
    from pycoll.gpu import ways

    try:
        kind = ways.kind_of(row.way)
        if ranks is None:
            return row.way, {}
        way = ways.spelled(row.way, ranks)
        made = kind.schedule(way, ranks)
    except (InvalidArgument, Unsupported) as error:
        raise _At(str(error), offset) from None
    info = schedule.algorithms().get(split_way(way)[0])
    if made is None or info is None or info.builtin:
        return way, {}
    name = f"{split_way(way)[0]}-{made.hash:x}"
    return f"@{name}", {name: made}
