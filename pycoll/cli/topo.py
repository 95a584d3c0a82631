"""`pycoll topo`: topology files, and what they come from."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from pycoll.cli import topo_probe

if TYPE_CHECKING:
    from pycoll import Topology

app = typer.Typer(
    help="Topology files: show, check, import and measure the machines that collectives run on.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
app.command()(topo_probe.probe)

_Source = Annotated[
    str,
    typer.Argument(metavar="FILE|NAME", help="A topology file, or a name from `pycoll topo list`."),
]
_AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_First = Annotated[
    Optional[int],  # noqa: UP045  typer reads it at run time, on Python 3.10 too
    typer.Option("--first", min=1, metavar="N", help="Cut the machine down to its first N ranks."),
]


def load(source: str, first: int | None = None) -> Topology:
    """The topology of a file or a bundled name, cut down where asked for; InvalidArgument for more ranks than
    it has."""
    import pycoll

    topology = pycoll.Topology.load(source)
    if first is None:
        return topology
    if first > len(topology.ranks):
        raise pycoll.InvalidArgument(
            f"the first {first:,} ranks were asked for; {topology.name!r} has {len(topology.ranks):,}"
        )
    return topology.first(first)


@app.command("list")
def list_bundled(as_json: _AsJson = False) -> None:
    """List the topologies that come with pycoll: typical machines, with a source for every figure."""
    import pycoll
    from pycoll.topology.bundled import bundled

    found = {name: pycoll.Topology.load(path) for name, path in bundled().items()}
    if as_json:
        rows = [
            {"name": name, "title": t.name, "ranks": len(t.ranks), "about": t.about, "file": str(path)}
            for (name, t), path in zip(found.items(), bundled().values(), strict=True)
        ]
        typer.echo(json.dumps(rows, indent=1))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("name", no_wrap=True, style="bold")
    table.add_column("ranks", justify="right")
    table.add_column("what it is")
    for name, topology in found.items():
        table.add_row(name, f"{len(topology.ranks):,}", topology.about or topology.name)
    Console().print(table)


@app.command()
def show(
    source: _Source,
    first: _First = None,
    plot: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Draw it as well: FILE.png, .svg or .pdf."),
    ] = None,
    as_json: _AsJson = False,
    as_yaml: Annotated[
        bool, typer.Option("--yaml", help="Print the topology file, with every group written out.")
    ] = False,
) -> None:
    """Show a topology: a tree of its switches and devices, the sorts of links, and a picture with --plot.

    Equal nodes stand together, as h[0-7]. With --json, every node and every directed link, in bytes per
    second and seconds.

    Examples:

        pycoll topo show dgx-h100

        pycoll topo show hgx-h100-128-rail --first 64 --plot pod.png
    """
    topology = load(source, first)
    if plot is not None:
        topology.draw(plot)
    if as_json:
        typer.echo(json.dumps(_as_dict(topology), indent=1))
    elif as_yaml:
        typer.echo(dataclasses.replace(topology, text=None).to_yaml(), nl=False)
    else:
        from rich.console import Console

        from pycoll.topology.terminal import print_topology

        print_topology(topology, Console(highlight=False))
        if plot is not None:
            typer.echo(f"wrote {plot}")


def _as_dict(topology: Topology) -> dict[str, Any]:
    finite = {float("inf"): None}  # unlimited; JSON has no infinity
    nodes = [
        {key: finite.get(value, value) for key, value in dataclasses.asdict(node).items()}
        for node in topology.nodes
    ]
    links = [dataclasses.asdict(link) for link in topology.links]
    return {
        "name": topology.name,
        "about": topology.about,
        "nodes": nodes,
        "links": links,
        "ranks": list(topology.ranks),
    }


@app.command()
def check(
    sources: Annotated[
        list[str], typer.Argument(metavar="FILE|NAME...", help="Topology files, or bundled names.")
    ],
    as_json: _AsJson = False,
) -> None:
    """Check topology files: say what is in them, what is wrong, and what is odd.

    Errors name file, line, column, field and remedy. Exit code 1 if any file is wrong; what is merely odd (a
    switch that leads nowhere, a device without a rank) is said and leaves it at 0.
    """
    verdicts = [_check(source) for source in sources]
    if as_json:
        typer.echo(json.dumps(verdicts, indent=1))
    else:
        for verdict in verdicts:
            _print_verdict(verdict)
    if not all(verdict["valid"] for verdict in verdicts):
        raise typer.Exit(1)


def _check(source: str) -> dict[str, Any]:
    from pycoll.errors import TopologyError
    from pycoll.topology.bundled import find
    from pycoll.topology.format import read_yaml
    from pycoll.topology.summary import examine, names_of

    try:
        path = find(source)
        topology = read_yaml(path.read_text(encoding="utf-8"), str(path), connected=False)
    except (TopologyError, OSError, UnicodeDecodeError) as error:
        return {"source": source, "valid": False, "errors": str(error).splitlines()}
    findings = examine(topology)
    errors = []
    if len(findings.parts) > 1:
        parts = [names_of(topology, [topology.ranks[rank] for rank in part]) for part in findings.parts[:8]]
        more = f" | ... {len(findings.parts) - 8} more" if len(findings.parts) > 8 else ""
        errors.append(
            f"{path}: the ranks fall into {len(findings.parts)} parts that do not all reach each other: "
            f"{' | '.join(parts)}{more}; add a link between them, or leave one out of ranks"
        )
    return {
        "source": source,
        "valid": not errors,
        "errors": errors,
        "name": topology.name,
        **dataclasses.asdict(findings),
    }


def _print_verdict(verdict: dict[str, Any]) -> None:
    from pycoll.topology.units import format_bandwidth, format_time

    for error in verdict["errors"]:
        typer.secho(f"wrong: {error}", fg="red", err=True)
    if "ranks" not in verdict:
        return
    if verdict["valid"]:
        typer.secho(f"{verdict['source']}: valid", fg="green")
    typer.echo(
        f"  {verdict['name']}: {verdict['ranks']:,} ranks, {verdict['devices']:,} devices, "
        f"{verdict['switches']:,} switches, {verdict['links']:,} links"
    )
    if verdict["slowest"]:
        typer.echo(
            f"  slowest link {verdict['slowest']}, {format_bandwidth(verdict['slowest_bandwidth'])}; longest "
            f"{verdict['longest']}, {format_time(verdict['longest_latency'])}"
        )
    for warning in verdict["warnings"]:
        typer.secho(f"  odd: {warning}", fg="yellow")


@app.command("import")
def import_topology(
    file: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(metavar="[FILE]", help="What the tool wrote; - is stdin.", show_default=False),
    ] = None,
    here: Annotated[bool, typer.Option("--here", help="This machine's own cores, from /sys.")] = False,
    format: Annotated[
        str, typer.Option("--format", "-f", help="nvidia-smi, nccl or hwloc; auto tells by the text.")
    ] = "auto",
    gpu: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="What the GPUs are, as nvidia-smi does not say: v100, a100, h100, b200, ..."),
    ] = None,
    output: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--output", "-o", help="Write the topology file here. Default: standard output."),
    ] = None,
    as_json: _AsJson = False,
) -> None:
    """Make a topology file from what another tool says of a machine.

    Reads the matrix of `nvidia-smi topo -m`, NCCL's topology XML (NCCL_TOPO_DUMP_FILE), and hwloc's XML
    (`lstopo --of xml`). These name sorts of links more than rates; the file says where its figures are from.

    Examples:

        nvidia-smi topo -m | pycoll topo import - --gpu h100 -o server.yaml

        NCCL_TOPO_DUMP_FILE=topo.xml torchrun ...; pycoll topo import topo.xml

        lstopo --of xml | pycoll topo import -

        pycoll topo import --here
    """
    from pycoll.errors import InvalidArgument, TopologyError
    from pycoll.topology.importers import import_here, import_text

    if here == (file is not None):
        raise InvalidArgument("give either a file (- for standard input) or --here")
    if file is None:
        topology = import_here()
    elif file == "-":
        topology = import_text(sys.stdin.read(), format=format, gpu=gpu, file="standard input")
    else:
        try:
            text = Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise TopologyError(f"{file} cannot be read: {reason}") from error
        topology = import_text(text, format=format, gpu=gpu, file=file)
    if output is not None:
        topology.save(output)
        typer.echo(f"wrote {output}: {topology}")
    elif as_json:
        typer.echo(json.dumps(_as_dict(topology), indent=1))
    else:
        typer.echo(topology.to_yaml(), nl=False)
