"""`pycoll bench`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from pycoll.cli._app import fail, split

if TYPE_CHECKING:
    from pycoll.bench.options import BenchOptions
    from pycoll.bench.results import Report


def bench(
    collectives: Annotated[
        Optional[list[str]],  # noqa: UP045  typer reads it at run time, on Python 3.10 too
        typer.Argument(
            help="allreduce (the default), reduce_scatter, all_gather, broadcast, reduce, gather, scatter, "
            "all_to_all, "
            "barrier, or all.",
            show_default=False,
        ),
    ] = None,
    ranks: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            "--ranks",
            "-n",
            min=1,
            help="Processes to start. Default: one a processor, 2 to 8.",
            show_default=False,
        ),
    ] = None,
    collective: Annotated[
        str, typer.Option("--collective", "-c", help="The same as the argument; separate several by commas.")
    ] = "",
    sizes: Annotated[
        str,
        typer.Option(
            "--sizes",
            "-s",
            help="A list and ranges: 4B,64KiB or 4B:256MiB:x4 or 1MiB:4MiB:+1MiB. The bytes of the larger "
            "of a rank's "
            "two buffers, as in nccl-tests.",
        ),
    ] = "4B:256MiB:x4",
    dtype: Annotated[
        str, typer.Option("--dtype", "-d", help="float32, bfloat16, int8, complex64, ...")
    ] = "float32",
    op: Annotated[str, typer.Option("--op", "-o", help="sum, avg, prod, min, max, band, bor, bxor.")] = "sum",
    root: Annotated[int, typer.Option(help="Root of broadcast, reduce, gather and scatter.")] = 0,
    algorithm: Annotated[
        str,
        typer.Option(
            "--algorithm",
            "-a",
            help="Names from `pycoll algorithms`, separated by commas, or all; auto is the engine's own "
            "choice.",
        ),
    ] = "auto",
    pieces: Annotated[
        int,
        typer.Option(min=0, help="Pieces that the named algorithms cut the buffer in; 0: their own number."),
    ] = 0,
    in_place: Annotated[
        bool,
        typer.Option(
            "--in-place/--out-of-place", help="Whether the result overwrites the input, where it can."
        ),
    ] = True,
    zero_copy: Annotated[
        bool, typer.Option("--zero-copy", help="Use buffers in shared memory, made by Communicator.empty.")
    ] = False,
    vs: Annotated[
        str,
        typer.Option(
            "--vs",
            help="gloo, mpi or both: measure them in the same processes, in turns. gloo is compared through "
            "torch.distributed, MPI on NumPy arrays through mpi4py. With --device cuda: nccl.",
        ),
    ] = "",
    device: Annotated[
        str,
        typer.Option(
            help="cpu, or cuda: allreduce on GPUs, a process each, timed by the GPU's clock. --algorithm "
            "takes one_shot and two_shot too; of the other options --ranks, --sizes, --dtype, --op, --vs and "
            "--json count."
        ),
    ] = "cpu",
    iters: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--iters", "-i", min=1, help="Iterations of each size. Default: as --budget allows."),
    ] = None,
    warmup: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            "--warmup", "-w", min=0, help="Iterations before them. Default: up to 5, for 0.2 seconds at most."
        ),
    ] = None,
    budget: Annotated[
        float, typer.Option(help="Seconds that a size may take, all libraries together.")
    ] = 1.0,
    blocks: Annotated[
        int, typer.Option(min=1, help="Blocks that the iterations are cut in; libraries take turns by block.")
    ] = 5,
    state: Annotated[
        str,
        typer.Option(
            help="near or far: keep only what was measured while the processors were in this state (see "
            "below), and "
            "wait for it up to six times as long."
        ),
    ] = "",
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="Compare every element with the right one.")
    ] = True,
    late: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(
            "--late",
            help="Let ranks come late: RANK:TIME[,RANK:TIME...], such as 3:5ms, or any:5ms for another one "
            "in each iteration. May be given several times: each is measured by itself, and --plot draws "
            "time against lateness.",
            show_default=False,
        ),
    ] = None,
    late_dist: Annotated[
        str,
        typer.Option(
            "--late-dist",
            help="Every rank comes late by a draw of its own: lognormal:3ms (the median), exponential:3ms "
            "(the mean), uniform:3ms (the latest) or normal:3ms.",
        ),
    ] = "",
    seed: Annotated[
        int, typer.Option(help="Of the data, and of the order in which libraries take turns.")
    ] = 0,
    timeout: Annotated[float, typer.Option(help="Seconds that a collective may take.")] = 60.0,
    json_file: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--json", help="Write everything to this file; - is stdout, in place of the table."),
    ] = None,
    csv_file: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--csv", help="Write a line a measurement, each with date, machine, versions and state."
        ),
    ] = None,
    plot: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Draw time and bus bandwidth against size: FILE.png, .svg or .pdf."),
    ] = None,
) -> None:
    """Time collectives, and check every element of every result.

    Starts the ranks itself; under torchrun, srun or mpirun it joins the job instead, on one host or many.

    In each iteration every rank rewrites its buffer, all meet in a barrier, and the call is timed; an
    iteration's time is its *slowest* rank's. Shown are min, median and 99th percentile over iterations,
    **algbw** = size / median, and **busbw**, which nccl-tests' factor makes comparable between collectives
    and numbers of ranks. **#wrong** counts elements that differ from the exact result.

    **state** says how far apart the processors were, by a probe before and after each block of iterations:
    *near* (a cache line takes less than 70 ns from core to core: one shared cache) or *far*. Virtual machines
    change state while you look, and that alone makes a factor of several: compare rows of one state only.

    Exit code: 0 if everything ran and no element was wrong, 1 if not, 2 for a request that makes no sense.

    Examples:

        pycoll bench --ranks 2

        pycoll bench --ranks 4 --vs gloo --sizes 4B,64KiB,1MiB,16MiB --csv results.csv --plot results.png

        pycoll bench --ranks 4 --sizes 64MiB --late any:0 --late any:20ms --late any:100ms --plot late.png

        pycoll bench all_gather --algorithm all --sizes 1KiB:16MiB:x16

        torchrun --nproc-per-node 2 --no-python pycoll bench
    """
    for path in (json_file, csv_file, plot):
        if path is not None and str(path) != "-" and not path.parent.is_dir():
            fail(f"{path} cannot be written: there is no folder {path.parent}")
    names = [*(collectives or []), *split(collective)] or ["allreduce"]
    if device != "cpu":
        _bench_gpus(device, names, ranks, sizes, dtype, op, algorithm, vs, timeout, json_file)
        return
    options = _bench_options(
        names=names,
        ranks=ranks,
        sizes=sizes,
        dtype=dtype,
        op=op,
        root=root,
        algorithm=algorithm,
        pieces=pieces,
        in_place=in_place,
        zero_copy=zero_copy,
        vs=vs,
        iters=iters,
        warmup=warmup,
        budget=budget,
        blocks=blocks,
        state=state,
        check=check,
        seed=seed,
        timeout=timeout,
        late=late or [],
        late_dist=late_dist,
    )
    report = _run_bench(options)
    from pycoll import launchers

    if launchers.place().rank == 0:
        _deliver(report, json_file, csv_file, plot)
    if not report.succeeded:
        raise typer.Exit(1)


def _bench_gpus(
    device: str,
    collectives: list[str],
    ranks: int | None,
    sizes: str,
    dtype: str,
    op: str,
    algorithm: str,
    vs: str,
    timeout: float,
    json_file: Path | None,
) -> None:
    from pycoll import InvalidArgument, Unsupported
    from pycoll.bench import gpu
    from pycoll.bench.units import parse_sizes

    if device != "cuda":
        raise InvalidArgument(f"--device is cpu or cuda, not {device!r}")
    if collectives != ["allreduce"]:
        raise Unsupported(f"--device cuda measures allreduce, not {', '.join(collectives)}")
    if set(split(vs)) - {"nccl"}:
        raise Unsupported(f"--device cuda is compared with nccl, not with {vs}")
    options = gpu.GpuOptions(
        sizes=tuple(parse_sizes(sizes)),
        dtype=dtype,
        op=op,
        algorithms=tuple("" if name == "auto" else name for name in split(algorithm)),
        nccl="nccl" in split(vs),
    )
    rows = gpu.run(ranks, options, timeout)
    if str(json_file) == "-":
        typer.echo(gpu.to_json(rows), nl=False)
    else:
        gpu.print_rows(rows)
        if json_file is not None:
            json_file.write_text(gpu.to_json(rows))
    if not rows or any(row.wrong for row in rows):
        raise typer.Exit(1)


def _bench_options(
    *,
    names: list[str],
    ranks: int | None,
    sizes: str,
    dtype: str,
    op: str,
    root: int,
    algorithm: str,
    pieces: int,
    in_place: bool,
    zero_copy: bool,
    vs: str,
    iters: int | None,
    warmup: int | None,
    budget: float,
    blocks: int,
    state: str,
    check: bool,
    seed: int,
    timeout: float,
    late: list[str],
    late_dist: str,
) -> BenchOptions:
    """Turns words into values, and says at once which of them make no sense."""
    from pycoll import InvalidArgument, algorithms, launchers
    from pycoll.bench.environment import available_memory, usable_cpus
    from pycoll.bench.lateness import parse_late, parse_late_dist
    from pycoll.bench.options import BenchOptions
    from pycoll.bench.units import format_size, parse_sizes
    from pycoll.bench.workload import COLLECTIVES

    joined = job_size()
    if joined is not None and ranks not in (None, joined):
        raise InvalidArgument(f"--ranks {ranks}: this job has {joined} ranks already; leave --ranks out")
    ranks = joined or ranks or min(max(usable_cpus(), 2), 8)
    wanted = list(dict.fromkeys(COLLECTIVES if "all" in names else names))
    known = algorithms()
    chosen = list(dict.fromkeys(split(algorithm)))
    if "all" in chosen:
        chosen = [
            name
            for name, info in known.items()
            if info.accepts(ranks) and set(info.collectives) & set(wanted)
        ]
    else:
        for name in chosen:
            _require_suitable(name, wanted, ranks)
    if pieces and "auto" in chosen:
        raise InvalidArgument("--pieces needs --algorithm to go with")
    largest = max(parse_sizes(sizes))
    here = launchers.place().local_ranks or ranks
    if here * largest > (available := available_memory()):
        raise InvalidArgument(
            f"--sizes: {here} ranks with buffers of {format_size(largest)} do not fit in the "
            f"{format_size(available)} of memory that this machine has left"
        )
    latenesses = [parse_late(text, ranks) for text in late]
    if late_dist:
        latenesses.append(parse_late_dist(late_dist))
    if state not in ("", "near", "far"):
        raise InvalidArgument(f"--state is near or far, not {state!r}")
    return BenchOptions(
        collectives=tuple(wanted),
        sizes=tuple(parse_sizes(sizes)),
        ranks=ranks,
        dtype=dtype,
        op=op,
        root=root,
        algorithms=tuple("" if name == "auto" else name for name in chosen),
        pieces=pieces,
        in_place=in_place,
        zero_copy=zero_copy,
        peers=tuple(dict.fromkeys(split(vs))),
        iterations=iters,
        warmup=warmup,
        budget=budget,
        blocks=blocks,
        state="near" if state == "near" else "far" if state == "far" else None,
        check=check,
        seed=seed,
        timeout=timeout,
        latenesses=tuple(latenesses),
        lenient="all" in split(algorithm),
        progress=sys.stderr.isatty(),
    )


def _require_suitable(name: str, collectives: list[str], ranks: int) -> None:
    from pycoll import InvalidArgument, Unsupported, algorithms

    known = algorithms()
    if name == "auto":
        return
    if name not in known:
        raise InvalidArgument(f"there is no algorithm {name!r}; there are: auto, {', '.join(known)}")
    info = known[name]
    lacking = [collective for collective in collectives if collective not in info.collectives]
    if lacking:
        raise Unsupported(f"{name} does not do {', '.join(lacking)}; it does {', '.join(info.collectives)}")
    if not info.accepts(ranks):
        raise Unsupported(f"{name} does not run on {ranks} ranks; it takes: {info.valid_ranks}")


def job_size() -> int | None:
    """The number of ranks of the job that this process was started in; None where it is not part of one."""
    from pycoll import launchers
    from pycoll.bench import mpi_job

    here = launchers.place()
    if not here.launcher:
        return None
    mpi_job.load_where_started_by_mpi(here)
    return here.ranks


def _run_bench(options: BenchOptions) -> Report:
    import pycoll
    from pycoll import launchers
    from pycoll.bench import mpi_job
    from pycoll.bench.runner import join, run_rank

    if launchers.place().launcher:
        return join(options)
    if "mpi" in options.peers:
        return mpi_job.run(options)
    report: Report = pycoll.spawn(run_rank, ranks=options.ranks, args=(options,), timeout=options.timeout)[0]
    return report


def _deliver(report: Report, json_file: Path | None, csv_file: Path | None, plot: Path | None) -> None:
    if str(json_file) == "-":
        typer.echo(report.to_json(), nl=False)
    else:
        from rich.console import Console

        from pycoll.bench.report import print_report

        print_report(report, Console())
        if json_file is not None:
            json_file.write_text(report.to_json())
    if csv_file is not None:
        csv_file.write_text(report.to_csv())
    if plot is not None and report.rows:
        from pycoll.bench.late_plot import draw_lateness
        from pycoll.bench.plot import draw
        from pycoll.bench.results import title_of

        over_lateness = len({row.late_s for row in report.rows}) > 1
        picture = draw_lateness if over_lateness else draw
        picture(report.rows, plot, title_of(report.environment))
