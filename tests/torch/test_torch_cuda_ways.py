"""Which way an all_reduce of CUDA tensors goes: PYCOLL_ALGO, what `pycoll tune --device cuda` measured, and
the fixed bounds where neither says anything; on the stand-in for the GPU."""

from __future__ import annotations

import pytest

from pycoll.errors import InvalidArgument, Unsupported
from pycoll.gpu.machine import GpuMachine
from pycoll.selection.profile import Profile, Timing
from pycoll.torch import gpu_ways

PLACES = ["Fake GPU\n0"] * 3


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch):
    for name in ("PYCOLL_ALGO", "PYCOLL_CUDA_PROFILE", "PYCOLL_PROFILE", "PYCOLL_DETERMINISTIC"):
        monkeypatch.delenv(name, raising=False)


def _profile(path, winner: str, second: str, gpu: str = "Fake GPU") -> str:
    timings = [
        Timing("allreduce", size, "float32", way, seconds, seconds, 9, seconds, {}, "one_shot")
        for size in (64, 16384, 1 << 20)
        for way, seconds in ((winner, 0.1), (second, 0.5), ("one_shot", 1.0))
    ]
    Profile.of(GpuMachine(gpu, 1, "one gpu"), 3, timings).save(path)
    return str(path)


def _rows(text: str) -> list[list[str]]:
    return [line.split("\t") for line in text.splitlines()]


def test_nothing_is_asked_for():
    assert gpu_ways.table(PLACES) == ""


def test_pins(monkeypatch):
    monkeypatch.setenv(
        "PYCOLL_ALGO",
        "cuda:allreduce:0-64k=two_shot,cuda:allreduce:64k-=ring/6,cpu:allreduce=tree,broadcast=ring",
    )
    rows = _rows(gpu_ways.table(PLACES))
    assert [row[:5] for row in rows] == [
        ["0", "65536", "any", "pin", "two_shot"],
        ["65536", "", "any", "pin", "ring/6"],
    ]
    assert "PYCOLL_ALGO" in rows[0][5]


def test_pins_of_what_the_backend_does_not_run(monkeypatch):
    monkeypatch.setenv("PYCOLL_ALGO", "cuda:allreduce=nccl")
    with pytest.raises(Unsupported, match=r"PYCOLL_ALGO.* nccl does not run in the torch backend"):
        gpu_ways.table(PLACES)
    monkeypatch.setenv("PYCOLL_ALGO", "cuda:allreduce=nvls")
    with pytest.raises(Unsupported, match="nvls does not run in the torch backend"):
        gpu_ways.table(PLACES)
    monkeypatch.setenv("PYCOLL_ALGO", "cuda:allreduce=zigzag")
    with pytest.raises(InvalidArgument, match="zigzag"):
        gpu_ways.table(PLACES)


def test_measurements(monkeypatch, tmp_path):
    monkeypatch.setenv("PYCOLL_CUDA_PROFILE", _profile(tmp_path / "one.json", "ring/3", "two_shot"))
    rows = _rows(gpu_ways.table(PLACES))
    assert rows
    assert all(row[3] == "measured" and row[4].split(",")[0] == "ring/3" for row in rows)
    monkeypatch.setenv("PYCOLL_ALGO", "cuda:allreduce:0-1k=one_shot")  # a pin goes before
    assert _rows(gpu_ways.table(PLACES))[0][3:5] == ["pin", "one_shot"]
    monkeypatch.delenv("PYCOLL_ALGO")
    monkeypatch.setenv("PYCOLL_DETERMINISTIC", "1")  # the fixed bounds alone
    assert gpu_ways.table(PLACES) == ""
    monkeypatch.delenv("PYCOLL_DETERMINISTIC")
    monkeypatch.setenv("PYCOLL_CUDA_PROFILE", _profile(tmp_path / "two.json", "nccl", "two_shot"))
    for row in _rows(gpu_ways.table(PLACES)):  # the best of those that it runs
        assert row[4].split(",")[0] == "two_shot"
    monkeypatch.setenv(
        "PYCOLL_CUDA_PROFILE", _profile(tmp_path / "other.json", "ring/3", "two_shot", "Other GPU")
    )
    with pytest.raises(InvalidArgument, match="another machine"):
        gpu_ways.table(PLACES)


def test_the_backend_goes_by_the_table(gpu_ranks, tmp_path):
    def body(profile):
        import os

        import fake_gpu
        import torch
        import torch.distributed as dist

        def ways(*sizes, dtype=torch.float32):
            found = []
            for size in sizes:
                x = torch.ones(size, dtype=dtype, device="fakegpu")
                dist.all_reduce(x, group=group)
                assert x.cpu().unique().tolist() == [3.0]
                found.append(fake_gpu.last_way())
            return found

        def group_with(**settings):
            os.environ.update(settings)
            try:
                made = dist.new_group(backend="pycoll_fake")
                made._get_backend(torch.device("fakegpu")).eager_connect_single_device(
                    torch.device("fakegpu", 0)
                )
            finally:
                for name in settings:
                    del os.environ[name]
            return made

        one_shot, two_shot, beyond = "kernel 0", "kernel 1", "3 pieces, 2 rounds"
        group = group_with()
        assert ways(5, 3000) == [one_shot, beyond]
        dist.destroy_process_group(group)

        group = group_with(PYCOLL_ALGO="cuda:allreduce:0-100=two_shot,cuda:allreduce:100-200=ring/6")
        assert ways(5, 30, 60, 3000) == [two_shot, "6 pieces, 4 rounds", one_shot, beyond]
        fake_gpu.synchronize()
        x = torch.zeros(30, device="fakegpu")
        with torch.Stream(device="fakegpu"):
            fake_gpu.synchronize()
            fake_gpu.begin_capture()
            dist.all_reduce(x, group=group)  # its memory was taken when the group was opened
            fake_gpu.end_capture()
        dist.destroy_process_group(group)

        group = group_with(PYCOLL_ALGO="cuda:allreduce=one_shot")
        with pytest.raises(
            ValueError, match=r"PYCOLL_ALGO.*one_shot does not run for 3000 elements of float32"
        ):
            dist.all_reduce(torch.ones(3000, device="fakegpu"), group=group)
        dist.destroy_process_group(group)

        group = group_with(PYCOLL_CUDA_PROFILE=profile)
        assert ways(5, 3000) == ["3 pieces, 4 rounds"] * 2
        dist.destroy_process_group(group)

        os.environ["PYCOLL_ALGO"] = "cuda:allreduce=nccl"
        group = dist.new_group(backend="pycoll_fake")
        with pytest.raises(
            dist.DistError, match=r"rank 0: PYCOLL_ALGO.* nccl does not run in the torch backend"
        ):
            dist.all_reduce(torch.ones(3, device="fakegpu"), group=group)
        del os.environ["PYCOLL_ALGO"]
        dist.destroy_process_group(group)

    gpu_ranks(3, body, _profile(tmp_path / "one.json", "ring/3", "two_shot"))
