"""Draws what `peers.py --json` measured: time and bus bandwidth against size, a line for each library.

python benchmarks/peers.py --json results.json
python benchmarks/picture.py results.json docs/images/allreduce.png
"""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Annotated, Any

import typer
from comparison.libraries import all_libraries

from pycoll.bench import plot
from pycoll.bench.results import Row, bus_factor


def bench_row(ranks: int, state: Any, size: int, library: str, measured: list[dict[str, Any]]) -> Row:
    """The median over runs, as a row of `pycoll bench` would have it."""
    median = statistics.median(row["median_us"] for row in measured) * 1e-6
    algbw = size / median / 1e9
    return Row(
        collective="allreduce",
        bytes=size,
        count=size // 4,
        dtype="float32",
        op="sum",
        root=0,
        library=library,
        interface="C++",
        algorithm="",
        algorithm_chosen=True,
        pieces=0,
        in_place=True,
        zero_copy=False,
        iterations=sum(row["samples"] for row in measured),
        batch=measured[0]["calls_per_sample"],
        min_s=min(row["min_us"] for row in measured) * 1e-6,
        median_s=median,
        p99_s=max(row["p99_us"] for row in measured) * 1e-6,
        algbw_gb_s=algbw,
        busbw_gb_s=algbw * bus_factor("allreduce", ranks),
        wrong=sum(row["wrong"] for row in measured),
        state=state,
        probe_before_ns=min(row["probe_min_ns"] for row in measured),
        probe_after_ns=max(row["probe_max_ns"] for row in measured),
    )


def main(
    results: Annotated[Path, typer.Argument(help="What peers.py --json wrote.")],
    picture: Annotated[Path, typer.Argument(help="FILE.png, .svg or .pdf.")],
    ranks: Annotated[int, typer.Option(help="Rows of so many ranks.")] = 2,
    state: Annotated[str, typer.Option(help="Rows measured in this state of the machine.")] = "near",
) -> None:
    """Draw time and bus bandwidth against size, a line for each library."""
    document = json.loads(results.read_text())
    titles = {library.name: library.title for library in all_libraries(None)}
    measured = defaultdict(list)
    for row in document["rows"]:
        if row["ranks"] == ranks and row["state"] == state and row["samples"]:
            measured[row["library"], row["bytes"]].append(row)
    # pycoll first: its lines keep their colours whatever peers there are.
    order = sorted(measured, key=lambda key: (not key[0].startswith("pycoll"), key))
    rows = [bench_row(ranks, state, size, name, measured[name, size]) for name, size in order]
    rows = [dataclasses.replace(row, library=titles.get(row.library, row.library)) for row in rows]
    if not rows:
        raise typer.BadParameter(f"{results} has no row of {ranks} ranks in the state {state}")
    machine = document["stamp"]["machine"].split(";")[0]
    day = document["stamp"]["date"][:10]
    title = f"AllReduce of float32, in place, {ranks} ranks on one host ({machine}), {day}"
    plot.draw(rows, picture, title)
    typer.echo(f"wrote {picture}")


if __name__ == "__main__":
    typer.run(main)
