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
    from pycoll.profile import Profile
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

    Exit code: 0 if everything was right; with --check, only if the regret is at most 5% in the median and 15%
    at every size, and the error at most 20% in the median.

    Examples:

        pycoll tune --ranks 2

        pycoll tune all --ranks 4 --budget 10m

        pycoll tune --ranks 2 --check

        torchrun --nproc-per-node 2 --no-python pycoll tune
    """
    from pycoll import launchers
    from pycoll.profile import Profile, default_path

    names = [*(collectives or []), *split(collective)] or ["allreduce"]
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
        passed = _check(options, measured, as_json) if check else _keep(options, measured, path, as_json)
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


def _keep(options: TuneOptions, measured: list[Measured], path: Path, as_json: bool) -> bool:
    from pycoll.profile import Profile

    wrong = sum(case.wrong for case in measured)
    made = Profile.of_here(options.ranks, (timing for case in measured for timing in case.timings()))
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
        console.print(f"Written to {path}; groups of {options.ranks} ranks on this machine use it.")
    return not wrong


def _merged_with_earlier(path: Path, made: Profile) -> Profile:
    from pycoll import InvalidArgument
    from pycoll.profile import Profile

    if not path.exists():
        return made
    try:
        earlier = Profile.load(path)
    except InvalidArgument:
        return made
    same = (earlier.machine, earlier.ranks, earlier.version) == (made.machine, made.ranks, made.version)
    return earlier.merged_with(made) if same else made


def _check(options: TuneOptions, measured: list[Measured], as_json: bool) -> bool:
    from pycoll.tuning.check import summary, verdicts

    assert options.check is not None
    rows = verdicts(options.check, measured)
    total = summary(rows)
    if as_json:
        typer.echo(json.dumps({"rows": [asdict(row) for row in rows], "summary": total.to_dict()}, indent=1))
    else:
        from rich.console import Console

        from pycoll.tuning.report import print_verdicts

        print_verdicts(rows, total, options.ranks, Console())
    return total.passed
