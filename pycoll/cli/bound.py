"""`pycoll topo bound`: the least time on a machine, what binds it, and the best schedule's share of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

if TYPE_CHECKING:
    from pycoll.topology import Topology

# Of larger machines, --all takes so many ranks.
_MOST_RANKS = 64


def bound(
    sources: Annotated[
        Optional[list[str]],  # noqa: UP045  typer reads it at run time, on Python 3.10 too
        typer.Argument(metavar="FILE|NAME...", help="Topology files, or bundled names."),
    ] = None,
    all_: Annotated[
        bool, typer.Option("--all", help=f"All bundled topologies, each cut down to {_MOST_RANKS} ranks.")
    ] = False,
    collective: Annotated[
        str, typer.Option("--collective", "-c", help="allreduce, all_gather, ...")
    ] = "allreduce",
    size: Annotated[str, typer.Option("--size", "-s", help="Bytes of the buffer: 64KiB, 1GiB.")] = "1GiB",
    root: Annotated[int, typer.Option(min=0, help="Root, for the collectives that have one.")] = 0,
    first: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--first", min=1, metavar="N", help="Cut the machines down to their first N ranks."),
    ] = None,
    best: Annotated[
        bool,
        typer.Option("--best/--no-best", help="Simulate the schedules that pycoll knows, and show the best."),
    ] = True,
    prove: Annotated[
        bool, typer.Option("--prove/--no-prove", help="Look for a packing of trees that reaches the bound.")
    ] = True,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a table in Markdown.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print the least time that any algorithm could take on a machine, and what limits it.

    **bound** is that time; **at** names the partition of the machine that binds, and the links between its
    parts. **tight** says whether the figure is proved: a packing of spanning trees was found that takes no
    longer. **reach** is the share of the bound that transfers can reach on the routes they take. **best** is
    the quickest schedule that pycoll knows, with its number of pieces, and its **share** of the bound,
    simulated.

    Examples:

        pycoll topo bound two_racks

        pycoll topo bound dgx-h100 dgx-a100 hgx-h100-128-rail --first 64 --size 1GiB

        pycoll topo bound --all --markdown
    """
    from pycoll.bench.units import parse_size
    from pycoll.errors import InvalidArgument
    from pycoll.topology.bundled import bundled

    names = list(bundled()) if all_ else list(sources or [])
    if not names:
        raise InvalidArgument("name a topology, or several, or say --all; `pycoll topo list` has the bundled")
    most = _MOST_RANKS if all_ and first is None else first
    bytes_ = parse_size(size)
    rows = (_row(name, most, collective, bytes_, root, best, prove) for name in names)
    if as_json:
        typer.echo(json.dumps(list(rows), indent=1))
    elif markdown:
        for line in _markdown(rows, best):
            typer.echo(line)
    else:
        _print(list(rows), best)


def _row(
    source: str, most: int | None, collective: str, size: int, root: int, best: bool, prove: bool
) -> dict[str, Any]:
    from pycoll.bounds import best_schedule
    from pycoll.bounds import bound as bound_of
    from pycoll.topology import Topology

    topology: Topology = Topology.load(source)
    if most is not None:
        topology = topology.first(most)
    found = bound_of(topology, collective, size, root=root, prove=prove)
    row: dict[str, Any] = {
        "topology": source,
        "ranks": len(topology.ranks),
        "collective": collective,
        "size": size,
        "seconds": found.seconds,
        "bandwidth_seconds": found.bandwidth_seconds,
        "latency_seconds": found.latency_seconds,
        "partition": found.partition,
        "through": found.through,
        "proved_tight": found.proved_tight if prove else None,
        "routed_seconds": found.routed_seconds,
    }
    if best:
        quickest = best_schedule(topology, collective, size, root)
        row |= {
            "best": f"{quickest.schedule.algorithm}/{quickest.schedule.pieces}",
            "best_seconds": quickest.seconds,
            "share": quickest.share,
        }
    return row


_VERDICT = {True: "proved", False: "open", None: ""}


def _cells(row: dict[str, Any], best: bool) -> list[str]:
    from pycoll.bench.units import format_seconds

    cells = [row["topology"], f"{row['ranks']:,}", format_seconds(row["seconds"])]
    routed = row["routed_seconds"]
    cells += [_VERDICT[row["proved_tight"]], f"{row['bandwidth_seconds'] / routed:.3f}" if routed else ""]
    if best:
        cells += [row["best"], format_seconds(row["best_seconds"]), f"{row['share']:.3f}"]
    at = f"{row['partition']} through {_in_short(row['through'])}" if row["partition"] else "latency alone"
    return [*cells, at]


def _headings(best: bool) -> list[str]:
    return [
        "topology",
        "ranks",
        "bound",
        "tight",
        "reach",
        *(["best", "takes", "share"] if best else []),
        "at",
    ]


_RIGHT = ("ranks", "bound", "reach", "takes", "share")


def _print(rows: list[dict[str, Any]], best: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    from pycoll.bench.units import format_size

    table = Table(box=None, header_style="bold", pad_edge=False, title_justify="left")
    table.title = f"{rows[0]['collective']} of {format_size(rows[0]['size'])}"
    for heading in _headings(best):
        table.add_column(
            heading,
            justify="right" if heading in _RIGHT else "left",
            no_wrap=heading != "at",
            overflow="fold",
            style="bold" if heading == "topology" else None,
        )
    for row in rows:
        table.add_row(*_cells(row, best))
    Console().print(table)


def _markdown(rows: Iterator[dict[str, Any]], best: bool) -> Iterator[str]:
    headings = _headings(best)
    yield f"| {' | '.join(headings)} |"
    yield f"|{'|'.join('--:' if heading in _RIGHT else '---' for heading in headings)}|"
    for row in rows:
        # A partition's own bars would end the cell.
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in _cells(row, best))} |"


def _in_short(links: str) -> str:
    """The first few of many."""
    found = re.split(r", (?![^\[]*\])", links)  # not the commas inside brackets
    return links if len(found) <= 4 else f"{', '.join(found[:3])} and {len(found) - 3} more"
