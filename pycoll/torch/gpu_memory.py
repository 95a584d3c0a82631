"""Memory of GPUs that all ranks of a process group have mapped: collectives work in it without staging."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

__all__ = ["mem_pool", "share_pool"]


def mem_pool() -> Any:
    """A torch.cuda.MemPool whose memory the ranks of a group can map.

        with torch.cuda.use_mem_pool(pycoll.torch.mem_pool()):
            model = DistributedDataParallel(network.cuda(), gradient_as_bucket_view=True)
            train_step(model)  # DDP lays out its buckets anew after the first step
        pycoll.torch.share_pool()

    Keep it as long as tensors are allocated from it. Raises pycoll's Unsupported where pycoll was built
    without its CUDA part, or torch without CUDA or with no MemPool (2.5 has it).
    """
    from pycoll import _cuda_memory

    return _cuda_memory.mem_pool()


def share_pool(group: dist.ProcessGroup | None = None, device: torch.device | None = None) -> None:
    """Let the ranks of a process group, torch's default one unless `group` is given, map what each has taken
    from its pools so far. Collective.

    From then on all_reduce (sum, min, max, prod), broadcast and all_gather work in an output that lies there,
    where every rank's does; what is allocated later is staged until this is called again. Ranks need not have
    allocated alike. It is all the process's pools, and holds until the group is destroyed.

    Args:
        device: this rank's part in the group; the current CUDA device unless given.

    Raises:
        TypeError: the group's backend for CUDA tensors is not pycoll.
        torch.distributed.DistError, torch.distributed.DistBackendError: on every rank, where it fails on one.
    """
    members: Any = dist.group.WORLD if group is None else group
    where = torch.device("cuda", torch.cuda.current_device()) if device is None else device
    backend = members._get_backend(where)
    while hasattr(backend, "wrapped_pg"):  # as TORCH_DISTRIBUTED_DEBUG=DETAIL wraps it
        backend = backend.wrapped_pg
    if backend.name() != "pycoll":
        raise TypeError(
            f"share_pool needs a process group whose CUDA tensors go through pycoll, not {backend.name()}"
        )
    backend.share_pool(where)
