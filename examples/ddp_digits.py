"""Train a small convolutional network on handwritten digits with DistributedDataParallel.

    torchrun --nproc-per-node 2 examples/ddp_digits.py --backend pycoll
    torchrun --nproc-per-node 2 examples/ddp_digits.py --compare

The data are scikit-learn's digits (1797 images of 8 x 8 pixels), which come with it: nothing is downloaded.
All that makes this a pycoll program is the word "pycoll" in init_process_group. `--compare` trains over
pycoll and over gloo, in float64, and says how far the weights are apart.
"""

import argparse
import copy
import hashlib
import os
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

GLOBAL_BATCH = 64
MEASURED_STEPS = 60


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", choices=["pycoll", "gloo"], default="pycoll")
    parser.add_argument("--compare", action="store_true", help="train over both, compare the weights")
    parser.add_argument("--epochs", type=int, default=20)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # a rank a core
    if arguments.compare:
        # More than two ranks are summed in another order; training is chaotic and lets that grow, in float32
        # beyond telling it from an error.
        torch.set_default_dtype(torch.float64)

    results = {}
    for backend in ["pycoll", "gloo"] if arguments.compare else [arguments.backend]:
        dist.init_process_group(backend)
        results[backend] = train(arguments.epochs)
        if dist.get_rank() == 0:
            print(f"{backend}, {dist.get_world_size()} ranks: {results[backend]}", flush=True)
        dist.destroy_process_group()
    if arguments.compare:
        difference = (results["pycoll"].weights - results["gloo"].weights).abs().max().item()
        ratio = results["gloo"].communication_ms / results["pycoll"].communication_ms
        if not difference < 1e-6:
            raise SystemExit(f"the weights differ by {difference:.2e}, more than rounding explains")
        if os.environ["RANK"] == "0":
            print(f"weights differ by at most {difference:.2e}; gloo communicates {ratio:.1f} times as long")


@dataclass
class Result:
    accuracy: float  # on the test images, 0 to 1
    seconds: float  # of the whole training
    step_ms: float  # mean over the steps of all epochs but the first, which also warms up
    communication_ms: float  # a step, see `measure_communication`
    weights: torch.Tensor  # all of them, flat

    def __str__(self) -> str:
        digest = hashlib.sha256(self.weights.numpy().tobytes()).hexdigest()[:12]
        return (
            f"test accuracy {100 * self.accuracy:.2f} %, {self.seconds:.1f} s, {self.step_ms:.2f} ms a step, "
            f"communication {self.communication_ms:.3f} ms a step, "
            f"weights {digest} (sum {self.weights.double().sum().item():.6f})"
        )


def train(epochs: int) -> Result:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    training, test = digits()
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(training, seed=0)
    batches = DataLoader(training, batch_size=max(1, GLOBAL_BATCH // ranks), sampler=sampler, drop_last=True)

    torch.manual_seed(0)
    model = DistributedDataParallel(network())
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 5e-3, epochs=epochs, steps_per_epoch=len(batches)
    )
    dist.barrier()
    start = warm = time.perf_counter()
    for epoch in range(epochs):
        sampler.set_epoch(epoch)  # another order each time, the same on every rank
        if epoch == 1:
            warm = time.perf_counter()
        for images, labels in batches:
            optimizer.zero_grad()
            cross_entropy(model(images), labels).backward()
            optimizer.step()
            schedule.step()
    end = time.perf_counter()

    # Each rank judges every ranks-th test image.
    model.eval()
    images, labels = (tensor[rank::ranks] for tensor in test.tensors)
    with torch.no_grad():
        right = (model(images).argmax(1) == labels).sum()
    dist.all_reduce(right)
    return Result(
        accuracy=right.item() / len(test),
        seconds=end - start,
        step_ms=1000 * (end - warm) / (max(1, epochs - 1) * len(batches)),
        communication_ms=measure_communication(model.module, batches),
        weights=torch.cat([p.detach().flatten() for p in model.module.parameters()]),
    )


def digits() -> tuple[TensorDataset, TensorDataset]:
    """Images (n, 1, 8, 8) of the default dtype in [0, 1] with labels (n,) int64: four fifths to train on."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.get_default_dtype()).unsqueeze(1) / 16
    labels = torch.tensor(data.target)
    for_training, for_test = train_test_split(
        torch.arange(len(labels)), test_size=0.2, stratify=data.target, random_state=0
    )
    return TensorDataset(images[for_training], labels[for_training]), TensorDataset(
        images[for_test], labels[for_test]
    )


def network() -> nn.Module:
    """139 000 weights, 0.56 MB of gradients a step."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 4 * 4, 256), nn.ReLU(), nn.Dropout(0.25), nn.Linear(256, 10),
    )  # fmt: skip


def measure_communication(trained: nn.Module, batches: DataLoader[tuple[torch.Tensor, ...]]) -> float:
    """Milliseconds a step that averaging the gradients takes, in further steps of a copy of the model.

    There, DDP's communication hook is a blocking all_reduce with a clock around it. Of each step the least
    over the ranks counts: that of the rank that came last, which waited for nobody. The median of the steps.
    """
    spent = torch.zeros(MEASURED_STEPS, dtype=torch.float64)
    step = 0

    def timed_average(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        gradients = bucket.buffer()
        start = time.perf_counter()
        dist.all_reduce(gradients)
        spent[step] += time.perf_counter() - start
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(gradients.div_(dist.get_world_size()))
        return done

    model = DistributedDataParallel(copy.deepcopy(trained).train())
    model.register_comm_hook(None, timed_average)
    images, labels = next(iter(batches))
    for step in range(MEASURED_STEPS):  # noqa: B007  the hook reads it
        cross_entropy(model(images), labels).backward()
    dist.all_reduce(spent, dist.ReduceOp.MIN)
    return 1000 * spent[MEASURED_STEPS // 6 :].median().item()


if __name__ == "__main__":
    main()
