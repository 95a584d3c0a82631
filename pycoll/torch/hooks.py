"""A communication hook for DistributedDataParallel whose gradients lie in shared memory."""

# No `from __future__ import annotations`: torch compares a hook's annotations with the classes themselves.

from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket

from pycoll.torch import build


def ddp_hook(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket of gradients over the ranks, in place, in memory that all of them share.

        model = DistributedDataParallel(network, gradient_as_bucket_view=True)
        model.register_comm_hook(None, pycoll.torch.ddp_hook)

    When the hook first sees a bucket, it moves the bucket's storage into the group's shared memory, in place,
    as `Tensor.share_memory_` would into torch's: all that DDP has in it moves along. From then on each rank
    adds its part of the gradients straight from and into all ranks' buckets, and nothing is staged. With
    `gradient_as_bucket_view=True` the gradients are views of the buckets: backward itself writes there, and
    no gradient is ever copied. Without it DDP copies gradients into the buckets and out, as it always does.

    The result is that of DDP's own average up to rounding: here the sum over the ranks is divided, there the
    summands are. All ranks get the same bits. `find_unused_parameters`, `static_graph`, `no_sync`, any number
    of buckets and mixed dtypes work. What a wrapper of torch passes instead of the bucket, such as
    `fp16_compress_wrapper(pycoll.torch.ddp_hook)`, is averaged where it is. The shared memory is given back
    when DDP, and all gradients that are views of its buckets, are gone.

    Args:
        state: the process group that DDP uses; None for the default group.
        bucket: DDP's flat tensor of gradients, of any real or complex dtype that pycoll can average.

    Returns:
        A future of the bucket's tensor, averaged.

    Raises:
        TypeError: the group's backend for CPU tensors is not pycoll.
    """
    group = dist.group.WORLD if state is None else state
    backend = pycoll_backend(group)
    gradients = bucket.buffer()
    # Of another dtype is what a wrapper compressed for this one step; to move that would not pay.
    if gradients.dtype == bucket.parameters()[0].dtype:
        build.load().move_to_shared_memory(backend, gradients)
    averaged: torch.futures.Future[torch.Tensor]
    if bucket.is_last():
        # Backward has nothing left to do meanwhile: this thread may as well do it, without a hand-over.
        dist.all_reduce(gradients, dist.ReduceOp.AVG, group=group)
        averaged = torch.futures.Future()
        averaged.set_result(gradients)
    else:
        work: Any = dist.all_reduce(gradients, dist.ReduceOp.AVG, group=group, async_op=True)
        averaged = work.get_future().then(lambda future: future.value()[0])
    return averaged


def pycoll_backend(group: Any) -> Any:
    """pycoll's own object behind a process group.

    Raises:
        TypeError: CPU tensors go through another backend there.
    """
    backend: Any = group._get_backend(torch.device("cpu"))
    while hasattr(backend, "wrapped_pg"):  # as TORCH_DISTRIBUTED_DEBUG=DETAIL wraps it
        backend = backend.wrapped_pg
    if backend.name() != "pycoll":
        raise TypeError(
            f"pycoll.torch.ddp_hook needs a process group of backend pycoll, but CPU tensors of this one go "
            f"through {backend.name()}; init_process_group('pycoll'), or pass the group as the hook's state"
        )
    return backend
