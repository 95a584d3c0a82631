"""`pycoll tune --device cuda`, on GPUs that are none: what it finds is what the made-up clock says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import pycoll
from pycoll import cuda, launch
from pycoll.gpu import tuning, ways
from pycoll.gpu.machine import GpuMachine
from pycoll.selection.profile import Machine, Profile, default_path
from pycoll.tuning.check import summary, verdicts
from pycoll.tuning.options import TuneOptions
from tests.gpu.fake import FakeGpus, Work, cost, gpu_array

SIZES = (1 << 10, 1 << 18, 1 << 20)


def options(ranks: int, sizes: tuple[int, ...] = SIZES, budget: float = 60.0) -> TuneOptions:
    return TuneOptions(("allreduce",), sizes, ranks, budget=budget)


def tuned(fake: FakeGpus, patch: pytest.MonkeyPatch, sizes: tuple[int, ...] = SIZES) -> tuning.GpuTuning:
    fake.install(patch)
    found: list[tuning.GpuTuning] = pycoll.spawn(
        tuning.run_rank, ranks=fake.ranks, args=(options(fake.ranks, sizes),), threads=True, timeout=60
    )
    assert [each.measured for each in found] == [found[0].measured] * fake.ranks
    return found[0]


def profile_of(fake: FakeGpus, found: tuning.GpuTuning) -> Profile:
    timings = [timing for case in found.measured for timing in case.timings()]
    return Profile.of(found.machine, fake.ranks, timings, found.wiring)


def on_ranks(fake: FakeGpus, body: Callable[[cuda.Group], Any], **how: Any) -> list[Any]:
    def rank(comm: pycoll.Communicator) -> Any:
        with cuda.Group(comm, **how) as gpus:
            return body(gpus)

    return pycoll.spawn(rank, ranks=fake.ranks, threads=True, timeout=60)


def test_each_size_gets_its_quickest_way(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeGpus(4)
    found = tuned(fake, monkeypatch)
    assert found.machine == GpuMachine("Fake GPU", 4, "unknown")
    assert [case.wrong for case in found.measured] == [0, 0, 0]
    profile = profile_of(fake, found)
    table = profile.decisions()
    assert [table.find("allreduce", size).way for size in SIZES[:2]] == ["one_shot", "two_shot"]
    # A schedule of one round; the kernels move twice the bytes.
    large = table.find("allreduce", SIZES[2])
    assert ways.schedule_of(large.way, 4).rounds == 1
    assert profile.time("allreduce", large.way, SIZES[2]) == pytest.approx(
        cost(Work("schedule", SIZES[2], 4, 0, 1))
    )
    assert large.reason.startswith("20.3 us at 1 MiB; next ")


def test_every_sort_of_ways_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeGpus(3)
    monkeypatch.setattr("pycoll.gpu.selection._wiring", lambda where: pycoll.Topology.load("dgx-h100"))
    found = tuned(fake, monkeypatch, (1 << 10,))
    tried = set(found.measured[0].rounds)
    firsts = {way.partition("/")[0] for way in ways.names(3)}
    assert {"one_shot", "two_shot", "late_rank", "nccl", "nccl:ring", "ring", "direct_two_shot"} <= firsts
    assert {"one_shot", "two_shot"} <= tried  # others are hopeless at this size by this clock
    kinds = {work.what for work in fake.ran}
    assert kinds == {"one_shot", "two_shot", "schedule", "late", "nccl", "group"}


@pytest.mark.parametrize("link", ["unknown", "pcie", "nvlink+pcie", "other"])
def test_no_atomics_are_tried_where_there_may_be_none(link: str) -> None:
    """late_rank's ranks would wait for ever for tickets that PCIe does not draw."""
    assert not [way for way in ways.names(4, link) if way.startswith("late_rank")]
    for joined in ("nvlink", "nvswitch", "nvlink+nvswitch", "one gpu"):
        assert [way for way in ways.names(4, joined) if way.startswith("late_rank")]


def test_a_group_goes_by_what_was_tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL is given the middle sizes, against the fixed bounds."""

    def price(work: Work) -> float:
        return cost(work) / (3 if work.what == "nccl" and work.bytes > 1 << 14 else 1)

    fake = FakeGpus(3, price=price)
    profile = profile_of(fake, tuned(fake, monkeypatch))
    path = default_path(3, profile.machine)
    assert path.name.startswith("cuda-")
    profile.save(path)
    fake.ran.clear()

    def body(gpus: cuda.Group) -> Any:
        results = []
        for size in SIZES:
            x = gpu_array([gpus.rank + 1.0] * (size // 4))
            gpus.allreduce(x)
            assert (x == 1 + 2 + 3).all()
            results.append(gpus.chosen_algorithm(size // 4))
        return results, str(gpus.decisions())

    first, *others = on_ranks(fake, body)
    assert others == [first] * 2
    assert first[0] == ["one_shot", "nccl", "nccl"]
    assert [work.what for work in fake.ran] == ["one_shot", "nccl", "nccl"]
    assert "measured" in first[1]


def test_without_a_profile_the_bounds_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeGpus(2)
    fake.install(monkeypatch)

    def body(gpus: cuda.Group) -> Any:
        assert not gpus.decisions().rows
        for elements in (1 << 8, 1 << 14, 1 << 20):
            x = gpu_array([1] * elements, "int32")
            assert (gpus.allreduce(x, "max") == 1).all()
        return [gpus.chosen_algorithm(elements) for elements in (1 << 8, 1 << 14, 1 << 20)]

    assert on_ranks(fake, body) == [["one_shot", "two_shot", "direct_two_shot"]] * 2
    assert [work.what for work in fake.ran] == ["one_shot", "two_shot", "schedule"]


@pytest.mark.parametrize("way", ["ring", "ring/8", "late_rank", "nccl", "nccl:ring", "nccl:direct", "direct"])
def test_every_name_runs(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeGpus(4)
    fake.install(monkeypatch)

    def body(gpus: cuda.Group) -> bool:
        x = gpu_array(range(100)) * (gpus.rank + 1)
        out = gpu_array([0] * 100)
        assert gpus.allreduce(x, out=out, algorithm=way) is out
        return bool((out == gpu_array(range(100)) * 10).all())

    assert on_ranks(fake, body) == [True] * 4


def test_the_switch_says_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeGpus(2)
    fake.install(monkeypatch)

    def body(gpus: cuda.Group) -> str:
        with pytest.raises(pycoll.Unsupported, match="nvls"):
            gpus.allreduce(gpu_array([1]), algorithm="nvls")
        return gpus.chosen_algorithm(1 << 20)

    assert on_ranks(fake, body) == ["direct_two_shot"] * 2


def test_a_name_that_there_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeGpus(2)
    fake.install(monkeypatch)

    def body(gpus: cuda.Group) -> str:
        with pytest.raises(pycoll.InvalidArgument) as raised:
            gpus.allreduce(gpu_array([1]), algorithm="rng")
        return str(raised.value)

    assert all("no algorithm 'rng'" in text and "one_shot" in text for text in on_ranks(fake, body))


# Profiles belong to their machine


def small_profile(machine: Any, ranks: int = 2) -> Profile:
    from pycoll.selection.profile import Timing

    row = Timing("allreduce", 64, "float32", "nccl", 1e-6, 1.0, 9, 1.0, {}, "one_shot")
    return Profile.of(machine, ranks, [row])


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        (Machine("some CPU", 2, None, "avx2"), "is of processors"),
        (GpuMachine("Other GPU", 2, "unknown"), "another machine (2 x Other GPU, unknown)"),
        (GpuMachine("Fake GPU", 8, "unknown"), "another machine"),
        (GpuMachine("Fake GPU", 2, "nvswitch"), "another machine (2 x Fake GPU, nvswitch)"),
    ],
)
def test_a_profile_of_another_machine_is_refused_on_every_rank(
    machine: Any, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeGpus(2)
    fake.install(monkeypatch)
    path = tmp_path / "other.json"
    small_profile(machine).save(path)
    monkeypatch.setenv("PYCOLL_CUDA_PROFILE", str(path))

    def rank(comm: pycoll.Communicator) -> str:
        with pytest.raises(pycoll.InvalidArgument) as raised:
            cuda.Group(comm)
        return str(raised.value)

    for text in pycoll.spawn(rank, ranks=2, threads=True, timeout=60):
        assert words in text
        assert str(path) in text


def test_a_profile_of_gpus_is_refused_for_processors(tmp_path: Path) -> None:
    path = tmp_path / "gpus.json"
    small_profile(GpuMachine("Fake GPU", 2, "unknown")).save(path)
    with pytest.raises(pycoll.InvalidArgument, match=r"is of GPUs .* PYCOLL_CUDA_PROFILE one of GPUs"):
        Profile.load(path).require_here(2, str(path))


def test_a_profile_left_at_the_default_place_by_other_gpus_is_not_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = FakeGpus(2)
    fake.install(monkeypatch)
    other = GpuMachine("Fake GPU", 2, "nvlink")
    small_profile(other).save(default_path(2, other))
    assert on_ranks(fake, lambda gpus: len(gpus.decisions().rows)) == [0, 0]


def test_profiles_of_processors_from_before_still_load(tmp_path: Path) -> None:
    made = small_profile(Machine.here())
    document = made.to_dict()
    del document["device"]
    for row in document["timings"]:
        del row["reference"]
    path = tmp_path / "old.json"
    path.write_text(json.dumps(document))
    old = Profile.load(path)
    assert old.device == "cpu"
    assert old.timings[0].reference == "direct"


# NCCL may be missing


def test_without_nccl_the_next_best_runs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from pycoll.selection.profile import Timing

    fake = FakeGpus(2, has_nccl=False)
    fake.install(monkeypatch)
    rows = [
        Timing("allreduce", 64, "float32", way, seconds, ratio, 9, ratio, {}, "one_shot")
        for way, seconds, ratio in (("nccl", 1e-6, 0.25), ("two_shot", 2e-6, 0.5), ("one_shot", 4e-6, 1.0))
    ]
    profile = Profile.of(GpuMachine("Fake GPU", 2, "unknown"), 2, rows)
    assert profile.decisions().find("allreduce", 64).way == "nccl"
    assert on_ranks(fake, lambda gpus: gpus.chosen_algorithm(16), profile=profile) == ["two_shot"] * 2
    assert "NCCL" in caplog.text


def test_tune_without_nccl_says_what_it_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeGpus(2, has_nccl=False)
    found = tuned(fake, monkeypatch, (1 << 10,))
    assert found.left_out == ["NCCL: NCCL needs a GPU and cupy with NCCL"]
    assert not any("nccl" in way for way in found.measured[0].rounds)


# Pins


@pytest.mark.parametrize(
    ("pins", "ran"),
    [
        ("allreduce=ring/4", ["schedule", "schedule"]),
        ("cuda:allreduce=nccl", ["nccl", "nccl"]),
        ("cuda:allreduce:4k-=nccl,cpu:allreduce=direct", ["one_shot", "nccl"]),
        ("cpu:allreduce=ring", ["one_shot", "two_shot"]),
        ("broadcast=ring,allreduce=direct", ["schedule", "schedule"]),
    ],
)
def test_pins_are_obeyed(pins: str, ran: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeGpus(2)
    fake.install(monkeypatch)
    monkeypatch.setenv("PYCOLL_ALGO", pins)

    def body(gpus: cuda.Group) -> None:
        for elements in (16, 1 << 14):
            assert (gpus.allreduce(gpu_array([2.0] * elements)) == 4).all()

    on_ranks(fake, body)
    assert [work.what for work in fake.ran] == ran


@pytest.mark.parametrize(
    ("pins", "words"),
    [
        ("cuda:allreduce=rng", "column 16: there is no algorithm 'rng'"),
        ("cuda:broadcast=ring", "tables of GPUs are for allreduce"),
        ("cuda:allreduce:1k=nccl", "PYCOLL_ALGO: cuda:allreduce:1k=nccl"),
    ],
)
def test_pins_that_cannot_be_obeyed_are_refused_on_every_rank(
    pins: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeGpus(2, has_nccl=False)
    fake.install(monkeypatch)
    monkeypatch.setenv("PYCOLL_ALGO", pins)

    def rank(comm: pycoll.Communicator) -> str:
        with pytest.raises(pycoll.Error) as raised:
            cuda.Group(comm)
        return str(raised.value)

    assert all(words in text for text in pycoll.spawn(rank, ranks=2, threads=True, timeout=60))


def test_a_pin_of_more_than_a_kernel_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeGpus(2)
    fake.limits = dict.fromkeys(fake.limits, 100)
    fake.install(monkeypatch)
    monkeypatch.setenv("PYCOLL_ALGO", "cuda:allreduce=one_shot")

    def body(gpus: cuda.Group) -> str:
        gpus.allreduce(gpu_array([1.0] * 100))
        with pytest.raises(pycoll.InvalidArgument) as raised:
            gpus.allreduce(gpu_array([1.0] * 101))
        return str(raised.value)

    for text in on_ranks(fake, body):
        assert "PYCOLL_ALGO: cuda:allreduce=one_shot: one_shot does not run for 101 elements" in text


def test_ways_of_gpus_are_refused_for_processors() -> None:
    from pycoll.selection.pins import parse_pins

    with pytest.raises(pycoll.InvalidArgument, match="one_shot is for GPUs: write cuda:allreduce"):
        parse_pins("allreduce=one_shot", 2)
    assert not parse_pins("cuda:allreduce=one_shot", 2).rows
    assert [row.way for row in parse_pins("cpu:allreduce=ring", 2).rows] == ["ring"]


def test_deterministic_keeps_to_the_order_of_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeGpus(2)
    fake.install(monkeypatch)
    monkeypatch.setenv("PYCOLL_DETERMINISTIC", "1")
    profile = small_profile(GpuMachine("Fake GPU", 2, "unknown"))
    assert on_ranks(fake, lambda gpus: gpus.chosen_algorithm(16), profile=profile) == ["one_shot"] * 2


def test_tables_are_installed_and_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeGpus(2)
    fake.install(monkeypatch)
    rule = pycoll.DecisionTable([pycoll.Decision("allreduce", 0, None, "ring/4", reason="a wish")])

    def body(gpus: cuda.Group) -> Any:
        mine = pycoll.DecisionTable([pycoll.Decision("allreduce", 1 << 20, None, "nccl", basis="pin")])
        gpus.install(gpus.decisions().merged_with(rule, mine))
        chosen = [gpus.chosen_algorithm(elements) for elements in (4, 1 << 20)]
        with pytest.raises(pycoll.InvalidArgument, match="no algorithm 'rng'"):
            gpus.install(pycoll.DecisionTable([pycoll.Decision("allreduce", 0, None, "rng")]))
        other = rule if gpus.rank else mine
        with pytest.raises(pycoll.Mismatch, match="different tables"):
            gpus.install(other)
        return chosen, [gpus.chosen_algorithm(elements) for elements in (4, 1 << 20)]

    assert on_ranks(fake, body) == [(["ring/4", "nccl"], ["ring/4", "nccl"])] * 2


# --check, and the commands


def test_check_holds_choices_against_what_is_true_now(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeGpus(2)
    profile = profile_of(fake, tuned(fake, monkeypatch))
    path = default_path(2, profile.machine)
    profile.save(path)

    def check() -> Any:
        found = pycoll.spawn(tuning.run_rank, ranks=2, args=(options(2), True), threads=True, timeout=60)[0]
        assert found.earlier is not None
        return verdicts(found.earlier, found.measured)

    rows = check()
    assert [row.chosen for row in rows] == [profile.decisions().find("allreduce", size).way for size in SIZES]
    assert all(row.regret < 0.15 for row in rows)
    assert all(row.as_called == pytest.approx(1, abs=0.01) for row in rows)
    assert summary(rows).wrong == 0
    # NCCL becomes three times as quick as anything: the old choices cost that much more.
    fake.price = lambda work: 1e-6 if work.what == "nccl" else 3e-6
    rows = check()
    assert all(row.best == "nccl" and row.regret == pytest.approx(2) for row in rows)
    assert not summary(rows).passed


@pytest.fixture
def in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the commands start as processes runs as threads, where the fake is."""
    spawn = launch.spawn

    def threads(function: Any, **how: Any) -> Any:
        how.pop("env", None)
        return spawn(function, threads=True, **how)

    monkeypatch.setattr(pycoll, "spawn", threads)


def run(*arguments: str) -> Any:
    from pycoll.cli import app

    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "140", "NO_COLOR": "1"})


@pytest.mark.usefixtures("in_threads")
def test_the_commands(monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    fake = FakeGpus(2)
    fake.install(monkeypatch)
    done = run("tune", "--device", "cuda", "-s", "1KiB,128KiB", "--budget", "60s")
    assert done.exit_code == 0, done.output
    (path,) = (own_cache / "pycoll" / "profiles").iterdir()
    assert path.name in done.output.replace("\n", "")
    assert "one_shot" in done.output
    profile = Profile.load(path)
    assert profile.device == "cuda"
    assert profile.sizes_of("allreduce") == [1 << 10, 1 << 17]

    done = run("tune", "--device", "cuda", "-s", "1KiB", "--budget", "60s", "--check", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert [(row["bytes"], row["chosen"]) for row in found["rows"]] == [(1 << 10, "one_shot")]

    done = run("explain", "allreduce", "1KiB", "--device", "cuda")
    assert done.exit_code == 0, done.output
    assert "one_shot runs: quickest of those measured here" in " ".join(done.output.split())
    assert "two_shot" in done.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("tune", "--device", "gpu"), "cpu or cuda"),
        (("tune", "broadcast", "--device", "cuda"), "measures allreduce, not broadcast"),
        (("explain", "broadcast", "1k", "--device", "cuda"), "explains allreduce"),
        (("explain", "allreduce", "1k", "--device", "tpu"), "cpu or cuda"),
        (("explain", "allreduce", "1k", "--device", "cuda", "--late", "1=5ms"), "--late"),
        (("topo", "probe", "--device", "rocm"), "cpu or cuda"),
        (("topo", "probe", "--device", "cuda", "-n", "2"), "no --ranks"),
    ],
)
def test_requests_that_make_no_sense(arguments: tuple[str, ...], words: str) -> None:
    done = run(*arguments)
    assert done.exit_code != 0
    assert words in " ".join((done.output + str(done.exception)).split())


@pytest.mark.skipif(cuda.available(), reason="there is a GPU here")
@pytest.mark.parametrize(
    "arguments", [("tune", "--device", "cuda"), ("tune", "--device", "cuda", "--check", "-n", "2")]
)
def test_without_a_gpu_the_reason_comes_at_once(arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert done.exit_code != 0
    assert cuda.why_not() in " ".join((done.output + str(done.exception)).split())
