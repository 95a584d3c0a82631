"""Ranks that are made late to a benchmark's calls."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from pycoll import InvalidArgument
from pycoll.bench.lateness import Lateness, parse_late, parse_late_dist
from pycoll.cli import app


def test_late_ranks_are_read() -> None:
    late = parse_late("3:5ms,0:2 ms", 4)
    assert late.draw(np.random.default_rng(0), 4).tolist() == [0.002, 0, 0, 0.005]
    assert str(late) == "rank 3 5 ms, rank 0 2 ms"
    assert late.seconds == 0.005
    assert not Lateness()


def test_any_rank_is_another_one_each_time() -> None:
    late = parse_late("any:5ms,1:1ms", 4)
    random = np.random.default_rng(0)
    rows = np.array([late.draw(random, 4) for _ in range(50)])
    assert (rows[:, 1] == 0.001).all()
    assert ((rows == 0.005).sum(axis=1) == 1).all()
    assert set(np.argmax(rows, axis=1)) == {0, 2, 3}


@pytest.mark.parametrize("shape", ["lognormal", "exponential", "uniform", "normal"])
def test_distributions(shape: str) -> None:
    late = parse_late_dist(f"{shape}:3ms")
    rows = np.array([late.draw(np.random.default_rng(seed), 1000) for seed in range(3)])
    assert (rows >= 0).all()
    if shape == "lognormal":
        assert np.median(rows) == pytest.approx(0.003, rel=0.1)
    elif shape == "exponential":
        assert rows.mean() == pytest.approx(0.003, rel=0.1)
    elif shape == "uniform":
        assert 0.0029 < rows.max() <= 0.003
    else:
        assert np.sqrt((rows**2).mean()) == pytest.approx(0.003, rel=0.1)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("3", "'3' has no time: write RANK:TIME"),
        ("4:5ms", "there is no rank '4': ranks are 0 to 3, or any"),
        ("1:5", "time '5' has no unit"),
        ("1:5ms,1:6ms", "rank 1 is there twice"),
        ("any:1ms," * 4 + "any:1ms", "makes 5 ranks late, and there are 4"),
    ],
)
def test_what_makes_no_sense(text: str, complaint: str) -> None:
    with pytest.raises(InvalidArgument, match=complaint):
        parse_late(text, 4)


@pytest.mark.parametrize("text", ["3ms", "gauss:3ms", "uniform:0ms"])
def test_distributions_that_make_no_sense(text: str) -> None:
    with pytest.raises(InvalidArgument, match="--late-dist"):
        parse_late_dist(text)


def test_the_command(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found, picture = tmp_path / "late.json", tmp_path / "late.png"
    words = ["bench", "--ranks", "2", "--sizes", "64KiB", "--late", "1:0", "--late", "1:20ms", "--iters", "3"]
    words += ["--blocks", "1", "--warmup", "0", "--json", str(found), "--plot", str(picture)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "rank 1 20 ms" in result.output
    assert "after the last arrival" in " ".join(result.output.split())
    rows = json.loads(found.read_text())["rows"]
    assert {row["late_s"] for row in rows} == {0.0, 0.02}
    for row in rows:
        assert row["total_median_s"] >= row["late_s"]
        assert row["median_s"] <= row["total_median_s"]
    assert picture.stat().st_size > 10000
