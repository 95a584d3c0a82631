"""`pycoll schedule late-rank`: the figures of the late-rank AllReduce, computed when asked for."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

if TYPE_CHECKING:
    from pycoll.late_rank.tables import (
        PartialLateness,
        Rounds,
        SeveralLate,
        SpeedUp,
        TimeAfterArrival,
    )

_TABLES = ("speed-ups", "partial", "several", "times", "rounds", "critical")


def late_rank(
    tables: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Argument(metavar="[TABLE...]", help=f"Of {', '.join(_TABLES)}; default: the first two."),
    ] = None,
    ranks: Annotated[
        str, typer.Option("--ranks", "-n", help="Numbers of ranks, with commas between them.")
    ] = "",
    size: Annotated[str, typer.Option("--size", "-s", help="Of the buffer.")] = "1GiB",
    alpha: Annotated[str, typer.Option(help="Seconds that a round costs beyond its bytes.")] = "3us",
    bandwidth: Annotated[
        str, typer.Option(help="Of one direction of a rank's port; default: 300 GB/s, speed-ups 450 GiB/s.")
    ] = "",
    draw: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--draw", metavar="FILE", help="Draw time against lateness instead: FILE.png, .svg or .pdf."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print what working while a rank is late is worth, against other algorithms and against the bound.

    Machines are flat: one switch, one port a rank. Every schedule is built, verified and simulated. Times
    count from the arrival of the last rank.

    **speed-ups** over the ring where the early ranks' part was over by then: the simulation of the paper on
    StragglAR. **partial**: lateness that hides only a share of that part. **several** late ranks. **times**
    over sizes. **rounds**, and their bound. **critical**: the lateness from which it pays.

    Examples:

        pycoll schedule late-rank

        pycoll schedule late-rank speed-ups --ranks 6,12,24,48 --alpha 30us --bandwidth 12.5GB/s

        pycoll schedule late-rank several --json

        pycoll schedule late-rank --ranks 8,16 --draw lateness.png
    """
    from pycoll.cli._app import split
    from pycoll.errors import InvalidArgument

    chosen = list(dict.fromkeys(tables or _TABLES[:2]))
    for name in chosen:
        if name not in _TABLES:
            raise InvalidArgument(f"there is no table {name!r}; there are: {', '.join(_TABLES)}")
    counts = []
    for text in split(ranks):
        if not text.isdecimal() or int(text) < 2:
            raise InvalidArgument(f"--ranks {text}: write numbers of at least 2 with commas between them")
        counts.append(int(text))
    if draw is not None:
        from pycoll.late_rank.drawing import draw_partial_lateness

        draw_partial_lateness(list(_rows("drawn", counts, size, alpha, bandwidth)), draw)
        typer.echo(f"wrote {draw}", err=as_json)
        return
    rows = {name: list(_rows(name, counts, size, alpha, bandwidth)) for name in chosen}
    if as_json:
        from pycoll.late_rank.tables import as_dicts

        typer.echo(json.dumps({name: as_dicts(found) for name, found in rows.items()}, indent=1))
        return
    for index, (name, found) in enumerate(rows.items()):
        if index:
            typer.echo()
        heading, text = _TEXTS[name](found)
        typer.secho(heading, bold=True)
        typer.echo(text)


def _rows(name: str, ranks: Sequence[int], size: str, alpha: str, bandwidth: str) -> Iterable[Any]:
    from pycoll.bench.units import parse_size
    from pycoll.late_rank import tables
    from pycoll.topology.units import parse_bandwidth, parse_time

    machine: dict[str, Any] = {"ranks": ranks} if ranks else {}
    if name == "rounds":
        return tables.rounds(**machine)
    if name == "several":
        return tables.several_late(**machine)
    machine["alpha"] = parse_time(alpha)
    if bandwidth:
        machine["bandwidth"] = parse_bandwidth(bandwidth)
    if name == "times":
        return tables.times_after_arrival(**machine)
    if name == "critical":
        return tables.critical_lateness(**machine)
    machine["size"] = parse_size(size)
    if name == "drawn":
        return tables.partial_lateness(**machine, shares=[step / 24 for step in range(31)])
    return tables.speed_ups(**machine) if name == "speed-ups" else tables.partial_lateness(**machine)


def _us(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e6:.1f}"


def _speed_ups(rows: list[SpeedUp]) -> tuple[str, str]:
    from pycoll.late_rank.tables import table

    return "Speed-up over the ring, from the arrival of the late rank on", table(
        ("ranks", "StragglAR", "halving-doubling", "direct", "late_rank", "pieces", "bound"),
        (
            (
                str(row.ranks),
                "-" if row.stragglar is None else f"{row.stragglar:.3f}",
                f"{row.halving_doubling:.3f}",
                f"{row.direct:.3f}",
                f"{row.late_rank:.3f}",
                str(row.pieces),
                f"{row.bound:.3f}",
            )
            for row in rows
        ),
    )


def _partial(rows: list[PartialLateness]) -> tuple[str, str]:
    from pycoll.late_rank.tables import table

    heading = "Microseconds after the arrival, where lateness hides a share of the early ranks' part"
    return heading, table(
        ("ranks", "share", "lateness", "ring", "StragglAR", "late_rank", "(k, g)", "overlapped", "bound"),
        (
            (
                str(row.ranks),
                f"{row.share:g}",
                _us(row.lateness),
                _us(row.ring),
                _us(row.stragglar),
                _us(row.late_rank),
                f"({row.groups}, {row.cut})",
                _us(row.overlapped),
                _us(row.bound),
            )
            for row in rows
        ),
    )


def _several(rows: list[SeveralLate]) -> tuple[str, str]:
    from pycoll.late_rank.tables import table

    heading = "Several late ranks: rounds from the last arrival on, and their share of the buffer's time"
    return heading, table(
        ("ranks", "late", "gap", "pieces", "rounds", "bound", "time", "ring"),
        (
            (
                str(row.ranks),
                str(row.late),
                f"{row.gap:g}",
                str(row.pieces),
                str(row.rounds),
                str(row.bound),
                f"{row.time:.3f}",
                f"{row.ring:.3f}",
            )
            for row in rows
        ),
    )


def _times(rows: list[TimeAfterArrival]) -> tuple[str, str]:
    from pycoll.bench.units import format_size
    from pycoll.late_rank.tables import table

    heading = "Microseconds after the arrival, where lateness hides the early ranks' part"
    names = ("halving-doubling", "StragglAR", "late_rank K=k(n-1)", "k", "late_rank", "K", "bound")
    return heading, table(
        ("ranks", "size", "ring", *names),
        (
            (
                str(row.ranks),
                format_size(row.size),
                _us(row.ring),
                _us(row.halving_doubling),
                _us(row.stragglar),
                _us(row.late_rank_multiple),
                str(row.multiple),
                _us(row.late_rank),
                str(row.pieces),
                _us(row.bound),
            )
            for row in rows
        ),
    )


def _rounds(rows: list[Rounds]) -> tuple[str, str]:
    from pycoll.late_rank.tables import table

    heads = ["ranks", *(f"K={k}(n-1)" for k in rows[0].factors), "above the bound"]
    return "Rounds after the arrival", table(
        heads,
        (
            (
                str(row.ranks),
                *map(str, row.rounds),
                ", ".join(str(made - least) for made, least in zip(row.rounds, row.bound, strict=True)),
            )
            for row in rows
        ),
    )


def _critical(rows: list[Any]) -> tuple[str, str]:
    from pycoll.bench.units import format_size
    from pycoll.late_rank.tables import table

    heading = "Microseconds of lateness from which it pays: with the best cut, and without cuts"
    return heading, table(
        ("ranks", "size", "on time", "critical", "without cuts", "pre-phase"),
        (
            (
                str(row.ranks),
                format_size(row.size),
                _us(row.on_time),
                _us(row.critical),
                _us(row.without_cuts),
                _us(row.pre_phase),
            )
            for row in rows
        ),
    )


_TEXTS: dict[str, Any] = {
    "speed-ups": _speed_ups,
    "partial": _partial,
    "several": _several,
    "times": _times,
    "rounds": _rounds,
    "critical": _critical,
}
