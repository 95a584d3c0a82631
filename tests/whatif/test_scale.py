"""Scaling and pipelines: closed forms, what is refused."""

from __future__ import annotations

import json
import math

import pytest
from typer.testing import CliRunner

from pycoll.cli import app
from pycoll.errors import InvalidArgument
from pycoll.topology import Topology
from pycoll.whatif import Late, Layer, Slow, Workload, iterate, scale, time
from pycoll.whatif.pipeline import Boundary, one_forward_one_backward, stages_of
from pycoll.whatif.scale import parse_ranks


def test_numbers_of_ranks() -> None:
    assert parse_ranks("8..1024") == (8, 16, 32, 64, 128, 256, 512, 1024)
    assert parse_ranks("8..100") == (8, 16, 32, 64, 100)
    assert parse_ranks("1..100/3") == (1, 10, 100)
    assert parse_ranks("64, 8") == (8, 64)
    for wrong in ("", "8..4", "a..b", "0..4", "8..1024/1", "-3"):
        with pytest.raises(InvalidArgument):
            parse_ranks(wrong)


def test_a_ring_scales_by_its_closed_form() -> None:
    found = scale(Topology.flat(16, 1e9, latency=1e-6), "2..16", size=16_000_000, algorithm="ring")
    for point in found.points:
        n = point.ranks
        assert point.time == pytest.approx(2 * (n - 1) * (1e-6 + 16_000_000 / n / 1e9), rel=1e-9)
        assert point.busbw == pytest.approx(16_000_000 / point.time * 2 * (n - 1) / n)
    assert found.to_csv().count("\n") == 5


def test_a_step_scales() -> None:
    work = Workload("w", (Layer("a", 0.001, 0.002, (4_000_000,)),), bucket=1, first_bucket=1)
    found = scale(Topology.flat(8, 1e9), [2, 8], workload=work, algorithm="ring")
    for point in found.points:
        sending = 2 * (point.ranks - 1) / point.ranks * 4_000_000 / 1e9
        assert point.time == pytest.approx(0.003 + sending)
        assert point.exposed == pytest.approx(sending)
        assert point.efficiency == pytest.approx(0.003 / point.time)
    with pytest.raises(InvalidArgument, match="has 8 ranks"):
        scale(Topology.flat(8, 1e9), [2, 9])


@pytest.mark.parametrize(("stages", "batches"), [(1, 3), (2, 2), (4, 8), (4, 2), (8, 64)])
def test_1f1b_has_the_bubble_of_its_paper(stages: int, batches: int) -> None:
    """(S - 1) (f + b) beyond a stage's own work: arXiv 2104.04473, section 2.2.1."""
    ended, sends = one_forward_one_backward(
        [1.0] * stages, [2.0] * stages, [Boundary(0.0, 0.0)] * (stages - 1), batches
    )
    assert max(ended) == pytest.approx((batches + stages - 1) * 3.0)
    assert len(sends) == 2 * (stages - 1) * batches


def test_1f1b_of_one_microbatch_is_a_chain() -> None:
    ended, sends = one_forward_one_backward([1.0, 2.0], [3.0, 4.0], [Boundary(0.5, 0.25)], 1)
    assert ended[0] == 1 + 0.5 + 2 + 4 + 0.25 + 3
    assert [(send.source, send.target, send.start, send.end) for send in sends] == [
        (0, 1, 1.0, 1.5), (1, 0, 7.5, 7.75),
    ]  # fmt: skip


def test_stages_are_balanced() -> None:
    layers = tuple(Layer(f"l{i}", seconds, 0.0, (8,), 64) for i, seconds in enumerate((5, 1, 1, 1, 2)))
    stages = stages_of(Workload("w", layers, "pp", stages=2, microbatches=4), 6)
    assert [[layer.name for layer in own] for own in stages.layers] == [["l0"], ["l1", "l2", "l3", "l4"]]
    assert (stages.replicas, stages.activations) == (3, [16])
    with pytest.raises(InvalidArgument, match="4 stages for 6 ranks"):
        stages_of(Workload("w", layers, "pp", stages=4), 6)


def test_a_pipelined_step() -> None:
    """Two stages of two replicas on one switch: the chain of one microbatch, then the gradients."""
    layers = tuple(Layer(name, 0.001, 0.002, (2_000_000,), 1_000_000) for name in "ab")
    work = Workload("w", layers, "pp", stages=2, microbatches=1, step=0.0005)
    machine = Topology.flat(4, 1e9, latency=1e-4)
    step = iterate(machine, work, algorithm="ring/2")
    send, ring = 1e-4 + 0.001, 2 * (1e-4 + 1_000_000 / 1e9)
    assert step.time == pytest.approx(2 * 0.003 + 2 * send + ring + 0.0005)
    assert step.bubble == pytest.approx(0.003)
    assert step.exposed == pytest.approx(2 * send + ring)
    assert [each.collective for each in step.transfers] == ["send", "send", "allreduce", "allreduce"]
    slower = iterate(machine, work, [Slow("*", 0.5)], algorithm="ring/2")
    assert slower.time - step.time == pytest.approx(2 * 0.001 + 2 * 0.001)


def test_the_command() -> None:
    flags = ["hgx-h100-4-fat", "--scale", "8,16", "-w", "7b", "--pattern", "pp", "--stages", "4"]
    done = CliRunner().invoke(app, ["whatif", *flags, "-a", "double_binary_tree/1", "--json"])
    assert done.exit_code == 0, done.output
    points = json.loads(done.stdout)["points"]
    assert [point["ranks"] for point in points] == [8, 16]
    assert all(0 < point["efficiency"] < 1 and math.isfinite(point["time_s"]) for point in points)
    done = CliRunner().invoke(app, ["whatif", "two_racks", "--scale", "2..8", "-s", "1MiB"])
    assert "binding link" in done.stdout


def test_a_rank_that_is_left_out_delays_nobody() -> None:
    found = scale("two_racks", "4,8", size="1MiB", algorithm="ring", changes=[Late(7, 0.5)])
    four, eight = (point.time for point in found.points)
    assert four == time("two_racks", "allreduce", "1MiB", group=4, algorithm="ring")
    assert eight is not None
    assert eight > 0.5
