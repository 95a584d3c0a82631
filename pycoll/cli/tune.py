"""`pycoll tune`."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from pycoll.cli._app import split
from pycoll.cli.bench import job_size

if TYPE_CHECKING:
    from pycoll.selection.profile import Profile
    from pycoll.tuning.options import TuneOptions
    from pycoll.tuning.results import Measured

_QUIET = 0.5  # processes that were running before ours: with more, times are of a busy machine


def tune(
    collectives: Annotated[
        Optional[list[str]],  # noqa: UP045  typer reads it at run time, on Python 3.10 too
        typer.Argument(
            help="allreduce (the default), reduce_scatter, all_gather, broadcast, reduce, gather, scatter, "
            "all_to_all, or all.",
            show_default=False,
        ),
    ] = None,
    ranks: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            "--ranks", "-n", min=2, help="Processes to start. Default: one a processor.", show_default=False
        ),
    ] = None,
    collective: Annotated[
        str, typer.Option("--collective", "-c", help="The same as the argument; separate several by commas.")
    ] = "",
    sizes: Annotated[
        str, typer.Option("--sizes", "-s", help="A list and ranges: 4B,64KiB or 4B:64MiB:x4.")
    ] = "4B:64MiB:x4",
    dtype: Annotated[
        str, typer.Option(help="float32 stands for all wide dtypes, bfloat16 for the 16- and 8-bit floats.")
    ] = "float32",
    budget: Annotated[
        str, typer.Option(help="Time for everything: 60s, 5m. Shared evenly by the sizes that are left.")
    ] = "60s",
    profile: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--profile", "-p", help="The profile's file. Default: the one that groups look for."),
    ] = None,
    device: Annotated[
        str,
        typer.Option(
            help="cpu, or cuda: allreduce on GPUs, a process each, by default as many as there are GPUs."
        ),
    ] = "cpu",
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Write nothing: hold the profile made earlier against fresh measurements."
        ),
    ] = False,
    seed: Annotated[int, typer.Option(help="Of the order in which ways take turns.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure which algorithm is quickest for which size here, and keep it for all groups to come.

    Every way to run a collective (the engine's fast path, and each algorithm with several numbers of pieces)
    is checked and timed in turns, ways far behind leave early, and the profile is written: to the place where
    `pycoll.init`, `pycoll.spawn` and `init_process_group("pycoll")` look for it, by machine and number of
    ranks, unless --profile names another. What an older profile says of other collectives stays.

    With **--check** nothing is written. The choices of the profile made earlier are timed again beside all
    other ways: **regret** is by how much more time the choice took than the best one, **error** by how much
    the model's prediction missed.

    With **--device cuda** the ways are those of GPUs: pycoll's kernels, every algorithm through the kernel
    that interprets schedules and over NCCL's send and recv, and NCCL's own AllReduce. The profile is for
    these GPUs and what joins them; `pycoll.cuda.Group` finds it. It takes torch with CUDA, and cupy for NCCL.

    Exit code: 0 if everything was right; with --check, only if the regret is at most 5% in the median and 15%
    at every size, and the error at most 20% in the median.

    Examples:

        pycoll tune --ranks 2

        pycoll tune all --ranks 4 --budget 10m

        pycoll tune --ranks 2 --check

        torchrun --nproc-per-node 2 --no-python pycoll tune

        pycoll tune --device cuda --sizes 1KiB:256MiB:x4
    """
    from pycoll import InvalidArgument, launchers
    from pycoll.selection.profile import Profile, default_path

    names = [*(collectives or []), *split(collective)] or ["allreduce"]
    if device == "cuda":
        _tune_gpus(_options(names, ranks or 2, sizes, dtype, budget, seed), ranks, profile, check, as_json)
        return
    if device != "cpu":
        raise InvalidArgument(f"--device is cpu or cuda, not {device!r}")
    options = _options(names, ranks, sizes, dtype, budget, seed)
    path = profile or default_path(options.ranks)
    if check:
        from dataclasses import replace

        earlier = Profile.load(path)
        earlier.require_here(options.ranks, str(path))
        options = replace(options, check=earlier)
    busy = os.getloadavg()[0]
    measured = _run(options)
    wrong = sum(case.wrong for case in measured)
    if launchers.place().rank == 0:
        if options.check is not None:
            passed = _check(options.check, options.ranks, measured, as_json)
        else:
            timings = (timing for case in measured for timing in case.timings())
            passed = _keep(Profile.of_here(options.ranks, timings), options, wrong, path, as_json)
        if busy > _QUIET and not as_json:
            typer.secho(
                f"Others kept the machine busy (a load of {busy:.1f} at the start): what was measured may "
                "not hold when it is quiet.",
                fg="yellow",
                err=True,
            )
        if not passed:
            raise typer.Exit(1)
    elif wrong:
        raise typer.Exit(1)


def _options(
    names: list[str], ranks: int | None, sizes: str, dtype: str, budget: str, seed: int
) -> TuneOptions:
    from pycoll import InvalidArgument
    from pycoll.bench.environment import usable_cpus
    from pycoll.bench.units import parse_sizes
    from pycoll.bench.workload import COLLECTIVES
    from pycoll.tuning.options import TuneOptions

    joined = job_size()
    if joined is not None and ranks not in (None, joined):
        raise InvalidArgument(f"--ranks {ranks}: this job has {joined} ranks already; leave --ranks out")
    everything = [name for name in COLLECTIVES if name != "barrier"]
    return TuneOptions(
        tuple(dict.fromkeys(everything if "all" in names else names)),
        tuple(parse_sizes(sizes)),
        joined or ranks or max(usable_cpus(), 2),
        dtype,
        _seconds(budget),
        seed,
        progress=sys.stderr.isatty(),
    )


def _seconds(text: str) -> float:
    """Seconds of 60, 60s, 5m or 1h."""
    from pycoll import InvalidArgument

    number, unit = text.strip().rstrip("smh"), text.strip()[-1:]
    try:
        return float(number) * {"m": 60.0, "h": 3600.0}.get(unit, 1.0)
    except ValueError:
        raise InvalidArgument(f"--budget {text}: write a time such as 60s or 5m") from None


def _run(options: TuneOptions) -> list[Measured]:
    import pycoll
    from pycoll import launchers
    from pycoll.tuning.measure import join, run_rank

    if launchers.place().launcher:
        return join(options)
    untuned = {"PYCOLL_PROFILE": "none", "PYCOLL_ALGO": ""}
    measured: list[Measured] = pycoll.spawn(
        run_rank, ranks=options.ranks, args=(options,), timeout=options.timeout, env=untuned
    )[0]
    return measured


def _keep(made: Profile, options: TuneOptions, wrong: int, path: Path, as_json: bool) -> bool:
    if not wrong:
        _merged_with_earlier(path, made).save(path)
    if as_json:
        typer.echo(json.dumps({"profile": str(path), "wrong": wrong, **made.to_dict()}, indent=1))
        return not wrong
    from rich.console import Console

    from pycoll.tuning.report import print_profile

    console = Console()
    print_profile(made, options.collectives, console)
    if wrong:
        console.print(f"WRONG RESULTS: {wrong} elements differ; nothing was written.", style="bold red")
    else:
        where = "these GPUs" if made.device == "cuda" else "this machine"
        console.print(f"Written to {path}; groups of {made.ranks} ranks on {where} use it.")
    return not wrong


def _merged_with_earlier(path: Path, made: Profile) -> Profile:
    from pycoll import InvalidArgument
    from pycoll.selection.profile import Profile

    if not path.exists():
        return made
    try:
        earlier = Profile.load(path)
    except InvalidArgument:
        return made
    same = (earlier.machine, earlier.ranks, earlier.version) == (made.machine, made.ranks, made.version)
    return earlier.merged_with(made) if same else made


def _tune_gpus(
    options: TuneOptions, ranks: int | None, path: Path | None, check: bool, as_json: bool
) -> None:
    from pycoll import Unsupported, launchers
    from pycoll.gpu import tuning
    from pycoll.selection.profile import Profile, default_path

    if options.collectives != ("allreduce",):
        raise Unsupported(f"--device cuda measures allreduce, not {', '.join(options.collectives)}")
    found = tuning.run(ranks, options, check, None if path is None else str(path))
    wrong = sum(case.wrong for case in found.measured)
    if launchers.place().rank != 0:
        if wrong:
            raise typer.Exit(1)
        return
    for reason in found.left_out:
        typer.secho(f"Left out: {reason}", fg="yellow", err=True)
    joined = job_size() or ranks
    count = joined or tuning.default_ranks()
    if found.earlier is not None:
        passed = _check(found.earlier, count, found.measured, as_json)
    else:
        timings = (timing for case in found.measured for timing in case.timings())
        made = Profile.of(found.machine, count, timings, found.wiring)
        passed = _keep(made, options, wrong, path or default_path(count, found.machine), as_json)
    if not passed:
        raise typer.Exit(1)


def _check(earlier: Profile, ranks: int, measured: list[Measured], as_json: bool) -> bool:
    from pycoll.tuning.check import summary, verdicts

    rows = verdicts(earlier, measured)
    total = summary(rows)
    if as_json:
        typer.echo(json.dumps({"rows": [asdict(row) for row in rows], "summary": total.to_dict()}, indent=1))
    else:
        from rich.console import Console

        from pycoll.tuning.report import print_verdicts

        print_verdicts(rows, total, ranks, Console())
    return total.passed
