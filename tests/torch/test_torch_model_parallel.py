"""Models that are cut over the ranks: DTensor, tensor parallel plans, pipelines, compiled graphs."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.distributed as dist
from torch import nn


@pytest.mark.parametrize("n", [2, 3])
def test_dtensor_redistributes(ranks, n):
    """Between any two placements, of dimensions that the ranks divide and that they do not; exact."""

    def body():
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

        me, world = dist.get_rank(), dist.get_world_size()
        mesh = init_device_mesh("cpu", (world,))
        placements = [Replicate(), Shard(0), Shard(1), Shard(2)]
        for shape in [(6, 12, 6), (5, 7, 1), (1, 3, 4)]:
            values = torch.arange(float(torch.Size(shape).numel())).view(shape)
            for source, target in itertools.product(placements, placements):
                moved = distribute_tensor(values, mesh, [source]).redistribute(mesh, [target])
                right = distribute_tensor(values, mesh, [target])
                assert torch.equal(moved.to_local(), right.to_local()), (shape, source, target)
                assert torch.equal(moved.full_tensor(), values)
            for op, total in [("sum", sum(range(1, world + 1))), ("max", world), ("avg", (world + 1) / 2)]:
                partial = DTensor.from_local(values * (me + 1), mesh, [Partial(op)])
                for target in placements:
                    got = partial.redistribute(mesh, [target]).full_tensor()
                    torch.testing.assert_close(got, values * total)

    ranks(n, body)


def test_dtensor_on_a_mesh_of_two_dimensions(ranks):
    def body():
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor

        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
        x, y = torch.arange(24.0).view(6, 4), torch.arange(20.0).view(4, 5) - 7
        pairs = list(itertools.product([Shard(0), Shard(1)], [Replicate(), Shard(0), Shard(1)]))
        for one, two in itertools.product(pairs[::2], pairs[1::2]):
            product = distribute_tensor(x, mesh, one) @ distribute_tensor(y, mesh, two)
            assert torch.equal(product.full_tensor(), x @ y), (one, two)
        assert distribute_tensor(x, mesh["b"], [Shard(1)]).sum().full_tensor() == x.sum()

    ranks(4, body)


@pytest.mark.parametrize("n", [2, 3])
def test_tensor_parallel_plans(ranks, n):
    """Column- and row-wise, with and without sequence parallelism: forward, gradients and loss parallelism as
    in one process."""

    def body():
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Replicate, Shard
        from torch.distributed.tensor.parallel import (
            ColwiseParallel,
            PrepareModuleInput,
            RowwiseParallel,
            SequenceParallel,
            loss_parallel,
            parallelize_module,
        )

        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        tokens = torch.randint(0, 24, (4, 6), generator=torch.Generator().manual_seed(1))
        plans = {
            "megatron": {
                "0": RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate()),
                "2": ColwiseParallel(),
                "4": RowwiseParallel(),
                "5": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
            },
            "sequence": {
                "0": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
                "1": SequenceParallel(),
                "2": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate()),
                "4": RowwiseParallel(output_layouts=Shard(1)),
                "5": ColwiseParallel(
                    input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False
                ),
            },
        }

        def network():
            torch.manual_seed(0)
            layers = [nn.Embedding(24, 12), nn.LayerNorm(12), nn.Linear(12, 36), nn.GELU(), nn.Linear(36, 12)]
            return nn.Sequential(*layers, nn.Linear(12, 24)).double()

        def loss_of(model):
            loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            loss.backward()
            return loss

        alone = network()
        right = loss_of(alone)
        for name, plan in plans.items():
            model = network()
            if name == "sequence":
                parallelize_module(model, mesh, {"2": ColwiseParallel()})
            parallelize_module(model, mesh, plan)
            with loss_parallel():
                loss = loss_of(model)
            torch.testing.assert_close(loss.full_tensor(), right, rtol=1e-13, atol=0)
            for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
                gradient = ours.grad.full_tensor() if hasattr(ours.grad, "full_tensor") else ours.grad
                torch.testing.assert_close(gradient, theirs.grad, rtol=1e-11, atol=1e-14)

    ranks(n, body)


@pytest.mark.parametrize("n", [2, 3])
def test_pipelines(ranks, n):
    """One stage a rank under 1F1B and GPipe, two under the interleaved schedule: losses and weights after
    training as in one process."""

    def body():
        from torch.distributed.pipelining import (
            PipelineStage,
            Schedule1F1B,
            ScheduleGPipe,
            ScheduleInterleaved1F1B,
        )

        me, world = dist.get_rank(), dist.get_world_size()
        microbatches = 2 * world

        def blocks():
            torch.manual_seed(0)
            return [nn.Sequential(nn.Linear(16, 16), nn.Tanh()).double() for _ in range(2 * world)]

        def batch(step):
            generator = torch.Generator().manual_seed(step)
            return torch.randn(2, 2 * microbatches, 16, generator=generator, dtype=torch.float64)

        def optimizer_of(parts):
            return torch.optim.SGD([p for part in parts for p in part.parameters()], lr=0.1, momentum=0.9)

        alone = blocks()
        optimizer = optimizer_of(alone)
        expected = []
        for step in range(3):
            optimizer.zero_grad()
            inputs, targets = batch(step)
            loss = nn.functional.mse_loss(nn.Sequential(*alone)(inputs), targets)
            loss.backward()
            optimizer.step()
            expected.append(loss.detach())

        for schedule_class in (Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B):
            interleaved = schedule_class is ScheduleInterleaved1F1B
            parts = blocks()
            if not interleaved:
                parts = [nn.Sequential(*parts[2 * i : 2 * i + 2]) for i in range(world)]
            mine = range(me, len(parts), world)
            stages = [PipelineStage(parts[i], i, len(parts), torch.device("cpu")) for i in mine]
            schedule = schedule_class(
                stages if interleaved else stages[0], microbatches, loss_fn=nn.functional.mse_loss
            )
            optimizer = optimizer_of([stage.submod for stage in stages])
            for step in range(3):
                optimizer.zero_grad()
                inputs, targets = batch(step)
                losses = []
                last = {"target": targets, "losses": losses} if me == world - 1 else {}
                schedule.step(*[inputs] if me == 0 else [], **last)
                optimizer.step()
                if me == world - 1:
                    torch.testing.assert_close(torch.stack(losses).mean(), expected[step], rtol=1e-12, atol=0)
            right = alone if interleaved else [nn.Sequential(*alone[2 * i : 2 * i + 2]) for i in range(world)]
            for i in mine:
                for ours, theirs in zip(parts[i].parameters(), right[i].parameters(), strict=True):
                    torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-13)

    ranks(n, body)


def test_compiled_equals_eager(ranks):
    """A graph with functional collectives of its own and others inside DTensor, through inductor."""

    def body():
        from torch.distributed import _functional_collectives as functional
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import DTensor, Replicate, Shard

        mesh = init_device_mesh("cpu", (dist.get_world_size(),))

        def compute(x, weight):
            summed = functional.all_reduce(x * 2, "sum", mesh)
            gathered = functional.all_gather_tensor(x + summed, 0, mesh)
            part = functional.reduce_scatter_tensor(gathered, "avg", 0, mesh)
            swapped = functional.all_to_all_single(part, None, None, mesh)
            inside = DTensor.from_local(swapped, mesh, [Shard(0)]) @ DTensor.from_local(
                weight, mesh, [Replicate()]
            )
            mask = (inside > 0).any().full_tensor()
            return (inside.redistribute(mesh, [Replicate()]).to_local() * mask).relu()

        x = torch.arange(24.0).view(6, 4) * (dist.get_rank() + 1)
        weight = torch.arange(8.0).view(4, 2) - 3
        eager = compute(x, weight)
        # For one small kernel or two: no pool of compilers, no headers compiled beforehand, no trials of
        # vector instructions.
        options = {"compile_threads": 1, "cpp_cache_precompile_headers": False, "cpp.vec_isa_ok": False}
        compiled = torch.compile(compute, fullgraph=True, options=options)
        for _ in range(2):
            assert torch.equal(compiled(x, weight), eager)  # small integers: sums are exact

    ranks(2, body, limit=240)
