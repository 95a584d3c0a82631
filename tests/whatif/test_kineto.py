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


def test_the_last_rank_counts_by_its_whole_way(tmp_path: Path) -> None:
    """Rank 1 is 2 ms later into backward, and 2 ms sooner done with the rest: neither waits for the other."""
    second = trace(tmp_path / "1.json", later=2_000)
    document = json.loads(second.read_text())
    for each in document["traceEvents"]:
        if each["name"] == "gloo:all_reduce":
            each["dur"] += 2_000
    second.write_text(json.dumps(document))
    found = read_traces([trace(tmp_path / "0.json"), second])
    ways = [layer.backward for layer in reversed(found.workload.layers)]
    # Medians of both ranks: 10 ms forward, 7 ms of the rest; each has the first bucket 23 ms after the sum.
    assert (found.workload.layers[0].forward, found.workload.step) == pytest.approx((0.010, 0.007))
    assert ways == pytest.approx([0.006, 0.015, 0.005])


def test_traces_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="No such file"):
        read_traces([tmp_path / "missing.json"])
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(InvalidArgument, match=r"is no trace of torch\.profiler"):
        read_traces([tmp_path / "x.json"])
    with pytest.raises(InvalidArgument, match="trace three steps or more"):
        read_traces([trace(tmp_path / "short.json", steps=1)])
    (tmp_path / "gpu.json").write_text(json.dumps({"traceEvents": [event("k", 0, 1) | {"cat": "kernel"}]}))
    with pytest.raises(InvalidArgument, match=r"0 steps of the profiler on the GPU"):
        read_traces([tmp_path / "gpu.json"])


def test_execution_traces_are_refused_with_a_remedy(tmp_path: Path) -> None:
    observed = tmp_path / "observed.json"
    observed.write_text(json.dumps({"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": []}))
    for read in (lambda: read_traces([observed]), lambda: whatif.Workload.load("chakra.0.et")):
        with pytest.raises(Unsupported, match=r"torch\.profiler takes of the same steps"):
            read()


def gpu_trace(path: Path, kernel: str = "ncclDevKernel_AllReduce_Sum_f16_RING_LL(...)") -> Path:
    """A step of 100 ms: 10 ms forward, 25 ms backward with buckets ready 15 and 30 ms in, of which the second
    waits for the first one's sending until 52 ms and ends at 60; then 8 ms optimizer."""
    events: list[dict[str, Any]] = []

    def on_gpu(name: str, ts: float, dur: float, launch: float, **args: Any) -> None:
        number = len(events)
        events.append(event("cudaLaunchKernel", launch, 5, correlation=number) | {"cat": "cuda_runtime"})
        events.append(event(name, ts, dur, correlation=number, **args) | {"cat": "kernel"})

    for step in range(5):
        at = 1e6 + step * PERIOD
        events.append(event(f"ProfilerStep#{step}", at, PERIOD - 10) | {"cat": "gpu_user_annotation"})
        record = {"Collective name": "allreduce", "dtype": "Half"}
        # The host launches everything within the first milliseconds.
        on_gpu("gemm", at, 15_000, at + 100)
        on_gpu(kernel, at + 15_000, 37_000, at + 200, **record, **{"In msg nelems": 1_000_000})
        on_gpu("gemm", at + 15_000, 15_000, at + 300)
        on_gpu(kernel, at + 52_000, 8_000, at + 400, **record, **{"In msg nelems": 250_000})
        on_gpu("gemm", at + 30_000, 5_000, at + 500)
        on_gpu("adam", at + 60_000, 8_000, at + 600)
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def test_a_step_on_gpus(tmp_path: Path) -> None:
    found = read_traces([gpu_trace(tmp_path / "0.json")])
    work = found.workload
    assert found.measured == pytest.approx(0.1)
    assert found.steps == 3
    assert [layer.bytes for layer in work.layers] == [0, 500_000, 2_000_000]
    # The second bucket was ready at 30 ms, though its kernel came to run at 52.
    assert [layer.backward for layer in work.layers] == pytest.approx([0.005, 0.015, 0.015])
    assert work.step == pytest.approx(0.040)  # the optimizer's 8 ms, and 32 without anything
    step = whatif.iterate(Topology.flat(2, 1e8), work, algorithm="ring")
    assert step.time == pytest.approx(0.015 + 0.020 + 0.005 + 0.040)


def test_traces_of_other_jobs_on_gpus(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="ncclDevKernel_AllGather: of traces from GPUs"):
        read_traces([gpu_trace(tmp_path / "0.json", "ncclDevKernel_AllGather(...)")])
    document = json.loads(gpu_trace(tmp_path / "1.json").read_text())
    for each in document["traceEvents"]:
        each["args"].pop("dtype", None)
    (tmp_path / "1.json").write_text(json.dumps(document))
    with pytest.raises(InvalidArgument, match="no record of what they send"):
        read_traces([tmp_path / "1.json"])
