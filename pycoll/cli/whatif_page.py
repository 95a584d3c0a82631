"""The pages of `pycoll whatif`: what is computed for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pycoll import Topology
    from pycoll.whatif import Change, Study, Workload

#: On machines of up to so many ranks the page ranks links by harm without being asked to.
_SMALL = 64


def page_of(
    machine: Topology,
    changes: list[Change],
    collective: str,
    size: str,
    algorithm: str,
    study: Study,
    each: str = "",
    sweep: str = "",
    scale: str = "",
    work: tuple[Workload, float | None] | None = None,
) -> tuple[dict[str, Any], Any]:
    """The page's document, and the answer that is printed: the study's, the steps', or the comparison."""
    from pycoll import whatif
    from pycoll.cli.whatif_steps import steps_of
    from pycoll.whatif.compare import sizes_of
    from pycoll.whatif.page import document_of

    steps = steps_of(machine, work, changes, algorithm) if work is not None else None
    sizes: list[int] | str = sizes_of(size) if size else "1KiB,1MiB,64MiB,1GiB"
    if steps is not None and steps.before.choices and not size:
        priciest = steps.before.choices[-1]
        collective, sizes = priciest.collective, [priciest.size]
    comparison = whatif.compare(machine, changes, collective, sizes, algorithm)
    of_study = sizes_of(size)[-1] if size else "256MiB"
    fixed = "auto" if algorithm == "all" else algorithm
    harms = None
    if each or len(machine.ranks) <= _SMALL:
        harms = whatif.each(
            machine, each or "link", collective, of_study, algorithm=fixed, changes=changes, study=study
        )
    swept = None
    if sweep:
        swept = whatif.sweep(
            machine, sweep, collective, of_study, algorithm=algorithm, changes=changes, study=study
        )
    scaled = None
    if scale:
        scaled = whatif.scale(
            machine,
            scale,
            collective,
            of_study,
            workload=work[0] if work is not None else None,
            algorithm=fixed,
            changes=changes,
            study=study,
        )
    document = document_of(comparison, harms=harms, sweep=swept, steps=steps, scale=scaled)
    asked = (scaled, swept, harms if each else None, steps, comparison)
    return document, next(answer for answer in asked if answer is not None)


def serve_page(
    bind: str, machine: Topology, changes: list[Change], collective: str, size: str, algorithm: str
) -> None:
    """Serves the page until it is interrupted."""
    import typer

    from pycoll.whatif.page.server import PageServer, parse_bind

    flags = " ".join(str(change) for change in changes)
    with PageServer(
        parse_bind(bind),
        machine,
        collective=collective,
        size=size or "64MiB",
        algorithm=algorithm,
        flags=flags,
    ) as server:
        typer.echo(f"{server.url} has the page; Ctrl-C ends it")
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            typer.echo("")
