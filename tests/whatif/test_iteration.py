"""Whole steps: DDP's buckets, what is exposed, and closed forms on a flat machine."""

from __future__ import annotations

import pytest

from pycoll import InvalidArgument, Topology, whatif
from pycoll.whatif import Layer, Workload
from pycoll.whatif.iteration import buckets

RATE, RANKS = 1e9, 4
MACHINE = Topology.flat(RANKS, RATE)
MIB = 1 << 20


def exactly(value: float) -> object:
    return pytest.approx(value, rel=1e-9)


def allreduce(size: int) -> float:
    """The ring's time on MACHINE."""
    return 2 * (RANKS - 1) / RANKS * size / RATE


def work(count: int, size: int, seconds: float, **more: object) -> Workload:
    layers = tuple(Layer(f"l{index}", seconds, 2 * seconds, (size,), size) for index in range(count))
    return Workload("w", layers, **more)  # type: ignore[arg-type]


def test_buckets_close_as_ddps() -> None:
    layers = (
        Layer("a", 0, 0, (30 * MIB, 4)),
        Layer("b", 0, 0, (10 * MIB, 10 * MIB)),
        Layer("c", 0, 0, (2 * MIB,)),
    )
    found = buckets(Workload("w", layers))
    # The first closes at 1 MiB, with c; the next gathers b and a's small tensor until 25 MiB are there.
    assert found == [(2 * MIB, (2,)), (50 * MIB + 4, (1, 0))]
    assert sum(size for size, _ in found) == Workload("w", layers).bytes


def test_ddp_that_computing_hides_leaves_the_last_bucket_exposed() -> None:
    size = 25 * MIB
    seconds = 2 * allreduce(size)
    step = whatif.iterate(MACHINE, work(4, size, seconds), algorithm="ring")
    assert step.exposed == exactly(allreduce(size))
    assert step.communication == exactly(4 * allreduce(size))
    assert step.overlap == exactly(0.75)
    assert step.time == exactly(4 * 3 * seconds + allreduce(size))


def test_ddp_that_sending_limits() -> None:
    size = 25 * MIB
    seconds = allreduce(size) / 10
    step = whatif.iterate(MACHINE, work(4, size, seconds), algorithm="ring")
    # Backward of the last layer, then all buckets one after the other, then forward.
    assert step.time == exactly(2 * seconds + 4 * allreduce(size) + 4 * seconds)
    urgent = whatif.iterate(MACHINE, work(4, size, seconds, order="priority"), algorithm="ring")
    assert urgent.time <= step.time
    assert urgent.communication == exactly(step.communication)
    slower = whatif.iterate(MACHINE, work(4, size, seconds), [whatif.Slow("*", 0.5)], algorithm="ring")
    assert slower.communication == exactly(2 * step.communication)


def test_fsdp_and_tensor_parallel() -> None:
    size = 25 * MIB
    gather = allreduce(size) / 2
    idle = whatif.iterate(MACHINE, work(3, size, 0.0, pattern="fsdp"), algorithm="ring")
    assert idle.time == exactly(9 * gather)
    hidden = whatif.iterate(MACHINE, work(3, size, 10 * gather, pattern="fsdp"), algorithm="ring")
    # What nothing hides: the first gather, the first one of backward, and the last scatter.
    assert hidden.exposed == exactly(3 * gather)
    tensor = whatif.iterate(MACHINE, work(3, size, 1.0, pattern="tp"), algorithm="ring")
    assert tensor.exposed == exactly(12 * allreduce(size))
    assert tensor.overlap == pytest.approx(0)


@pytest.mark.parametrize("pattern", ["ddp", "fsdp", "tp", "pp"])
def test_a_late_rank_is_late_once_a_step(pattern: str) -> None:
    made = work(4, 25 * MIB, 0.01, pattern=pattern)
    on_time = whatif.iterate(MACHINE, made, algorithm="ring")
    late = whatif.iterate(MACHINE, made, [whatif.Late(3, 0.005)], algorithm="ring")
    assert late.time == exactly(on_time.time + 0.005)
    assert late.waiting == 0.005
    assert late.exposed == exactly(on_time.exposed)
    assert late.communication == exactly(on_time.communication)
    assert [each.start for each in late.transfers] == exactly(
        [each.start + 0.005 for each in on_time.transfers]
    )
    assert "waiting" in str(late)
    assert "waiting" not in str(on_time)
    lateness = whatif.Lateness("uniform", 0.002, seed=3)
    drawn = whatif.iterate(MACHINE, made, [whatif.LateDist(lateness)], algorithm="ring")
    rows = lateness.sample(RANKS)
    assert drawn.waiting == exactly(sum(map(max, rows)) / len(rows))


def test_workloads_of_yaml_and_by_name() -> None:
    made = Workload.from_yaml(
        """
name: small
element: 2
step: 1 ms
layers:
  - {name: block, count: 3, forward: 1 ms, backward: 2 ms, parameters: [1e6, 2000]}
"""
    )
    assert [layer.name for layer in made.layers] == ["block0", "block1", "block2"]
    assert made.bytes == 3 * 2 * 1_002_000
    assert made.compute == exactly(0.01)
    seven = Workload.load("7b")
    assert seven.bytes / 2 == pytest.approx(6.74e9, rel=0.002)  # arXiv 2302.13971, table 2
    assert Workload.load("70b").bytes / 2 == pytest.approx(69e9, rel=0.005)
    for text, message in (
        ("layers: []", "layers: List should have at least 1 item"),
        ("{layers: [{name: a, time: 3}]}", "layers.0.time: Extra inputs"),
        ("{layers: [{name: a, forward: '3'}]}", "has no unit"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            Workload.from_yaml(text)
    with pytest.raises(InvalidArgument, match="name a YAML file or one of 1b, 7b"):
        Workload.load("8b")


def test_a_torch_module() -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4, bias=False))
    made = Workload.from_module(module, 1.0, 2.0)
    assert [layer.tensors for layer in made.layers] == [(128, 16), (64,)]
    assert made.compute == exactly(3)
