"""`pycoll whatif`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

if TYPE_CHECKING:
    from pycoll.whatif import Study

_Texts = Optional[list[str]]  # noqa: UP045  typer reads it at run time, on Python 3.10 too
_CHANGES = "Changes (may be repeated, and combined)"
_STUDIES = "Studies"


def _change(flag: str, form: str, what: str) -> Any:
    return typer.Option(flag, metavar=form, help=what, rich_help_panel=_CHANGES, show_default=False)


def whatif(
    topology: Annotated[
        str, typer.Argument(metavar="TOPOLOGY", help="A topology file, or a name from `pycoll topo list`.")
    ],
    collective: Annotated[
        str, typer.Option("--collective", "-c", help="allreduce, reduce_scatter, all_gather, broadcast, ...")
    ] = "allreduce",
    size: Annotated[
        str,
        typer.Option(
            "--size",
            "-s",
            help="Sizes and ranges: 25MiB, 4KiB:1GiB:x4. Default: 1KiB,1MiB,64MiB,1GiB; 256MiB for studies.",
        ),
    ] = "",
    algorithm: Annotated[
        str,
        typer.Option("--algorithm", "-a", help="auto: the quickest; all: a row each; or a name, ring/32."),
    ] = "auto",
    ranks: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            "--ranks", "-n", min=1, help="The machine's first so many ranks only.", show_default=False
        ),
    ] = None,
    fail: Annotated[
        _Texts, _change("--fail", "NAME", "A link or a node is gone: link:tor0-spine1, node:h3, s3.")
    ] = None,
    slow: Annotated[
        _Texts,
        _change("--slow", "LINKS=FACTOR", "Links have that much of their bandwidth: 'tor*-spine*=0.5'."),
    ] = None,
    latency: Annotated[
        _Texts,
        _change("--latency", "LINKS=+TIME", "Links take so much longer, or without + so long: wan=+20ms."),
    ] = None,
    busy: Annotated[
        _Texts, _change("--busy", "LINKS=SHARE", "Other jobs take that share of links: h0-tor0=0.3.")
    ] = None,
    late: Annotated[_Texts, _change("--late", "RANK:TIME", "A rank comes late: 3:5ms, h3:5ms.")] = None,
    late_dist: Annotated[
        str,
        _change(
            "--late-dist", "SHAPE:TIME", "All do, by chance: exponential:2ms, uniform:5ms, normal:1ms; :SEED."
        ),
    ] = "",
    add: Annotated[
        _Texts, _change("--add", "COUNT*PART", "More of a host, a switch with its hosts, a group: 2*rack0.")
    ] = None,
    remove: Annotated[
        _Texts, _change("--remove", "PART", "A part is taken out, with all that hangs on it alone.")
    ] = None,
    oversubscribe: Annotated[
        _Texts,
        _change(
            "--oversubscribe", "DOWN:UP", "Uplinks of the leaves are scaled to 4:1; of others with leaf*=4:1."
        ),
    ] = None,
    place: Annotated[
        str, _change("--place", "HOW", "Ranks are dealt packed, interleaved over servers, or as a file says.")
    ] = "",
    ecmp: Annotated[
        str,
        _change("--ecmp", "seed=N", "Routers hash connections onto equal paths, instead of spreading them."),
    ] = "",
    spread: Annotated[
        bool,
        typer.Option(
            "--spread",
            help="Before, routers hash (by --ecmp's seed, with --flows); after, transfers spread over all "
            "equal paths.",
            rich_help_panel=_CHANGES,
        ),
    ] = False,
    flows: Annotated[
        Optional[int],  # noqa: UP045
        _change("--flows", "N", "With --ecmp or --spread: a connection is N, each hashed for itself."),
    ] = None,
    each: Annotated[
        str,
        typer.Option(
            "--each",
            metavar="link|node|switch|host",
            help="Fail each in turn, and rank them by harm.",
            rich_help_panel=_STUDIES,
        ),
    ] = "",
    sweep: Annotated[
        str,
        typer.Option(
            "--sweep",
            metavar="WHAT=A..B",
            help="A figure over a range, and where the choice changes: spine=0.25..2, oversubscribe=1..8, "
            "latency:wan=0ms..40ms, late:3=0ms..20ms, busy:LINKS=0..0.9, flows=1..8; /N for N points.",
            rich_help_panel=_STUDIES,
        ),
    ] = "",
    scale: Annotated[
        str,
        typer.Option(
            "--scale",
            metavar="A..B",
            help="On the first A to B ranks of the machine, doubling (/N: N points): a collective, or "
            "the step of --workload.",
            rich_help_panel=_STUDIES,
        ),
    ] = "",
    workload: Annotated[
        str,
        typer.Option(
            "--workload",
            "-w",
            metavar="FILE|MODEL",
            help="A whole training step: a YAML file (docs/whatif.md), 1b, 7b, 13b, 70b, or torch.profiler's "
            "traces of a DDP job: trace0.json,trace1.json.",
            rich_help_panel=_STUDIES,
        ),
    ] = "",
    pattern: Annotated[
        str, typer.Option(help="With --workload: ddp, fsdp, tp or pp.", rich_help_panel=_STUDIES)
    ] = "",
    stages: Annotated[
        int, typer.Option(min=0, help="Of --pattern pp. Default: 8, 4 or 2.", rich_help_panel=_STUDIES)
    ] = 0,
    microbatches: Annotated[
        int, typer.Option(min=0, help="Of --pattern pp. Default: 4 a stage.", rich_help_panel=_STUDIES)
    ] = 0,
    bucket: Annotated[
        str, typer.Option(metavar="SIZE", help="Of DDP's buckets: 100MiB.", rich_help_panel=_STUDIES)
    ] = "",
    order: Annotated[
        str,
        typer.Option(
            help="Of buckets: fifo, or priority: front layers first, and none waits for all (TicTac).",
            rich_help_panel=_STUDIES,
        ),
    ] = "",
    jobs: Annotated[
        int,
        typer.Option("--jobs", "-j", min=0, help="Processes. 0: one a core.", rich_help_panel=_STUDIES),
    ] = 0,
    store: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--store",
            metavar="FILE",
            help="Keep results in this SQLite file, and do not compute again what is in it.",
            rich_help_panel=_STUDIES,
        ),
    ] = None,
    on: Annotated[
        str,
        typer.Option(
            "--on",
            metavar="URL",
            help="Compute on a cluster: ray://..., dask://...",
            rich_help_panel=_STUDIES,
        ),
    ] = "",
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Run the algorithms here, a process a rank or in this job, and compare with predictions; "
            "later answers about this topology quote the error.",
            rich_help_panel=_STUDIES,
        ),
    ] = False,
    html: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--html",
            metavar="FILE",
            help="Write a page with pictures, timelines and curves; with --json, print all that is on it.",
            show_default=False,
        ),
    ] = None,
    png: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--png", metavar="FILE", help="Draw time against size and the busiest links.", show_default=False
        ),
    ] = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="Serve the page with sliders, until Ctrl-C; see --bind.")
    ] = False,
    bind: Annotated[
        str, typer.Option("--bind", metavar="ADDRESS:PORT", help="Where --serve does so.")
    ] = "127.0.0.1:8642",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
) -> None:
    """Say what changes to a machine do to a collective: before, after, and why.

    Names are those of the topology (`pycoll topo show`): a link without a direction (tor0-tor1) is meant
    both ways, a node (spine0), a sort of nodes (spine) or a class of links (wan) means all its links.
    Changes are made in the order in which they stand below. Without any, the machine is priced as it is.

    Examples:

        pycoll whatif two_racks --slow tor0-tor1=0.5 --size 25MiB

        pycoll whatif hgx-h100-16-fat --fail link:r0.leaf0-spine3 --each link

        pycoll whatif hgx-h100-4-fat --sweep oversubscribe=1..8 --size 64MiB
    """
    from pycoll import InvalidArgument
    from pycoll.cli.topo import load
    from pycoll.cli.whatif_steps import steps_of, work_of
    from pycoll.whatif import Comparison, parsing
    from pycoll.whatif import compare as compare_
    from pycoll.whatif import each as each_
    from pycoll.whatif import scale as scale_
    from pycoll.whatif import sweep as sweep_
    from pycoll.whatif.check import known_check
    from pycoll.whatif.compare import sizes_of

    if each and sweep and html is None:
        raise InvalidArgument("--each and --sweep are two studies: run one, then the other")
    if as_json and as_csv:
        raise InvalidArgument("--json or --csv, not both")
    machine = load(topology, ranks)
    if check:
        from pycoll.cli.whatif_check import check_here

        given = (each, sweep, workload, html, serve, fail, slow, latency, busy, late, late_dist, add, remove)
        if any(given) or any((oversubscribe, place, ecmp, spread, flows, scale, png, algorithm != "auto")):
            raise InvalidArgument("--check is of the machine as it is: give --size and --ranks only")
        checked = check_here(machine, collective, size)
        if checked is not None:
            _show(checked, as_json, as_csv)
        return
    changes = parsing.changes(
        {
            "--remove": remove or [],
            "--add": add or [],
            "--fail": fail or [],
            "--oversubscribe": oversubscribe or [],
            "--slow": slow or [],
            "--latency": latency or [],
            "--busy": busy or [],
            "--place": [place] if place else [],
            "--late": late or [],
            "--late-dist": [late_dist] if late_dist else [],
            "--ecmp": [ecmp] if ecmp else [],
            "--spread": [""] if spread else [],
            "--flows": [] if flows is None else [str(flows)],
        }
    )
    step: dict[str, str | int] = {
        "pattern": pattern,
        "stages": stages,
        "microbatches": microbatches,
        "bucket": bucket,
        "order": order,
    }
    if not workload and any(step.values()):
        first = next(name for name, value in step.items() if value)
        raise InvalidArgument(f"--{first} is of a training step: name one with --workload")
    work = work_of(workload, step) if workload else None
    result: Any
    if serve:
        if each or sweep or scale or workload or html is not None or png is not None or as_json or as_csv:
            raise InvalidArgument("--serve goes with changes, --collective, --size and --algorithm only")
        if place not in ("", "packed", "interleaved"):
            raise InvalidArgument(
                "--serve goes with --place packed or interleaved; the page cannot name a file"
            )
        from pycoll.cli.whatif_page import serve_page

        serve_page(bind, machine, changes, collective, size, algorithm)
        return
    if html is not None:
        from pycoll.cli.whatif_page import page_of
        from pycoll.whatif.page import write_page

        with _study(jobs, store, on) as study:
            document, result = page_of(
                machine,
                changes,
                collective,
                size,
                algorithm,
                study,
                each,
                sweep,
                scale,
                work,
            )
        write_page(html, document)
        if as_json:
            typer.echo(json.dumps(document, indent=1))
            return
        typer.echo(f"wrote {html}", err=True)
    elif scale:
        if each or sweep:
            raise InvalidArgument("--scale, --each and --sweep are three studies: run one, then another")
        with _study(jobs, store, on) as study:
            result = scale_(
                machine,
                scale,
                collective,
                size or "256MiB",
                workload=work[0] if work is not None else None,
                algorithm=algorithm,
                changes=changes,
                study=study,
            )
    elif work is not None:
        if each or sweep:
            raise InvalidArgument("--workload goes with changes, not with --each or --sweep")
        if size or collective != "allreduce":
            raise InvalidArgument("--workload says itself what is sent: no --size and no --collective")
        result = steps_of(machine, work, changes, algorithm)
    elif each or sweep:
        sizes = sizes_of(size or "256MiB")
        if len(sizes) > 1:
            raise InvalidArgument(f"a study takes one --size; {size} is {len(sizes)}")
        with _study(jobs, store, on) as study:
            how = {"algorithm": algorithm, "changes": changes, "study": study}
            if each:
                result = each_(machine, each, collective, sizes[0], **how)
            else:
                result = sweep_(machine, sweep, collective, sizes[0], **how)
    else:
        result = compare_(machine, changes, collective, size or "1KiB,1MiB,64MiB,1GiB", algorithm)
    if png is not None:
        if not isinstance(result, Comparison):
            raise InvalidArgument("--png draws a comparison; for studies and steps there is --html")
        result.draw(png)
        typer.echo(f"wrote {png}", err=True)
    known = known_check(machine)
    _show(result, as_json, as_csv, known.sentence if known is not None else "")


def _show(result: Any, as_json: bool, as_csv: bool, checked: str = "") -> None:
    """``checked`` is what is known of how exact predictions for this topology are."""
    from pycoll.whatif.result import finite

    if as_json:
        more = {"checked": checked} if checked else {}
        typer.echo(json.dumps(finite(result.to_dict() | more), indent=1, allow_nan=False))
    elif as_csv:
        typer.echo(result.to_csv(), nl=False)
    else:
        _print(result)
        if checked:
            typer.echo(checked)


def _study(jobs: int, store: Path | None, on: str) -> Any:
    """A study with a progress bar on stderr."""
    from collections.abc import Iterator
    from contextlib import contextmanager

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from pycoll.whatif import Store
    from pycoll.whatif import Study as Study_

    @contextmanager
    def running() -> Iterator[Study]:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        console = Console(stderr=True)
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
            task = bar.add_task("simulating", total=None)
            yield Study_(
                jobs,
                Store(store) if store is not None else None,
                on,
                lambda done, total: bar.update(task, completed=done, total=total),
            )

    return running()


def _print(result: Any) -> None:
    from rich.console import Console
    from rich.measure import Measurement

    console = Console(highlight=False)
    natural = Measurement.get(console, console.options.update(max_width=1000), result).maximum
    Console(width=max(console.width, min(natural, 150)), highlight=False).print(result)
