"""Training whose weights, gradients or optimizer state are spread over the ranks equals training alone."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn


class Network(nn.Module):
    """Dimensions that 2 and 3 ranks divide, and some that they do not."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(12, 37), nn.Linear(37, 30), nn.Linear(30, 5)])
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        return x * self.scale


def new_network() -> Network:
    torch.manual_seed(0)
    return Network().double()


def batches(steps: int = 4) -> list[torch.Tensor]:
    """Of each step all ranks' inputs (ranks, 6, 12)."""
    generator = torch.Generator().manual_seed(3)
    shape = (dist.get_world_size(), 6, 12)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(steps)]


def train(model, optimizer, mine: bool) -> list[float]:
    """Losses of this rank's inputs, or of all; their mean over ranks is the same."""
    losses = []
    for inputs in batches():
        optimizer.zero_grad()
        loss = model(inputs[dist.get_rank()] if mine else inputs).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def train_alone() -> Network:
    model = new_network()
    train(model, torch.optim.AdamW(model.parameters(), lr=1e-2), mine=False)
    return model


@pytest.mark.parametrize("n", [2, 3])
def test_fsdp2(ranks, n):
    def body():
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        alone = train_alone()
        for reshard in (True, False):
            for own_memory in (False, True):
                model = new_network()
                for part in [*model.layers, model]:
                    fully_shard(part, mesh=mesh, reshard_after_forward=reshard)
                    # Its collectives then run in pycoll's shared memory.
                    part.set_allocate_memory_from_process_group_for_comm(own_memory)
                train(model, torch.optim.AdamW(model.parameters(), lr=1e-2), mine=True)
                for ours, right in zip(model.parameters(), alone.parameters(), strict=True):
                    torch.testing.assert_close(ours.full_tensor(), right, rtol=1e-12, atol=1e-13)

        low = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        model = fully_shard(new_network(), mesh=mesh, mp_policy=low)
        train(model, torch.optim.AdamW(model.parameters(), lr=1e-2), mine=True)
        for ours, right in zip(model.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(ours.full_tensor(), right, rtol=0, atol=0.05)

    ranks(n, body)


def test_fsdp2_divides_gradients_by_a_factor_of_its_own(ranks):
    """It multiplies within the reduction (PREMUL_SUM); in bfloat16 what is divided after it would be another
    number."""

    def body():
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        me, world = dist.get_rank(), dist.get_world_size()
        mesh = init_device_mesh("cpu", (world,))
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            model = nn.Linear(4, 3, bias=False)
            policy = MixedPrecisionPolicy(reduce_dtype=dtype)
            fully_shard(model, mesh=mesh, mp_policy=policy)
            model.set_gradient_divide_factor(4.0)
            x = torch.arange(4.0) + 10 * me
            model(x).sum().backward()
            total = sum(torch.arange(4.0) + 10 * rank for rank in range(world))
            assert torch.equal(model.weight.grad.full_tensor(), (total / 4).expand(3, 4)), dtype

    ranks(3, body)


@pytest.mark.parametrize("n", [2, 3])
def test_fsdp1(ranks, n):
    def body():
        import warnings

        from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy

        warnings.simplefilter("ignore", FutureWarning)
        alone = train_alone()
        for strategy in (
            ShardingStrategy.FULL_SHARD,
            ShardingStrategy.SHARD_GRAD_OP,
            ShardingStrategy.NO_SHARD,
        ):
            model = FullyShardedDataParallel(
                new_network(),
                sharding_strategy=strategy,
                auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
                device_id=torch.device("cpu"),
                use_orig_params=True,
            )
            train(model, torch.optim.AdamW(model.parameters(), lr=1e-2), mine=True)
            with FullyShardedDataParallel.summon_full_params(model):
                for ours, right in zip(model.parameters(), alone.parameters(), strict=True):
                    torch.testing.assert_close(
                        ours.detach().view(right.shape), right.detach(), rtol=1e-12, atol=1e-13
                    )

    ranks(n, body)


def test_zero_redundancy_optimizer(ranks):
    """Each rank keeps the state of some weights; the weights are those of the plain optimizer, to the bit."""

    def body():
        from torch.distributed.optim import ZeroRedundancyOptimizer
        from torch.nn.parallel import DistributedDataParallel

        plain = DistributedDataParallel(new_network())
        train(plain, torch.optim.AdamW(plain.parameters(), lr=1e-2), mine=True)
        for as_views in (False, True):
            model = DistributedDataParallel(new_network())
            optimizer = ZeroRedundancyOptimizer(
                model.parameters(), torch.optim.AdamW, lr=1e-2, parameters_as_bucket_view=as_views
            )
            train(model, optimizer, mine=True)
            for ours, right in zip(model.parameters(), plain.parameters(), strict=True):
                assert torch.equal(ours, right)
            optimizer.consolidate_state_dict(to=1)
            if dist.get_rank() == 1:
                assert len(optimizer.state_dict()["state"]) == len(list(plain.parameters()))

    ranks(3, body)


def test_uneven_inputs(ranks):
    """Join: a rank that has no more inputs shadows the others' collectives, as over gloo."""

    def body():
        from torch.nn.parallel import DistributedDataParallel

        me = dist.get_rank()
        weights = []
        for backend in ("pycoll", "gloo"):
            group = dist.new_group(backend=backend)
            model = DistributedDataParallel(new_network(), process_group=group, bucket_cap_mb=0.002)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            with model.join():
                for inputs in batches(2 + 2 * me):
                    optimizer.zero_grad()
                    model(inputs[me]).square().mean().backward()
                    optimizer.step()
            weights.append([p.detach() for p in model.parameters()])
        for ours, theirs in zip(*weights, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)

    ranks(3, body)


def test_checkpoints(ranks, tmp_path):
    """torch.distributed.checkpoint writes what it reads, also to a model that is cut in another way or by
    another number of ranks."""

    def sharded(dim: int):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Shard, distribute_tensor

        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        values = torch.arange(35 * 6, dtype=torch.float32).view(35, 6)
        return values, distribute_tensor(values, mesh, [Shard(dim)])

    def save(path: str):
        import torch.distributed.checkpoint as checkpoint

        _, tensor = sharded(0)
        state = {"weights": tensor, "step": torch.tensor(7), "note": "kept"}
        checkpoint.save(state, checkpoint_id=path)
        checkpoint.async_save(state, checkpoint_id=path + "-later").result()

    def load(path: str, dim: int):
        import torch.distributed.checkpoint as checkpoint

        values, tensor = sharded(dim)
        for where in (path, path + "-later"):
            state = {"weights": torch.zeros_like(tensor), "step": torch.tensor(0), "note": ""}
            checkpoint.load(state, checkpoint_id=where)
            assert torch.equal(state["weights"].full_tensor(), values)
            assert state["step"] == 7
            assert state["note"] == "kept"

    path = str(tmp_path / "checkpoint")
    ranks(2, save, path)
    ranks(2, load, path, 0)
    ranks(2, load, path, 1)
    ranks(3, load, path, 0)


def test_checkpoint_of_fsdp2_and_its_optimizer(ranks, tmp_path):
    def body(path: str):
        import torch.distributed.checkpoint as checkpoint
        from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
        from torch.distributed.fsdp import fully_shard

        def new(seed: int):
            torch.manual_seed(seed)
            model = fully_shard(Network().double())
            return model, torch.optim.AdamW(model.parameters(), lr=1e-2)

        model, optimizer = new(0)
        train(model, optimizer, mine=True)
        weights, moments = get_state_dict(model, optimizer)
        checkpoint.save({"model": weights, "optimizer": moments}, checkpoint_id=path)
        expected = train(model, optimizer, mine=True)

        model, optimizer = new(1)
        train(model, optimizer, mine=True)
        weights, moments = get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": moments}
        checkpoint.load(state, checkpoint_id=path)
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
        assert train(model, optimizer, mine=True) == expected

    ranks(2, body, str(tmp_path / "checkpoint"))
