"""benchmarks/gpu_check.py: what it does where a step fails, and its steps' Python on GPUs that are none."""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import pycoll
from pycoll import _core, cuda
from tests.gpu import fake

BENCHMARKS = str(Path(__file__).resolve().parents[2] / "benchmarks")


@pytest.fixture(autouse=True)
def benchmarks_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)


@pytest.fixture
def gpu_check() -> Any:
    return importlib.import_module("gpu_check")


def program(tmp_path: Path, text: str) -> list[str]:
    """A step's process: it gets the file to write into."""
    script = tmp_path / "step.py"
    script.write_text(f"import json, os, signal, sys, time, subprocess\nPATH = sys.argv[1]\n{text}")
    return [sys.executable, str(script), str(tmp_path / "found.json")]


def supervised(gpu_check: Any, tmp_path: Path, text: str, limit: float) -> tuple[dict[str, Any], str]:
    command = program(tmp_path, text)
    found, problem = gpu_check.supervised(
        command, limit, tmp_path / "found.json", tmp_path / "log", os.environ
    )
    return found, problem


KEEP = "open(PATH, 'w').write(json.dumps({'rows': [1], 'wrong': ['x']}))\n"


def test_a_step_that_ends_well(gpu_check: Any, tmp_path: Path) -> None:
    assert supervised(gpu_check, tmp_path, KEEP, 60) == ({"rows": [1], "wrong": ["x"]}, "")


def test_a_step_that_crashes_leaves_what_it_found(gpu_check: Any, tmp_path: Path) -> None:
    text = f"{KEEP}print('CUDA error: an illegal memory access')\nsys.stdout.flush()\nos.abort()\n"
    found, problem = supervised(gpu_check, tmp_path, text, 60)
    assert (found["rows"], found["wrong"]) == ([1], ["x"])
    assert problem == "was killed by SIGABRT; it said last: CUDA error: an illegal memory access"
    found, problem = supervised(gpu_check, tmp_path, "raise SystemExit(3)\n", 60)
    assert problem.startswith("ended with exit code 3")


def test_a_step_that_hangs_is_ended_with_its_children(gpu_check: Any, tmp_path: Path) -> None:
    text = f"""{KEEP}
child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])
print(child.pid)
sys.stdout.flush()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(600)
"""
    found, problem = supervised(gpu_check, tmp_path, text, 8)
    assert found["rows"] == [1]
    assert problem.startswith("was ended after 8 s; it said last: ")
    child = int(problem.rpartition(" ")[2])
    deadline = time.monotonic() + 20
    while _lives(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _lives(child)


def _lives(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def row(library: str = "pycoll", algorithm: str = "auto") -> dict[str, Any]:
    """As measured() makes them."""
    from pycoll.bench.gpu import GpuRow

    made = GpuRow(4096, "float32", "sum", library, algorithm, 5, 50, 1e-6, 2e-6, 1.0, 1.0, 0)
    return {"ranks": 2, **vars(made)}


def test_one_step_stops_no_other_and_the_file_is_always_whole(
    gpu_check: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out.json"
    bandwidth = {**row(), "of_bound": 0.875}
    facts = {"gpu": "GPU", "reason": "", "multiprocessors": 132}
    said: dict[str, tuple[dict[str, Any], str]] = {
        "facts": (facts, ""),
        "kernels right": ({"wrong": ["ring float32 sum"], "notes": ["a note"]}, ""),
        "bandwidth": ({"rows": [bandwidth, row()], "copy_bytes_per_s": 4e12}, "was ended after 45 s"),
        "latency": ({"rows": [row()]}, ""),
        "against NCCL": ({"rows": [row("nccl", "")]}, ""),
        "late rank": ({"rows": [{"ranks": 4, "bytes": 1 << 24, "ring": 1e-3, "late_rank": 5e-4}]}, ""),
        "pools": ({"rows": [{"bytes": 1 << 20, "staging": 1e-3, "pool": 5e-4}]}, ""),
        "sanitizers": ({}, "was killed by SIGSEGV"),
    }
    seen: list[str] = []

    def child(self: Any, name: str) -> Callable[[float], tuple[dict[str, Any], str]]:
        def run(limit: float) -> tuple[dict[str, Any], str]:
            assert 0 < limit <= 110
            assert set(json.loads(path.read_text())["steps"]) == set(seen)
            seen.append(name)
            return said.get(name, ({}, ""))

        return run

    monkeypatch.setattr(gpu_check.Check, "child", child)
    monkeypatch.setattr(gpu_check.Check, "start_compiling", lambda self: None)
    assert gpu_check.main(["--no-build", "--json", str(path)]) == 1
    assert seen == ["facts", *(step.name for step in gpu_check.STEPS)]
    results = json.loads(path.read_text())
    assert results["gpu"] == "GPU"
    assert results["failures"] == [
        "kernels right: ring float32 sum",
        "bandwidth: was ended after 45 s",
        "sanitizers: was killed by SIGSEGV",
    ]
    text = capsys.readouterr().out
    for line in ("4000 GB/s", "a note", "0.88 of the copy bound", "late_rank 0.500 ms", "FAILED:"):
        assert line in text


def test_what_there_is_no_time_for_is_named(
    gpu_check: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_check, "LIMIT", 1.0)
    monkeypatch.setattr(gpu_check.Check, "child", lambda self, name: lambda limit: ({"gpu": "GPU"}, ""))
    monkeypatch.setattr(gpu_check.Check, "start_compiling", lambda self: None)
    path = tmp_path / "out.json"
    assert gpu_check.main(["--no-build", "--json", str(path)]) == 1
    failures = json.loads(path.read_text())["failures"]
    assert failures == [f"{step.name}: left out, the time is up" for step in gpu_check.STEPS]


def test_nothing_is_built_where_there_is_no_gpu(
    gpu_check: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_check, "driver", lambda: False)
    path = tmp_path / "out.json"
    assert gpu_check.main(["--json", str(path)]) == 3
    assert "there is no GPU here" in capsys.readouterr().out
    assert not path.exists()


def test_a_build_that_fails_says_why(gpu_check: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check, "ROOT", tmp_path / "nothing")
    monkeypatch.setattr(gpu_check, "driver", lambda: True)
    path = tmp_path / "out.json"
    assert gpu_check.main(["--json", str(path)]) == 1
    [failure] = json.loads(path.read_text())["failures"]
    assert failure.startswith("build: ended with exit code ")


def test_all_of_it_takes_less_than_six_minutes(gpu_check: Any) -> None:
    """Whatever hangs: the build and the last step have limits of their own inside the whole."""
    assert gpu_check.LIMIT + 15 < 360
    assert gpu_check.BUILD_LIMIT < gpu_check.LIMIT


def test_the_architecture_is_the_gpus(
    gpu_check: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    for said, expected in (
        ("9.0\n9.0\n", "90-real"),
        ("8.0\n10.0\n", "100-real;80-real"),
        ("N/A\n", "native"),
    ):
        tool.write_text(f"#!/bin/sh\nprintf '{said}'\n")
        tool.chmod(0o755)
        assert gpu_check.architecture() == expected


# The steps, on GPUs that are none


class OfTheContract(fake.FakeLibrary):
    """Reduces as processors do, whose contract is the same: every dtype and op."""

    def _run(self, *arguments: Any) -> None:
        self._reduce(arguments[0], "schedule", *arguments[2:8])

    def _packets(self, *arguments: Any) -> None:
        if arguments[7] > self.machine.limits[arguments[1]]:
            raise pycoll.InvalidArgument("a kernel for small buffers takes fewer")
        self._reduce(arguments[0], "packets", *arguments[2:8])

    def _reduce(
        self,
        pointer: Any,
        what: str,
        dtype: int,
        op: int,
        factor: float,
        source: int,
        target: int,
        count: int,
    ) -> None:
        import torch

        group = self.opened[pointer.value]
        world = group.world
        assert world is not None
        name = _core.dtypes()[dtype]
        size = getattr(torch, name).itemsize
        bytes_in = fake._at(source, count * size, np.dtype(np.uint8))
        world.slots[group.rank] = (bytes_in.copy(), factor)
        self.machine.meet(world.barrier, group.rank, fake.Work(what, count * size, group.ranks))
        parts = [part for part, _ in world.slots]
        factors = [factor for _, factor in world.slots]
        total = _reduced(parts, factors, name, cuda.OPS[op])
        world.barrier.wait()
        fake._at(target, count * size, np.dtype(np.uint8))[:] = total

    def _register(self, pointer: Any, address: int, size: int, handle: Any) -> None:
        handle.raw = bytes(len(handle.raw))

    def _register_connect(self, pointer: Any, handles: bytes, made: Any) -> None:
        made._obj.value = 0

    def _unregister(self, pointer: Any, registration: int) -> None:
        pass


def _reduced(parts: list[Any], factors: list[float], dtype: str, op: str) -> Any:
    import torch

    kind = getattr(torch, dtype)

    def rank(comm: pycoll.Communicator) -> Any:
        x = torch.from_numpy(parts[comm.rank].copy()).view(kind)
        if op == "premul_sum":
            comm.allreduce(x, pycoll.premul_sum(factors[comm.rank]))
        else:
            comm.allreduce(x, op)  # type: ignore[arg-type]
        return x.view(torch.uint8).numpy()

    return pycoll.spawn(rank, ranks=len(parts), threads=True)[0]


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> fake.FakeGpus:
    """torch whose GPU is the host."""
    torch = pytest.importorskip("torch")
    machine = fake.FakeGpus(3)
    machine.install(monkeypatch)
    library = OfTheContract(machine)
    for home in ("pycoll.cuda", "pycoll._cuda_memory"):
        monkeypatch.setattr(f"{home}.native", lambda: library)
    stream = SimpleNamespace(synchronize=lambda: None, cuda_stream=7)
    event = SimpleNamespace(record=lambda *_: None, synchronize=lambda: None, elapsed_time=lambda other: 2.0)
    for name, stand_in in {
        "set_device": lambda device: None,
        "Stream": lambda: stream,
        "stream": lambda stream: nullcontext(),
        "current_stream": lambda: stream,
        "synchronize": lambda: None,
        "Event": lambda enable_timing: event,
        "_sleep": lambda cycles: None,
        "mem_get_info": lambda: (0, 0),
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor: tensor.clone())
    monkeypatch.setattr("pycoll._device_arrays.TorchLibrary.on_gpu", lambda self, array: True)
    for name in ("zeros", "full", "empty", "arange"):
        made = getattr(torch, name)
        monkeypatch.setattr(torch, name, lambda *a, _made=made, device=None, **k: _made(*a, **k))
    return machine


def test_the_expected_results_are_those_of_processors(no_gpu: fake.FakeGpus) -> None:
    """And the check of every kernel, dtype and op runs to its end."""
    kernels = importlib.import_module("gpu_kernels")
    arguments = (kernels.DTYPES, kernels.OPS, (37,), ("one_shot", "ring"), 8, "auto", kernels.SharedInputs())
    assert pycoll.spawn(kernels.check_rank, ranks=3, args=arguments, threads=True) == [[], [], []]
    assert [work.what for work in no_gpu.ran] == ["packets", "schedule"] * (8 * 6)


def test_a_kernel_that_goes_wrong_is_named(no_gpu: fake.FakeGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = importlib.import_module("gpu_kernels")
    monkeypatch.setitem(globals(), "_reduced", lambda parts, *_: parts[0])
    arguments = (("float32",), ("max",), (37,), ("two_shot",), 8)
    wrong = pycoll.spawn(kernels.check_rank, ranks=2, args=arguments, threads=True)
    assert wrong[1][0].startswith("two_shot float32 max, 37 elements, rank 1: ")


def test_the_other_steps_run(no_gpu: fake.FakeGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """On small buffers; times are of a made-up clock."""
    import torch

    kernels, times = importlib.import_module("gpu_kernels"), importlib.import_module("gpu_times")
    found = importlib.import_module("gpu_found").Found()
    on_threads = pycoll.spawn
    monkeypatch.setattr("pycoll.bench.gpu.MOST_CALLS", 1)
    for ranks, registered in ((2, False), (2, True)):
        arguments = (1 << 12, 8, registered)
        assert on_threads(kernels.huge_rank, ranks=ranks, args=arguments, threads=True) == [[], []]
    late = on_threads(times.late_rank, ranks=3, args=(1 << 12, 8), threads=True)
    assert late == [dict.fromkeys(("direct_two_shot", "ring", "late_rank"), 0.002)] * 3

    monkeypatch.setattr(pycoll, "spawn", lambda fn, threads, **rest: on_threads(fn, threads=True, **rest))
    monkeypatch.setattr(cuda.Group, "is_shared", lambda group, x: x.numel() == 1024 and not x.any())
    monkeypatch.setattr(cuda.Group, "mem_pool", lambda group: None)
    monkeypatch.setattr(cuda.Group, "share_pool", lambda group: None)
    monkeypatch.setattr(torch.cuda, "use_mem_pool", lambda pool: nullcontext())
    wrong, seconds = on_threads(kernels.pooled_rank, ranks=2, args=(1 << 12, 8), threads=True)[0]
    assert list(seconds) == ["staging", "pool", "one rank without", "registered"]
    assert wrong == ["rank 0: the pool's buffer is not the one that is shared"]  # both look alike here

    for ranks, register in ((2, False), (3, True)):
        options = {"sizes": (64, 1 << 12), "algorithms": ("", "ring", "two_shot"), "register": register}
        times.measured(found, ranks, True, batches=2, **options)
    assert [found_row["algorithm"] for found_row in found["rows"]] == ["auto", "ring", "two_shot"] * 4
    assert not found["wrong"]
    no_gpu.limits = dict.fromkeys(cuda.PACKETS.values(), 100)  # what the kernel does not take is left out
    rows = times.measured(found, 2, True, batches=2, sizes=(64, 1 << 12), algorithms=("ring", "two_shot"))
    assert [(made["bytes"], made["algorithm"]) for made in rows] == [
        (64, "ring"), (64, "two_shot"), (1 << 12, "ring")
    ]  # fmt: skip


def test_nccl_of_before_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    times = importlib.import_module("gpu_times")
    found = importlib.import_module("gpu_found").Found()
    monkeypatch.setattr(times, "nccl_version", lambda: 22809)
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "0")
    times.against_nccl(found)
    assert (found["wrong"], found["rows"]) == ([], [])
    assert "there is 22809" in found["notes"][0]


@pytest.mark.parametrize(
    ("threads", "wrong", "notes"),
    [("ok", [], 2), ("hangs", [], 3), ("wrong", ["memcheck", "racecheck"], 0)],
)
def test_sanitizers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: str, wrong: list[str], notes: int
) -> None:
    """A tool that lets ranks which are threads hang is tried with processes."""
    steps = importlib.import_module("gpu_steps")
    tool = tmp_path / "compute-sanitizer"
    said = {"ok": "exit 0", "hangs": "exec sleep 60", "wrong": "echo ERROR SUMMARY: 1 error; exit 9"}[threads]
    tool.write_text(f'#!/bin/sh\ncase "$*" in *"sanitized threads"*) {said};; esac\nexit 0\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(steps, "SANITIZERS_LIMIT", 5.0)
    found = importlib.import_module("gpu_found").Found()
    steps.sanitizers(found)
    assert [text.split(",")[0] for text in found["wrong"]] == wrong
    assert len(found["notes"]) == notes
    if threads == "wrong":
        assert found["wrong"][0] == "memcheck, ranks as threads: exit code 9: ERROR SUMMARY: 1 error"


def test_a_torch_that_is_not_supported_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from pycoll.torch import build

    gpu_torch = importlib.import_module("gpu_torch")
    monkeypatch.setattr(build, "TORCH", build.TORCH)  # put back
    assert gpu_torch.try_this_torch() == ""
    monkeypatch.setattr(build, "_torch_release", lambda: (2, 11))
    assert "tried nevertheless: " in gpu_torch.try_this_torch()
    assert build.unsupported_torch() == ""
