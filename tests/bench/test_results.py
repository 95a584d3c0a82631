from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
from pathlib import Path

import numpy as np
import pytest

from pycoll import Unsupported, probe
from pycoll.bench import environment, plot
from pycoll.bench.results import Report, Row, bus_factor, rows_from_json, times, with_speedups


def row(**changes: object) -> Row:
    values = {
        "collective": "allreduce", "bytes": 1024, "count": 256, "dtype": "float32", "op": "sum", "root": 0,
        "library": "pycoll", "interface": "torch", "algorithm": "", "algorithm_chosen": True, "pieces": 0,
        "in_place": True, "zero_copy": False, "iterations": 10, "batch": 1, "min_s": 1e-6, "median_s": 2e-6,
        "p99_s": 4e-6, "algbw_gb_s": 0.5, "busbw_gb_s": 0.5, "wrong": 0, "state": "near",
        "probe_before_ns": 30.0, "probe_after_ns": 31.0,
    }  # fmt: skip
    return Row(**(values | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("collective", "factor"),
    [
        ("allreduce", 1.5), ("reduce_scatter", 0.75), ("all_gather", 0.75), ("all_to_all", 0.75),
        ("gather", 0.75), ("scatter", 0.75), ("broadcast", 1.0), ("reduce", 1.0),
    ],
)  # fmt: skip
def test_bus_bandwidth_factors_of_nccl_tests(collective: str, factor: float) -> None:
    assert bus_factor(collective, 4) == factor


def test_statistics_are_of_measured_iterations() -> None:
    found = times(np.arange(1, 201, dtype=np.float64))
    assert found["min_s"] == 1
    assert found["median_s"] == 100.5
    assert found["p99_s"] == 199


def test_a_peer_is_compared_through_the_same_interface_and_in_the_same_state_only() -> None:
    rows = with_speedups(
        [
            row(median_s=2.0, interface="torch"),
            row(median_s=1.0, interface="numpy"),
            row(library="gloo", median_s=20.0),
            row(library="gloo", median_s=20.0, state="far"),
            row(library="mpi", interface="numpy", median_s=3.0),
        ]
    )
    assert [r.pycoll_speedup for r in rows] == [None, None, 10.0, None, 3.0]


def test_json_holds_rows_and_environment_and_reads_back() -> None:
    rows = [row(), row(library="gloo", probe_before_ns=math.nan, wrong=None, state="unknown")]
    report = Report(environment.stamp(2), rows, ["a note"])
    document = json.loads(report.to_json())
    assert document["environment"]["ranks"] == 2
    assert document["rows"][1]["probe_before_ns"] is None
    assert document["notes"] == ["a note"]
    read = rows_from_json(report.to_json())
    assert read[0] == rows[0]
    assert math.isnan(read[1].probe_before_ns)


def test_csv_has_a_line_a_row_with_the_whole_environment() -> None:
    report = Report(environment.stamp(2), [row(), row(library="gloo")])
    lines = list(csv.DictReader(io.StringIO(report.to_csv())))
    assert [line["library"] for line in lines] == ["pycoll", "gloo"]
    fields = {field.name for field in dataclasses.fields(Row)}
    stamp = {
        "date",
        "cpu",
        "cpus",
        "kernel",
        "vector_kernels",
        "python",
        "numpy",
        "torch",
        "pycoll",
        "ranks",
        "command",
    }
    assert set(lines[0]) == fields | stamp
    assert all(lines[0][name] for name in stamp - {"torch"})


def test_only_a_complete_and_right_run_succeeds() -> None:
    assert Report({}, [row()]).succeeded
    assert Report({}, [row(wrong=None)]).succeeded
    assert not Report({}, [row(), row(wrong=1)]).succeeded
    assert not Report({}, [row()], error="PeerLost: rank 1").succeeded
    assert not Report({}, []).succeeded


def test_states() -> None:
    assert probe.state_of(30) == "near"
    assert probe.state_of(145) == "far"
    assert probe.state_of(math.nan) == "unknown"
    assert probe.state_between([30, 40]) == "near"
    assert probe.state_between([30, 145]) == "mixed"
    assert probe.state_between([30, math.nan]) == "mixed"


def test_the_probe_measures_a_plausible_distance() -> None:
    if environment.usable_cpus() < 2:
        assert math.isnan(probe.core_to_core_ns())
    else:
        assert 1 < probe.core_to_core_ns() < 100_000


def test_a_picture_of_many_lines_and_sizes(tmp_path: Path) -> None:
    rows = [
        row(
            collective=collective,
            algorithm=name,
            algorithm_chosen=False,
            interface="numpy",
            bytes=4 << 2 * i,
            median_s=t,
        )
        for collective in ("allreduce", "all_gather")
        for j, name in enumerate(("ring", "direct", "recursive_doubling", "tree"))
        for i, t in enumerate(np.geomspace(1e-6 * (j + 1), 1e-2, 10))
    ]
    plot.draw(rows, tmp_path / "picture.png", "title")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_no_picture_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="nothing to draw"):
        plot.draw([row(collective="barrier", bytes=0)], tmp_path / "picture.png")
