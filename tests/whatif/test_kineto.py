"""Traces of torch.profiler: a step's buckets and times, exactly, from a trace that is written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pycoll import InvalidArgument, Topology, Unsupported, whatif
from pycoll.whatif.kineto import read_traces

PERIOD = 100_000.0  # us


def event(name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": name, "ts": ts, "dur": dur, "args": args}


def trace(path: Path, later: float = 0.0, steps: int = 4) -> Path:
    """A step: 10 ms forward, buckets ready 5 and 20 ms into a backward of 25 ms, sent in 30 ms, 8 ms of
    other work."""
    events = []
    for step in range(steps + 1):
        at = 1e6 + step * PERIOD
        events.append(event("DistributedDataParallel.forward", at, 10_000))
        back = at + 10_000
        for ready, count in ((5_000 + later, 1_000_000), (20_000 + later, 250_000)):
            shapes = {"Input Dims": [[[count]], []], "Input type": ["TensorList", ""]}
            events.append(event("c10d::allreduce_", back + ready, 10, **shapes))
            shapes = {"Input Dims": [[count]], "Input type": ["c10::Half"]}
            events.append(event("gloo:all_reduce", back + 50_000, 32_000, **shapes))
        events.append(event("autograd::engine::evaluate_function: AddmmBackward0", back, 25_000))
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def test_a_step(tmp_path: Path) -> None:
    found = read_traces([trace(tmp_path / "0.json"), trace(tmp_path / "1.json", later=2_000)])
    work = found.workload
    assert found.measured == pytest.approx(0.1)
    assert (found.steps, found.ranks) == (3, 2)
    assert [layer.bytes for layer in work.layers] == [0, 500_000, 2_000_000]
    assert [layer.backward for layer in work.layers] == pytest.approx([0.003, 0.015, 0.007])
    assert work.layers[0].forward == pytest.approx(0.01)
    assert work.step == pytest.approx(0.008)
    step = whatif.iterate(Topology.flat(2, 1e8), work, algorithm="ring")
    # 2 MB take 20 ms from 7 ms on, 0.5 MB 5 ms after that: 32 ms, then the rest and forward.
    assert step.time == pytest.approx(0.007 + 0.020 + 0.005 + 0.008 + 0.010)


def test_traces_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="No such file"):
        read_traces([tmp_path / "missing.json"])
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(InvalidArgument, match=r"is no trace of torch\.profiler"):
        read_traces([tmp_path / "x.json"])
    with pytest.raises(InvalidArgument, match="trace three steps or more"):
        read_traces([trace(tmp_path / "short.json", steps=1)])
    (tmp_path / "gpu.json").write_text(json.dumps({"traceEvents": [event("k", 0, 1) | {"cat": "kernel"}]}))
    with pytest.raises(Unsupported, match="only those of jobs on CPUs"):
        read_traces([tmp_path / "gpu.json"])
