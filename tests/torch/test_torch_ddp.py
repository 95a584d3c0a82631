"""DistributedDataParallel trains as it does over gloo, whatever the hook and options."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel


class TwoHeads(nn.Module):
    """The second head serves every other step only."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.heads = nn.ModuleList([nn.Linear(64, 10), nn.Linear(64, 10)])

    def forward(self, x: torch.Tensor, both: bool = True) -> torch.Tensor:
        h = self.body(x)
        return self.heads[0](h) + (self.heads[1](h) if both else 0)


def train(backend: str, variant: str) -> tuple[list[torch.Tensor], dist.ProcessGroup]:
    """Weights after some steps of DDP over a group of that backend, and that group."""
    group = dist.new_group(backend=backend, timeout=timedelta(seconds=20))
    torch.manual_seed(1)
    options = {
        "unused parameters": {"find_unused_parameters": True},
        "bucket views": {"gradient_as_bucket_view": True},
        "small buckets": {"bucket_cap_mb": 0.005},
        "static graph": {"static_graph": True},
    }.get(variant, {})
    model = DistributedDataParallel(TwoHeads(), process_group=group, **options)
    if variant == "fp16":
        model.register_comm_hook(group, default_hooks.fp16_compress_hook)
    elif variant == "bf16":
        # Through a function of another name: torch refuses the hook by its own name where there is no CUDA.
        model.register_comm_hook(group, lambda state, bucket: default_hooks.bf16_compress_hook(state, bucket))
    elif variant == "PowerSGD":
        state = powerSGD_hook.PowerSGDState(
            group, matrix_approximation_rank=2, start_powerSGD_iter=2, random_seed=7
        )
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    for step in range(6):
        x = torch.randn(16, 20, generator=generator)
        y = torch.randint(0, 10, (16,), generator=generator)
        both = variant != "unused parameters" or step % 2 == 0
        optimizer.zero_grad()
        if variant == "no_sync":
            with model.no_sync():
                nn.functional.cross_entropy(model(x), y).backward()
        nn.functional.cross_entropy(model(x, both), y).backward()
        optimizer.step()
    weights = [p.detach().clone() for p in model.parameters()]
    del model
    dist.destroy_process_group(group)
    return weights, group


VARIANTS = [
    "plain", "fp16", "bf16", "PowerSGD", "unused parameters", "bucket views", "small buckets", "static graph",
    "no_sync",
]  # fmt: skip


@pytest.mark.parametrize("n", [2, 3])
def test_equal_to_gloo(ranks, n):
    def body():
        groups = []  # gloo's dies badly when a callback, on its own thread, is the last that knows of it
        for variant in VARIANTS:
            (ours, _), (theirs, group) = train("pycoll", variant), train("gloo", variant)
            groups.append(group)
            for a, b in zip(ours, theirs, strict=True):
                # gloo rounds 16-bit sums at every hop, pycoll once.
                slack = (
                    {"rtol": 1e-2, "atol": 1e-3}
                    if variant in ("fp16", "bf16")
                    else {"rtol": 1e-4, "atol": 1e-5}
                )
                torch.testing.assert_close(a, b, **slack, msg=lambda m, v=variant: f"{v}: {m}")
            for weight in ours:  # and to the bit the same on all ranks
                everyone = [torch.empty_like(weight) for _ in range(dist.get_world_size())]
                dist.all_gather(everyone, weight)
                assert all(torch.equal(weight, other) for other in everyone), variant

    ranks(n, body, limit=120)


def test_zero_redundancy_and_join(ranks):
    """What else torch builds on DDP: sharded optimizer state; ranks with uneven numbers of batches."""

    def body():
        from torch.distributed.algorithms.join import Join
        from torch.distributed.optim import ZeroRedundancyOptimizer

        me = dist.get_rank()
        torch.manual_seed(1)
        model = DistributedDataParallel(nn.Linear(8, 4))
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
        with Join([model, optimizer]):
            for _ in range(3 + 2 * me):
                optimizer.zero_grad()
                model(torch.ones(2, 8) * (me + 1)).square().sum().backward()
                optimizer.step()
        weights = [torch.empty_like(model.module.weight) for _ in range(dist.get_world_size())]
        dist.all_gather(weights, model.module.weight.detach())
        assert all(torch.equal(weights[0], w) for w in weights)

    ranks(2, body)


def test_functional_collectives_dtensor_and_fsdp2(ranks):
    """What torch builds on collectives that return futures; sharded training equals training alone."""

    def body():
        from torch.distributed import _functional_collectives as functional
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor import Shard, distribute_tensor

        me, world = dist.get_rank(), dist.get_world_size()
        assert functional.all_reduce(torch.ones(4) * (me + 1), "sum", dist.group.WORLD).tolist() == [3.0] * 4
        exchanged = functional.all_to_all_single(torch.arange(4.0) + 10 * me, None, None, dist.group.WORLD)
        assert exchanged.tolist() == [2.0 * me, 2.0 * me + 1, 10 + 2.0 * me, 11 + 2.0 * me]

        mesh = init_device_mesh("cpu", (world,))
        sharded = distribute_tensor(torch.arange(8.0).view(4, 2), mesh, [Shard(0)])
        assert sharded.sum().full_tensor().item() == 28
        assert (sharded > 6).any().full_tensor().item()

        def train(shard):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
            if shard:
                for layer in (model[0], model[2], model):
                    fully_shard(layer, mesh=mesh)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            inputs = torch.randn(world, 2, 8, generator=torch.Generator().manual_seed(3))
            for _ in range(3):
                optimizer.zero_grad()
                # The mean over ranks of means over their inputs is the mean over all.
                model(inputs[me] if shard else inputs).square().mean().backward()
                optimizer.step()
            return [p.full_tensor() if shard else p.detach() for p in model.parameters()]

        for ours, right in zip(train(True), train(False), strict=True):
            torch.testing.assert_close(ours, right)

    ranks(2, body)
