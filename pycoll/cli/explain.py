"""`pycoll explain`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

if TYPE_CHECKING:
    from pycoll import Topology
    from pycoll.selection.profile import Profile
    from pycoll.selection.selector import Selector


def explain(
    collective: Annotated[
        str, typer.Argument(help="allreduce, reduce_scatter, all_gather, broadcast, ...", show_default=False)
    ] = "",
    size: Annotated[
        str,
        typer.Argument(help="Bytes of the larger of a rank's two buffers: 64KiB, 25MiB.", show_default=False),
    ] = "",
    collective_option: Annotated[
        str, typer.Option("--collective", "-c", help="The same as the first argument.")
    ] = "",
    size_option: Annotated[str, typer.Option("--size", "-s", help="The same as the second argument.")] = "",
    topology: Annotated[
        str,
        typer.Option(
            "--topology", "-t", help="A topology file, or the name of a bundled one. Default: one host."
        ),
    ] = "",
    ranks: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            "--ranks", "-n", min=1, help="With a topology: its first so many ranks only.", show_default=False
        ),
    ] = None,
    profile: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--profile", "-p", help="What pycoll tune measured. Default: this machine's, if it was tuned."
        ),
    ] = None,
    dtype: Annotated[str, typer.Option(help="Of the elements.")] = "float32",
    root: Annotated[int, typer.Option(min=0, help="Root, for the collectives that have one.")] = 0,
    slow: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(
            "--slow",
            metavar="LINK=FACTOR",
            help="With a topology: as if a link (a shell pattern over names such as 'tor0<->tor1') had "
            "FACTOR of its bandwidth. May be repeated.",
        ),
    ] = None,
    distance: Annotated[
        str,
        typer.Option(help="Without a topology: near or far, how far apart the host's processors are."),
    ] = "near",
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Only what always adds in one order.")
    ] = False,
    device: Annotated[
        str,
        typer.Option(
            help="cpu, or cuda: an allreduce on GPUs, by what pycoll tune --device cuda measured here, or "
            "with --profile or --topology."
        ),
    ] = "cpu",
    late: Annotated[
        str,
        typer.Option(
            "--late", metavar="RANK=TIME", help="With a topology: as if this rank came so late: 3=5ms."
        ),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say which algorithm runs for a collective and size, why, and what would change that.

    A row a candidate: its predicted and (where tuned) measured time and the difference, how near it comes to
    the least time that any algorithm could take, and the link that limits it. Pins (PYCOLL_ALGO) are obeyed.

    Examples:

        pycoll explain allreduce 25MiB --topology two_racks

        pycoll explain allreduce 1MiB --topology dgx-h100 --slow 'gpu3<->*=0.5'

        pycoll explain allreduce 25MiB --topology two_racks --late 3=200ms

        pycoll explain allreduce 64KiB --ranks 2

        pycoll explain allreduce 1MiB --device cuda

        pycoll explain allreduce 1MiB --device cuda --topology dgx-h100
    """
    import os

    from pycoll import InvalidArgument, Unsupported
    from pycoll.bench.units import parse_size
    from pycoll.bench.workload import COLLECTIVES
    from pycoll.topology.units import parse_time

    kind, bytes_text = collective_option or collective or "allreduce", size_option or size
    if kind not in COLLECTIVES:
        raise InvalidArgument(f"there is no collective {kind!r}; there are: {', '.join(COLLECTIVES)}")
    if not bytes_text and kind != "barrier":
        raise InvalidArgument("explain needs a size: pycoll explain allreduce 25MiB")
    pins = os.environ.get("PYCOLL_ALGO", "")
    if device not in ("cpu", "cuda"):
        raise InvalidArgument(f"--device is cpu or cuda, not {device!r}")
    if device == "cuda" and kind != "allreduce":
        raise Unsupported(f"--device cuda explains allreduce, not {kind}")
    if device == "cuda":
        if late:
            raise Unsupported("--late is for --device cpu: GPUs find the late rank at run time")
        selector: Selector = _gpu_selector(topology, ranks, profile, slow or [], deterministic, pins)
    else:
        selector = _selector(topology, ranks, profile, slow or [], distance, deterministic, pins)
    lateness = None
    if late:
        rank, equals, seconds = late.partition("=")
        if not equals or not rank.strip().isdecimal() or not topology:
            raise InvalidArgument(f"--late {late}: write RANK=TIME, such as 3=5ms, with --topology")
        lateness = {int(rank): parse_time(seconds)}
    explanation = selector.explain(kind, parse_size(bytes_text or "0B"), dtype, root=root, late=lateness)
    if as_json:
        typer.echo(json.dumps(explanation.to_dict(), indent=1))
        return
    from rich.console import Console
    from rich.measure import Measurement

    console = Console()
    natural = Measurement.get(console, console.options.update(max_width=1000), explanation).maximum
    Console(width=max(console.width, min(natural, 140))).print(explanation)


def _selector(
    topology: str,
    ranks: int | None,
    profile: Path | None,
    slow: list[str],
    distance: str,
    deterministic: bool,
    pins: str,
) -> Selector:
    from pycoll import InvalidArgument
    from pycoll.bench.environment import usable_cpus
    from pycoll.selection.profile import Profile, for_group
    from pycoll.selection.selector import Selector

    if not topology:
        if slow:
            raise InvalidArgument("--slow needs --topology: it names links of one")
        measured = Profile.load(profile) if profile is not None else None
        count = ranks or (measured.ranks if measured is not None else max(usable_cpus(), 2))
        measured = measured or for_group(None, count)
        return Selector(None, measured, pins, deterministic, ranks=count, distance=distance)
    machine = _machine(topology, ranks, slow)
    measured = Profile.load(profile) if profile is not None else None
    return Selector(machine, measured, pins, deterministic, cache=True)


def _gpu_selector(
    topology: str, ranks: int | None, profile: Path | None, slow: list[str], fixed: bool, pins: str
) -> Selector:
    from pycoll import InvalidArgument
    from pycoll.gpu.selector import GpuSelector
    from pycoll.selection.profile import Profile

    if slow and not topology:
        raise InvalidArgument("--slow needs --topology: it names links of one")
    machine = _machine(topology, ranks, slow) if topology else None
    measured = Profile.load(profile) if profile is not None else None
    if measured is None and machine is None:
        measured = _gpu_profile_of_here(ranks)
    if measured is not None and ranks is not None and measured.ranks != ranks:
        raise InvalidArgument(f"--ranks {ranks}: the profile is for {measured.ranks} ranks")
    if measured is None and machine is None and ranks is None:
        raise InvalidArgument(
            "no profile of GPUs is here, and no topology was given: say --ranks N for the fixed bounds, "
            "--topology for a prediction, or run pycoll tune --device cuda"
        )
    return GpuSelector(machine, measured, pins, ranks=ranks, fixed=fixed)


def _gpu_profile_of_here(ranks: int | None) -> Profile | None:
    """What was tuned for this host's GPUs, a rank on each: the group itself would ask the driver the same."""
    import os

    from pycoll.errors import Error
    from pycoll.gpu import links, wiring
    from pycoll.gpu.machine import GpuMachine
    from pycoll.selection.profile import CUDA_VARIABLE, Profile, for_gpus

    if named := os.environ.get(CUDA_VARIABLE):
        return None if named.lower() == "none" else Profile.load(named)
    from pycoll import cuda

    if not cuda.available():
        return None
    models = [device.name for device in cuda.devices()]
    count = ranks or len(models)

    def machine() -> GpuMachine:
        used = [rank % len(models) for rank in range(count)]
        places = list(dict.fromkeys(used))
        link = "one gpu"
        if len(places) > 1:
            try:
                link = links.summary_of(wiring.subset(wiring.here(), places))
            except Error:
                link = "unknown"
        return GpuMachine.of([models[i] for i in used], [str(i) for i in used], link)

    return for_gpus(None, count, machine)


def _machine(topology: str, ranks: int | None, slow: list[str]) -> Topology:
    from pycoll import InvalidArgument
    from pycoll.cli.topo import load

    machine = load(topology, ranks)
    for each in slow:
        pattern, equals, factor = each.rpartition("=")
        try:
            machine = machine.scaled(pattern, float(factor))
        except ValueError:
            equals = ""
        if not equals:
            raise InvalidArgument(f"--slow {each}: write LINK=FACTOR, such as 'tor0<->tor1=0.5'")
    return machine
