"""Predictions and explanations for GPUs: from topology files alone, and from profiles."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

import pycoll
from pycoll.gpu import ways
from pycoll.gpu.costs import Costs
from pycoll.gpu.machine import GpuMachine
from pycoll.gpu.network import GpuNetwork
from pycoll.gpu.selector import GpuSelector
from pycoll.selection.decisions import split_way
from pycoll.selection.profile import Profile, Timing

NODES = ("dgx-h100", "dgx-a100", "dgx-1v", "pcie-8gpu")


@pytest.mark.parametrize("name", NODES)
def test_small_sizes_go_the_kernels_and_large_ones_come_near_the_bound(name: str) -> None:
    topology = pycoll.Topology.load(name)
    selector = GpuSelector(topology)
    small, large = (selector.choose("allreduce", size) for size in (1 << 10, 1 << 28))
    assert small.way == ("two_shot" if name == "dgx-1v" else "one_shot")  # not every pair has NVLink there
    assert 5e-6 < small.predicted < 20e-6
    assert large.basis == "modelled"
    bound = topology.bound("allreduce", 1 << 28)
    assert bound <= large.predicted < 2.5 * bound


@pytest.mark.parametrize("name", NODES)
def test_no_way_is_predicted_below_the_bound(name: str) -> None:
    topology = pycoll.Topology.load(name)
    model = GpuNetwork(topology)
    for size in (1 << 10, 1 << 20, 1 << 26):
        bound = topology.bound("allreduce", size)
        times = model.times(ways.names(8, "pcie"), "allreduce", size, "float32", 0)
        assert all(prediction.seconds >= bound * (1 - 1e-9) for prediction in times.values())


def test_costs_are_what_nccl_assumes_for_the_links() -> None:
    fast, slow = Costs.default("nvswitch"), Costs.default("nvlink+pcie")
    assert (fast.kernel.start, fast.schedule.start) == (6.6e-6, 8.4e-6)
    assert (fast.schedule.step, slow.schedule.step) == (2.8e-6, 4.7e-6)
    assert fast.kernel.wire == 2


def test_a_kernel_is_its_schedule_with_twice_the_bytes() -> None:
    topology = pycoll.Topology.load("dgx-h100")
    model = GpuNetwork(topology)
    expected = pycoll.build("direct", ranks=8).simulate(topology, 2 << 16).time
    assert model.time("one_shot", "allreduce", 1 << 16, "float32", 0) == pytest.approx(expected + 6.6e-6)


def test_overheads_in_a_file_go_first() -> None:
    from dataclasses import replace

    plain = pycoll.Topology.load("dgx-h100")
    nodes = tuple(replace(n, overhead=5e-6) if n.kind == "device" else n for n in plain.nodes)
    model = GpuNetwork(replace(plain, nodes=nodes, text=None))
    plain_model = GpuNetwork(plain)
    args = ("allreduce", 1 << 10, "float32", 0)
    rounds = pycoll.build("ring", ranks=8).rounds
    assert model.time("ring", *args) - plain_model.time("ring", *args) == pytest.approx(rounds * 2.2e-6)


def profile(wiring: str = "", ranks: int = 8) -> Profile:
    """Times of a machine on which a call takes 4 us (kernels) or 6 us, and a round 1.6 us."""
    topology = pycoll.Topology.load("dgx-h100").first(ranks)
    truth = GpuNetwork(topology)
    rows = []
    for size in (1 << 10, 1 << 14, 1 << 18, 1 << 24):
        for way in ways.names(ranks, "nvswitch", nccl=False):
            made = ways.schedule_of(way, ranks)
            if made is None:
                continue
            start = 4e-6 if split_way(way)[0] in ("one_shot", "two_shot") else 6e-6
            each = 0.6e-6 if start == 4e-6 else 1.6e-6
            wire = 2 if start == 4e-6 else 1
            seconds = start + each * made.rounds + wire * 1.75 * size / 300e9
            rows.append(
                Timing("allreduce", size, "float32", way, seconds, seconds, 9, seconds, {}, "one_shot")
            )
    assert truth.name
    return Profile.of(GpuMachine("NVIDIA H100", ranks, "nvswitch"), ranks, rows, wiring)


def test_costs_follow_from_what_was_measured() -> None:
    topology = pycoll.Topology.load("dgx-h100")
    costs = Costs.of(profile(), "nvswitch", topology)
    assert costs.kernel.start == pytest.approx(4e-6, rel=0.05)
    assert costs.schedule.start == pytest.approx(6e-6, rel=0.1)
    assert costs.schedule.step == pytest.approx(1e-6, rel=0.1)  # a round less the hop of 0.6 us
    assert costs.over_nccl == Costs.default("nvswitch").over_nccl
    assert "not measured: over_nccl" in costs.source


def test_explaining_a_profile_with_wiring() -> None:
    wired = pycoll.Topology.load("dgx-h100")
    selector = GpuSelector(measured=profile(wired.to_yaml()))
    found = selector.explain("allreduce", 1 << 14)
    assert found.choice.basis == "measured"
    assert found.choice.way == "one_shot"
    assert found.bound == pytest.approx(wired.bound("allreduce", 1 << 14))
    assert found.candidates[0].measured == pytest.approx(4e-6 + 0.6e-6 + 3.5 * (1 << 14) / 300e9)
    assert found.candidates[0].predicted is not None
    text = " ".join(str(found).split())
    assert "one_shot runs: quickest of those measured here" in text
    assert "The next, two_shot, takes" in text
    assert "Measured on 8 x NVIDIA H100, nvswitch" in text
    assert "No algorithm can take less than" in text


def test_explaining_a_profile_without_wiring() -> None:
    found = GpuSelector(measured=profile()).explain("allreduce", 1 << 14)
    assert found.bound is None
    assert found.choice.way == "one_shot"
    assert any("nvidia-ml-py" in note for note in found.notes)


def test_explaining_the_fixed_bounds() -> None:
    found = GpuSelector(ranks=8).explain("allreduce", 1 << 20)
    assert found.choice.way == "two_shot"
    assert found.choice.basis == "rule"
    assert "fixed bounds, one_shot up to 32 KiB" in found.why
    assert "pycoll tune --device cuda" in str(found.flips[0])


def test_pins_in_explanations() -> None:
    found = GpuSelector(ranks=8, pins="cuda:allreduce:1m-=nccl").explain("allreduce", 1 << 20)
    assert (found.choice.way, found.choice.basis) == ("nccl", "pin")
    assert "pinned by PYCOLL_ALGO: cuda:allreduce:1m-=nccl" in str(found).replace("\n", " ")


def test_a_table_of_predictions_can_be_installed() -> None:
    table = GpuSelector(pycoll.Topology.load("dgx-h100")).table(sizes=(1 << 10, 1 << 26))
    assert next(row.way for row in table.rows) == "one_shot"
    assert all(row.basis == "modelled" for row in table.rows)


def test_a_profile_of_processors_is_refused() -> None:
    from pycoll.selection.profile import Machine

    with pytest.raises(pycoll.InvalidArgument, match="is of processors"):
        GpuSelector(measured=Profile.of(Machine.here(), 2, []))


def test_other_collectives_are_refused() -> None:
    with pytest.raises(pycoll.Unsupported, match="covers allreduce, not broadcast"):
        GpuSelector(ranks=8).choose("broadcast", 4)


def test_the_command_on_a_topology_alone() -> None:
    from pycoll.cli import app

    arguments = ["explain", "allreduce", "1KiB", "--device", "cuda", "-t", "dgx-h100", "--json"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["choice"]["way"] == "one_shot"
    assert {"nccl", "nccl:ring", "ring"} <= {row["way"] for row in found["candidates"]}
    assert any("NCCL" in note for note in found["notes"])
