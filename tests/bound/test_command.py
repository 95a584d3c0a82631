"""`pycoll topo bound`, and the search for the best schedule behind it."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

import pycoll
from pycoll.bounds import best_schedule
from pycoll.cli import app

from .machines import pod, torus


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["topo", "bound", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_table() -> None:
    text = run("wan-pair", "dgx-h100")
    assert "allreduce of 1 GiB" in text
    assert "proved" in text
    assert "hierarchical/" in text


def test_markdown() -> None:
    lines = run("wan-pair", "two_racks", "--markdown").splitlines()
    assert lines[0] == "| topology | ranks | bound | tight | reach | best | takes | share | at |"
    assert lines[2].startswith("| wan-pair | 8 | 8.61 s | proved | 1.000 | hierarchical/")
    assert lines[2].endswith(
        r" | east.h[0-3] \| west.h[0-3] through east.router->west.router, west.router->east.router |"
    )
    assert len(lines) == 4


def test_json() -> None:
    (row,) = json.loads(run("dgx-1v", "--json", "--no-best", "--size", "64MiB"))
    assert row["ranks"] == 8
    assert row["size"] == 64 << 20
    # A pair of GPUs that NVLink joins does not also use PCIe.
    assert row["bandwidth_seconds"] / row["routed_seconds"] == pytest.approx(0.92, abs=0.002)
    assert row["proved_tight"]


def test_nothing_is_asked_for() -> None:
    result = CliRunner().invoke(app, ["topo", "bound"])
    assert isinstance(result.exception, pycoll.InvalidArgument)


@pytest.mark.parametrize(
    ("topology", "least"),
    [
        ("dgx-h100", 0.99),
        ("dgx-a100", 0.99),
        ("mi300x-8", 0.99),
        ("laptop", 0.99),
        ("server-2s", 0.99),
        ("torus-8x8", 0.99),
        ("torus-4x4x4", 0.99),
        ("two_racks", 0.99),
        ("wan-pair", 0.95),
        ("pcie-8gpu", 0.95),
        ("hgx-h100-4-rail", 0.95),
        ("hgx-h100-4-fat-4to1", 0.95),
        ("dgx-1v", 0.90),
    ],
)
def test_best_schedule_of_a_bundled_machine(topology: str, least: float) -> None:
    """docs/bound.md has them all."""
    machine = pycoll.Topology.load(topology)
    best = best_schedule(machine, "allreduce", 2**30, enough=least)
    assert least <= best.share <= 1 + 1e-12
    assert best.schedule.simulate(machine, 2**30).time == best.seconds


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
def test_best_schedule_of_shards(collective: str) -> None:
    assert best_schedule(torus(4, 4), collective, 2**28).share > 0.99
    assert best_schedule(pod(4), collective, 2**30, enough=0.9).share > 0.9


@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
def test_best_schedule_with_a_root(collective: str) -> None:
    assert best_schedule(pod(2, gpus=4), collective, 2**30, root=5, enough=0.85).share > 0.85
    assert best_schedule(torus(4, 4), collective, 2**30, enough=0.85).share > 0.85
