"""The ways to train the transformer over the ranks of a group. All start from the same weights and train on
the same batches; what differs is who has which part of the model and of the batch.

Everything here is torch's. pycoll has no part in it: the backend is the group's.
"""

from copy import deepcopy

import torch
import torch.distributed as dist
from model import Config, Transformer
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

Group = dist.ProcessGroup


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return cross_entropy(logits.flatten(0, 1), targets.flatten())


def new_model(config: Config) -> Transformer:
    torch.manual_seed(0)
    return Transformer(config)


def new_optimizer(*models: nn.Module) -> torch.optim.Optimizer:
    weights = [p for model in models for p in model.parameters()]
    return torch.optim.AdamW(weights, lr=1e-3, betas=(0.9, 0.95))


def mesh_of(group: Group) -> DeviceMesh:
    # The name of its dimension is its own: meshes of equal ranks and names are the same to torch, even where
    # their groups, as here one over pycoll and one over gloo, are not.
    return DeviceMesh.from_group(group, "cpu", mesh_dim_names=(f"group_{group.group_name}",))


class Single:
    """One process with the whole model and the whole batch; what the others must equal."""

    model: nn.Module

    def __init__(self, config: Config) -> None:
        self.model = new_model(config)
        self.optimizer = new_optimizer(self.model)

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Train on a batch. This rank's loss, a scalar; see `losses`."""
        self.optimizer.zero_grad()
        loss = loss_of(self.model(inputs), targets)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def losses(self, of_steps: torch.Tensor) -> torch.Tensor:
        """What `step` returned on this rank, for many steps, as losses of the whole batch, on every rank."""
        return of_steps


class DataParallel(Single):
    """Each rank has the whole model and a part of the batch; DDP averages the gradients."""

    def __init__(self, config: Config, group: Group, hook: bool = False) -> None:
        self.group = group
        # Small buckets, so that the first are under way while backward computes the last.
        self.model = DistributedDataParallel(
            new_model(config), process_group=group, bucket_cap_mb=4, gradient_as_bucket_view=True
        )
        if hook:
            from pycoll.torch import ddp_hook

            self.model.register_comm_hook(group, ddp_hook)
        self.optimizer = new_optimizer(self.model)

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        rank, ranks = self.group.rank(), self.group.size()
        return super().step(inputs.chunk(ranks)[rank], targets.chunk(ranks)[rank])

    def losses(self, of_steps: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(of_steps, group=self.group)
        return of_steps / self.group.size()


class FullyShardedDataParallel(DataParallel):
    """Each rank has a part of every weight and of the batch; FSDP2 gathers the weights of the block that
    computes, and scatters its gradients."""

    def __init__(self, config: Config, group: Group) -> None:
        self.group = group
        self.model = new_model(config)
        mesh = mesh_of(group)
        for part in [*self.model.layers.values(), self.model]:
            fully_shard(part, mesh=mesh)
            # FSDP's buffers are then the backend's where it has memory of its own: pycoll's is shared memory,
            # in which its collectives copy nothing.
            part.set_allocate_memory_from_process_group_for_comm(True)
        self.optimizer = new_optimizer(self.model)


class TensorParallel(Single):
    """Each rank has some of the heads and hidden units of every block, and the whole batch; between attention
    and MLPs, a part of every sequence (Korthikanti et al. 2022, sequence parallelism)."""

    def __init__(self, config: Config, group: Group) -> None:
        self.model = new_model(config)
        mesh = mesh_of(group)
        of_sequence, whole = Shard(1), Replicate()
        for block in self.model.layers.values():
            parallelize_module(
                block,
                mesh,
                {
                    "attention_norm": SequenceParallel(),
                    "attention": PrepareModuleInput(input_layouts=of_sequence, desired_input_layouts=whole),
                    "attention.query": ColwiseParallel(),
                    "attention.key": ColwiseParallel(),
                    "attention.value": ColwiseParallel(),
                    "attention.output": RowwiseParallel(output_layouts=of_sequence),
                    "mlp_norm": SequenceParallel(),
                    "mlp": PrepareModuleInput(input_layouts=of_sequence, desired_input_layouts=whole),
                    "mlp.gate": ColwiseParallel(),
                    "mlp.up": ColwiseParallel(),
                    "mlp.down": RowwiseParallel(output_layouts=of_sequence),
                },
            )
        parallelize_module(
            self.model,
            mesh,
            {
                "embedding": RowwiseParallel(input_layouts=whole, output_layouts=of_sequence),
                "norm": SequenceParallel(),
                "head": ColwiseParallel(input_layouts=of_sequence, output_layouts=whole),
            },
        )
        self.optimizer = new_optimizer(self.model)


class Pipeline:
    """Each rank has some of the blocks, and the batch passes through them in small parts. `interleaved`: two
    stages a rank, so that a rank starts sooner and waits less (Narayanan et al. 2021)."""

    MICROBATCHES = 4

    def __init__(self, config: Config, group: Group, interleaved: bool = False) -> None:
        self.group = group
        count = group.size() * (2 if interleaved else 1)
        whole = new_model(config)
        stages = [
            PipelineStage(cut(whole, index, count), index, count, torch.device("cpu"), group=group)
            for index in range(group.rank(), count, group.size())
        ]
        self.stages = stages
        self.schedule = (
            ScheduleInterleaved1F1B(stages, self.MICROBATCHES, loss_fn=loss_of)
            if interleaved
            else Schedule1F1B(stages[0], self.MICROBATCHES, loss_fn=loss_of)
        )
        self.optimizer = new_optimizer(*(stage.submod for stage in stages))

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        losses: list[torch.Tensor] = []
        of_first = (inputs,) if self.group.rank() == 0 else ()
        if self.group.rank() == self.group.size() - 1:
            self.schedule.step(*of_first, target=targets, losses=losses)
        else:
            self.schedule.step(*of_first)
        self.optimizer.step()
        return torch.stack(losses).mean().detach() if losses else torch.zeros(())

    def losses(self, of_steps: torch.Tensor) -> torch.Tensor:
        dist.broadcast(of_steps, group=self.group, group_src=self.group.size() - 1)
        return of_steps


def cut(whole: Transformer, index: int, count: int) -> Transformer:
    """Stage `index` of `count`."""
    stage = deepcopy(whole)
    layers = len(whole.layers)
    for layer in range(layers):
        if not index * layers // count <= layer < (index + 1) * layers // count:
            del stage.layers[str(layer)]
    if index > 0:
        stage.embedding = None
    if index < count - 1:
        stage.norm = stage.head = None
    return stage
