"""`pycoll algorithms` and `pycoll schedule`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

if TYPE_CHECKING:
    from pycoll import Schedule, Topology

app = typer.Typer(
    help="Build an algorithm's schedule and look at it: print it, verify it, draw it, simulate it.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


def list_algorithms(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the algorithms that pycoll knows, what each does, and where it comes from."""
    import dataclasses

    from pycoll import algorithms

    known = algorithms().values()
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(info) for info in known], indent=1))
        return
    for info in known:
        typer.secho(info.name, bold=True)
        typer.echo(f"    {info.description}")
        typer.echo(f"    collectives: {', '.join(info.collectives)}; number of ranks: {info.valid_ranks}")
        typer.echo(f"    source: {info.source}")


_Name = Annotated[
    str, typer.Argument(help="An algorithm's name (see `pycoll algorithms`), or a schedule's JSON file.")
]
_Collective = Annotated[str, typer.Option("--collective", "-c", help="What the schedule is to do.")]
_Ranks = Annotated[int, typer.Option("--ranks", "-n", min=1, help="Number of ranks.")]
_Pieces = Annotated[
    int, typer.Option(min=0, help="Parts that the buffer is cut in; 0: the algorithm's own number.")
]
_Root = Annotated[int, typer.Option(min=0, help="Root, for the collectives that have one.")]
_Params = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option(
        "--param", "-p", metavar="NAME=VALUE", help="A parameter of the algorithm's own; may be repeated."
    ),
]
_AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _load_schedule(
    name: str,
    collective: str,
    ranks: int,
    pieces: int,
    root: int,
    params: list[str] | None,
    topology: Topology | None = None,
) -> Schedule:
    import pycoll

    if name.endswith(".json") or "/" in name:
        return pycoll.Schedule.load(name)
    own: dict[str, Any] = {}
    for param in params or []:
        key, equals, value = param.partition("=")
        if not equals:
            raise pycoll.InvalidArgument(f"--param {param}: write NAME=VALUE")
        own[key] = value
    return pycoll.build(
        name, collective=collective, ranks=ranks, pieces=pieces or None, root=root, topology=topology, **own
    )


@app.command()
def show(
    name: _Name,
    collective: _Collective = "allreduce",
    ranks: _Ranks = 4,
    pieces: _Pieces = 0,
    root: _Root = 0,
    param: _Params = None,
    as_json: _AsJson = False,
) -> None:
    """Print a schedule's transfers, round by round; with --json, in the form that
    pycoll.Schedule.from_json reads."""
    from collections import defaultdict

    schedule = _load_schedule(name, collective, ranks, pieces, root, param)
    if as_json:
        typer.echo(schedule.to_json())
        return
    typer.echo(
        f"{schedule.algorithm}: {schedule.collective} over {schedule.ranks} ranks, {schedule.pieces} pieces, "
        f"{schedule.rounds} rounds, {len(schedule.transfers)} transfers"
    )
    rounds = defaultdict(list)
    for transfer in schedule.transfers:
        arrow = "+>" if transfer["reduce"] else "->"
        rounds[int(transfer["round"])].append(
            f"{transfer['src']}{arrow}{transfer['dst']} #{transfer['piece']}"
        )
    for number in sorted(rounds):
        typer.echo(f"round {number:3}:  " + "   ".join(rounds[number]))
    typer.echo("src->dst #piece overwrites at dst, src+>dst #piece adds into dst.")


@app.command()
def verify(
    name: _Name,
    collective: _Collective = "allreduce",
    ranks: _Ranks = 4,
    pieces: _Pieces = 0,
    root: _Root = 0,
    param: _Params = None,
    as_json: _AsJson = False,
) -> None:
    """Prove that a schedule does what its collective promises, and say what it asks of the machine.

    Exit code 1, and the round, transfer and reason, if it does not.
    """
    import dataclasses

    from pycoll import ScheduleError

    schedule = _load_schedule(name, collective, ranks, pieces, root, param)
    try:
        report = schedule.verify()
    except ScheduleError as error:
        typer.secho(f"wrong: {error}", fg="red", err=True)
        raise typer.Exit(1) from None
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(report)))
    else:
        typer.echo(f"{schedule.algorithm}: every contribution reaches every place exactly once\n{report}")


@app.command("draw")
def draw_schedule(
    name: _Name,
    output: Annotated[Path, typer.Option("--output", help="The picture: FILE.png, .svg or .pdf.")],
    collective: _Collective = "allreduce",
    ranks: _Ranks = 4,
    pieces: _Pieces = 0,
    root: _Root = 0,
    param: _Params = None,
) -> None:
    """Draw a schedule as a timeline, a line for each rank."""
    _load_schedule(name, collective, ranks, pieces, root, param).draw(output)
    typer.echo(f"wrote {output}")


@app.command()
def simulate(
    name: _Name,
    topology: Annotated[
        str, typer.Option("--topology", "-t", help="A topology file, or a bundled name (`pycoll topo list`).")
    ],
    size: Annotated[str, typer.Option("--size", "-s", help="Of the whole buffer: 64MiB, 1GiB.")] = "64MiB",
    collective: _Collective = "allreduce",
    ranks: Annotated[
        int, typer.Option("--ranks", "-n", min=0, help="Only the topology's first ranks; 0: all.")
    ] = 0,
    pieces: _Pieces = 0,
    root: _Root = 0,
    param: _Params = None,
    late: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--late", metavar="RANK=TIME", help="A rank that comes late: 3=200us; may be repeated."),
    ] = None,
    hash_seed: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            "--hash", metavar="SEED", min=0, help="Send each pair over one of its parallel paths, by a hash."
        ),
    ] = None,
    draw: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--draw", metavar="FILE", help="Draw the timeline: FILE.png, .svg or .pdf."),
    ] = None,
    as_json: _AsJson = False,
) -> None:
    """Say how long a schedule takes on a topology, what that time is made of, and which link binds.

    Where the algorithm fits itself to a topology, it is built for this one. The model is described in
    docs/simulator.md.
    """
    import pycoll
    from pycoll.bench.units import parse_size
    from pycoll.topology.units import parse_time

    machine = pycoll.Topology.load(topology)
    if ranks:
        if ranks > len(machine.ranks):
            raise pycoll.InvalidArgument(f"--ranks {ranks}: {machine.name} has {len(machine.ranks)}")
        machine = machine.first(ranks)
    start = [0.0] * len(machine.ranks)
    for each in late or []:
        rank, equals, seconds = each.partition("=")
        if not equals or not rank.isdecimal() or int(rank) >= len(start):
            raise pycoll.InvalidArgument(f"--late {each}: write RANK=TIME, RANK below {len(start)}")
        start[int(rank)] = parse_time(seconds)
    schedule = _load_schedule(name, collective, len(machine.ranks), pieces, root, param, machine)
    result = schedule.simulate(
        machine,
        0 if schedule.collective == "barrier" else parse_size(size),
        routing="spread" if hash_seed is None else "hash",
        seed=hash_seed or 0,
        start=start,
    )
    if as_json:
        typer.echo(json.dumps(result.to_dict(), indent=1))
    else:
        typer.echo(str(result))
    if draw is not None:
        result.draw(draw)
        typer.echo(f"wrote {draw}", err=as_json)
