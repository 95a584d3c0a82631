"""What a training step computes and sends: layers with times and tensors, from YAML, a torch module or
figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pycoll.bench.units import parse_size
from pycoll.errors import InvalidArgument, Unsupported
from pycoll.topology.units import parse_time

if TYPE_CHECKING:
    import torch

__all__ = ["PATTERNS", "Layer", "Workload"]

PATTERNS = ("ddp", "fsdp", "tp", "pp")

NO_EXECUTION_TRACES = (
    "execution traces (Chakra's, and torch's ExecutionTraceObserver) are not read; give the traces that "
    "torch.profiler takes of the same steps, of which Chakra's get their times: "
    "--workload trace0.json,trace1.json"
)


@dataclass(frozen=True)
class Layer:
    """A layer: seconds of its forward and backward, and the bytes of each of its tensors of parameters.

    ``activation`` is the bytes that the layer puts out: tensor parallelism adds them up, twice a direction, a
    pipeline sends them on.
    """

    name: str
    forward: float
    backward: float
    tensors: tuple[int, ...]
    activation: int = 0

    @property
    def bytes(self) -> int:
        """Of all its parameters."""
        return sum(self.tensors)


@dataclass(frozen=True)
class Workload:
    """Layers in the order of the forward pass, and how their parameters are kept in step.

    ``pattern``: ``ddp`` (allreduce of gradients in buckets while backward runs), ``fsdp`` (all_gather of
    each layer before forward and backward, reduce_scatter after backward, one layer ahead), ``tp`` (two
    allreduces of activations a layer and direction, which nothing hides), ``pp`` (a pipeline of ``stages``
    through which ``microbatches`` go, 1F1B; layers' times are those of all microbatches).
    DDP's rules: tensors fill buckets in the reverse order of layers, the first closes at ``first_bucket``
    bytes, the others at ``bucket``.
    ``order``: ``fifo`` sends buckets as they become ready, and the next forward waits for all; ``priority``
    sends of those that are ready the one whose layer comes first, and each layer of the next forward waits
    for its own only (TicTac, arXiv 1803.03288). ``step`` is the optimizer's seconds.
    """

    name: str
    layers: tuple[Layer, ...]
    pattern: str = "ddp"
    bucket: int = 25 << 20
    first_bucket: int = 1 << 20
    order: str = "fifo"
    step: float = 0.0
    stages: int = 0
    microbatches: int = 0

    def __post_init__(self) -> None:
        if not self.layers:
            raise InvalidArgument(f"workload {self.name!r} has no layers")
        if self.pattern not in PATTERNS:
            raise InvalidArgument(f"there is no pattern {self.pattern!r}; there are: {', '.join(PATTERNS)}")
        if self.order not in ("fifo", "priority"):
            raise InvalidArgument(f"the order of buckets is fifo or priority, not {self.order!r}")
        if self.stages < 0 or self.microbatches < 0:
            raise InvalidArgument("stages and microbatches are numbers from 1 on, or 0 for the usual ones")
        if self.bucket < 1 or self.first_bucket < 1:
            raise InvalidArgument("a bucket has 1 byte or more")

    @property
    def compute(self) -> float:
        """Seconds of forward, backward and step, were there nothing to send."""
        return sum(layer.forward + layer.backward for layer in self.layers) + self.step

    @property
    def bytes(self) -> int:
        """Of all parameters."""
        return sum(layer.bytes for layer in self.layers)

    # ---- where one comes from

    @classmethod
    def load(cls, source: str | PathLike[str]) -> Workload:
        """A YAML file (docs/whatif.md), or a transformer by name: 1b, 7b, 13b, 70b.

        Raises InvalidArgument for anything else, Unsupported for Chakra's execution traces.
        """
        text = str(source)
        if text.endswith(".et"):
            raise Unsupported(f"workload {text}: {NO_EXECUTION_TRACES}")
        if text.lower() in _MODELS:
            return cls.transformer(text.lower(), **_MODELS[text.lower()])
        try:
            return cls.from_yaml(Path(source).read_text(encoding="utf-8"), file=text)
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise InvalidArgument(
                f"workload {text}: {reason}; name a YAML file or one of {', '.join(_MODELS)}"
            ) from error

    @classmethod
    def from_yaml(cls, text: str, *, file: str = "workload") -> Workload:
        """The workload that a file describes. Raises InvalidArgument, naming file and field."""
        try:
            read = _File.model_validate(yaml.safe_load(text))
        except yaml.YAMLError as error:
            raise InvalidArgument(f"{file}: {error}") from error
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise InvalidArgument(f"{file}: {where}: {first['msg']}") from error
        layers: list[Layer] = []
        for each in read.layers:
            tensors = tuple(int(count * read.element) for count in each.parameters)
            made = Layer(
                each.name,
                parse_time(each.forward),
                parse_time(each.backward),
                tensors,
                parse_size(each.activation),
            )
            names = [each.name] if each.count == 1 else [f"{each.name}{i}" for i in range(each.count)]
            layers += [replace(made, name=name) for name in names]
        return cls(
            read.name,
            tuple(layers),
            read.pattern,
            parse_size(read.bucket),
            parse_size(read.first_bucket),
            read.order,
            parse_time(read.step),
            read.stages,
            read.microbatches,
        )

    @classmethod
    def transformer(
        cls,
        name: str,
        *,
        layers: int,
        hidden: int,
        feed_forward: int,
        vocabulary: int = 32_000,
        tokens: int = 4096,
        flops: float = 400e12,
        element: int = 2,
        kv: int | None = None,
    ) -> Workload:
        """A decoder with gated feed-forward layers, as LLaMA (arXiv 2302.13971).

        ``tokens`` a rank and step, ``flops`` that a rank really does a second; forward takes 2 operations a
        parameter and token, backward twice that (arXiv 2001.08361, section 2.1). ``element`` is bytes of a
        parameter's gradient, ``kv`` the width of keys and values where they are grouped.
        """
        width = hidden if kv is None else kv
        matrices = (hidden * hidden, hidden * width, hidden * width, hidden * hidden)
        block = (*matrices, *3 * (hidden * feed_forward,), hidden, hidden)
        seconds = 2 * tokens / flops
        made = [Layer("embedding", 0.0, 0.0, (vocabulary * hidden * element,))]
        for number in range(layers):
            made.append(
                Layer(
                    f"block{number}",
                    seconds * sum(block),
                    2 * seconds * sum(block),
                    tuple(count * element for count in block),
                    tokens * hidden * element,
                )
            )
        head = vocabulary * hidden
        made.append(Layer("head", seconds * head, 2 * seconds * head, (head * element, hidden * element)))
        return cls(name, tuple(made))

    @classmethod
    def from_module(
        cls, module: torch.nn.Module, forward: float, backward: float, *, name: str = ""
    ) -> Workload:
        """The parameters of a torch module, layer by layer; its measured seconds are dealt out by
        parameters."""
        leaves: list[tuple[str, list[tuple[int, int]]]] = []
        for path, part in module.named_modules():
            own = [
                (each.numel(), each.numel() * each.element_size())
                for each in part.parameters(recurse=False)
                if each.requires_grad
            ]
            if own:
                leaves.append((path or type(module).__name__, own))
        total = sum(count for _, own in leaves for count, _ in own)
        if not total:
            raise InvalidArgument(f"{type(module).__name__} has no parameters that need gradients")
        layers = []
        for path, own in leaves:
            share = sum(count for count, _ in own) / total
            layers.append(Layer(path, forward * share, backward * share, tuple(size for _, size in own)))
        return cls(name or type(module).__name__, tuple(layers))


_MODELS: Mapping[str, Mapping[str, Any]] = {  # LLaMA and LLaMA 2: arXiv 2302.13971, 2307.09288; 1b: TinyLlama
    "1b": {"layers": 22, "hidden": 2048, "feed_forward": 5632, "kv": 256},
    "7b": {"layers": 32, "hidden": 4096, "feed_forward": 11008},
    "13b": {"layers": 40, "hidden": 5120, "feed_forward": 13824},
    "70b": {"layers": 80, "hidden": 8192, "feed_forward": 28672, "kv": 1024},
}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _LayerOfFile(_Strict):
    name: str
    count: int = Field(1, ge=1)
    forward: str = "0 s"
    backward: str = "0 s"
    parameters: list[float] = Field(default_factory=list)
    activation: str = "0B"


class _File(_Strict):
    name: str = "workload"
    pattern: Literal["ddp", "fsdp", "tp", "pp"] = "ddp"
    element: int = Field(4, ge=1)  # bytes
    bucket: str = "25MiB"
    first_bucket: str = "1MiB"
    order: Literal["fifo", "priority"] = "fifo"
    step: str = "0 s"
    stages: int = Field(0, ge=0)
    microbatches: int = Field(0, ge=0)
    layers: list[_LayerOfFile] = Field(min_length=1)
