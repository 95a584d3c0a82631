"""pycoll.torch.ddp_hook: DDP trains as without it, from and into shared memory."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pycoll.torch import ddp_hook


class Network(nn.Module):
    """Three layers, of which the last is float64 and the second serves every other step only."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(20, 300)
        self.second = nn.Linear(300, 300)
        self.last = nn.Linear(300, 10).double()

    def forward(self, x: torch.Tensor, all_layers: bool = True) -> torch.Tensor:
        h = self.first(x).relu()
        return self.last((self.second(h).relu() + h if all_layers else h).double())


VARIANTS = {
    "plain": {},
    "bucket views": {"gradient_as_bucket_view": True},
    "small buckets": {"bucket_cap_mb": 0.05},
    "small bucket views": {"bucket_cap_mb": 0.05, "gradient_as_bucket_view": True},
    "static graph": {"static_graph": True},
    "static graph, bucket views": {"static_graph": True, "gradient_as_bucket_view": True},
    "unused parameters": {"find_unused_parameters": True},
    "unused parameters, bucket views": {"find_unused_parameters": True, "gradient_as_bucket_view": True},
    "no_sync": {"gradient_as_bucket_view": True},
}


def train(model, variant: str = "plain") -> list[torch.Tensor]:
    """The weights after each of 4 steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    weights = []
    for step in range(4):
        x = torch.randn(16, 20, generator=generator)
        optimizer.zero_grad(set_to_none=step % 2 == 1)
        if variant == "no_sync":
            with model.no_sync():
                model(x).square().mean().backward()
        model(x, not variant.startswith("unused") or step % 2 == 0).square().mean().backward()
        optimizer.step()
        weights += [p.detach().clone() for p in model.parameters()]
    return weights


def in_shared_memory(tensor: torch.Tensor) -> bool:
    """Whether pages of a group's segment lie at the tensor's address."""
    return any(begin <= tensor.data_ptr() < end for begin, end in mappings())


def mappings() -> list[tuple[int, int]]:
    with open("/proc/self/maps") as maps:
        lines = [line.split()[0] for line in maps if "/memfd:pycoll" in line]
    return [(int(a, 16), int(b, 16)) for a, b in (line.split("-") for line in lines)]


@pytest.mark.parametrize("n", [2, 3])
def test_trains_as_without_it(ranks, n):
    def body():
        for variant, options in VARIANTS.items():
            torch.manual_seed(1)
            expected = train(DistributedDataParallel(Network(), **options), variant)
            torch.manual_seed(1)
            model = DistributedDataParallel(Network(), **options)
            model.register_comm_hook(None, ddp_hook)
            got = train(model, variant)
            for a, b in zip(got, expected, strict=True):
                # Halving is exact; with 3 ranks the sum is divided, not the summands.
                slack = {"rtol": 0, "atol": 0} if n == 2 else {"rtol": 1e-4, "atol": 1e-5}
                torch.testing.assert_close(a, b, **slack, msg=lambda m, v=variant: f"{v}: {m}")
            if options.get("gradient_as_bucket_view"):
                gradients = [p.grad for p in model.parameters() if p.grad is not None]
                assert gradients, variant
                assert all(map(in_shared_memory, gradients)), variant

    ranks(n, body)


def test_memory_is_given_back(ranks):
    def body():
        dist.barrier()
        before = sum(end - begin for begin, end in mappings())
        model = DistributedDataParallel(nn.Linear(1000, 1000), gradient_as_bucket_view=True)
        model.register_comm_hook(None, ddp_hook)
        model(torch.ones(2, 1000)).sum().backward()
        model(torch.ones(2, 1000)).sum().backward()  # DDP has made its buckets anew
        grown = sum(end - begin for begin, end in mappings()) - before
        # Own buckets, and the other rank's: of both it may still know the first ones.
        assert 8_000_000 <= grown <= 17_000_000, grown
        gradient = model.module.weight.grad
        del model
        gradient.add_(1)  # keeps its memory
        del gradient
        own = sum(end - begin for begin, end in mappings()) - before
        assert own <= 9_000_000, own  # where the other rank's were

    ranks(2, body)


def test_compressed_and_in_a_group_of_its_own(ranks):
    def body():
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_wrapper

        group = dist.new_group(backend="pycoll")
        weights = []
        for hook in (ddp_hook, fp16_compress_wrapper(ddp_hook)):
            torch.manual_seed(1)
            model = DistributedDataParallel(nn.Linear(64, 64), process_group=group)
            model.register_comm_hook(group, hook)
            generator = torch.Generator().manual_seed(dist.get_rank())
            for _ in range(3):
                model(torch.randn(8, 64, generator=generator)).square().mean().backward()
                with torch.no_grad():
                    for p in model.parameters():
                        p -= 0.1 * p.grad
            weights.append(model.module.weight.detach().clone())
            everyone = [torch.empty_like(weights[-1]) for _ in range(dist.get_world_size())]
            dist.all_gather(everyone, weights[-1])
            assert all(torch.equal(w, weights[-1]) for w in everyone)
        torch.testing.assert_close(*weights, rtol=1e-2, atol=1e-4)
        assert not torch.equal(*weights)
        dist.destroy_process_group(group)

    ranks(2, body)


def test_needs_pycoll(ranks):
    def body():
        group = dist.new_group(backend="gloo")
        model = DistributedDataParallel(nn.Linear(4, 4), process_group=group)
        model.register_comm_hook(group, ddp_hook)
        with pytest.raises(Exception, match=r"needs a process group of backend pycoll.*go through gloo"):
            model(torch.ones(2, 4)).sum().backward()

    ranks(2, body, breaks_group=True)


def test_allocate_tensor(ranks):
    """What torch itself asks backends for memory by, as FSDP2's set_allocate_memory_from_process_group."""

    def body():
        cpu, me = torch.device("cpu"), dist.get_rank()
        backend = dist.group.WORLD._get_backend(cpu)
        assert backend.supports_tensor_alloc(cpu)
        assert not backend.supports_tensor_alloc(torch.device("cuda", 0))
        for dtype in (torch.float32, torch.bfloat16, torch.bool):
            tensor = backend.allocate_tensor(100_000, dtype=dtype, device=cpu)
            assert tensor.shape == (100_000,)
            assert tensor.dtype == dtype
            assert in_shared_memory(tensor)
            tensor.fill_(me)
            dist.all_reduce(tensor)
            assert (tensor == 1).all()
        assert backend.allocate_tensor(0, dtype=torch.float32, device=cpu).numel() == 0
        with pytest.raises(ValueError, match="negative"):
            backend.allocate_tensor(-1, dtype=torch.float32, device=cpu)

        # What is given up serves again, but never keeps more than was once in use.
        group = dist.new_group(backend="pycoll")

        def allocate(size):
            return group._get_backend(cpu).allocate_tensor(size, dtype=torch.float32, device=cpu)

        base = sum(end - begin for begin, end in mappings())
        tensor = allocate(1_000_000)
        place = tensor.data_ptr()
        del tensor
        tensor = allocate(1_000_000)
        assert tensor.data_ptr() == place
        for size in range(1_000_000, 900_000, -10_000):
            del tensor
            tensor = allocate(size)
            assert sum(end - begin for begin, end in mappings()) - base < 4_100_000
        dist.destroy_process_group(group)
        assert tensor.fill_(1).sum() == tensor.numel()  # it outlives the group

    ranks(2, body)
