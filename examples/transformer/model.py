"""A small decoder-only transformer over characters, written so that each way of parallel training can cut it:
whole, by blocks (pipeline), and by heads and hidden units within a block (tensor parallel)."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention, silu


@dataclass(frozen=True)
class Config:
    vocabulary: int
    width: int = 256
    heads: int = 8
    layers: int = 4
    hidden: int = 768


class Transformer(nn.Module):
    """Characters (batch, length) int64 -> logits (batch, length, vocabulary).

    A stage of a pipeline has some of `layers`, and in place of characters or logits the hidden states
    (batch, length, width) that come from the stage before or go to the next: without `embedding` it is not
    the first, without `head` not the last.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embedding: nn.Module | None = nn.Embedding(config.vocabulary, config.width)
        self.layers = nn.ModuleDict({str(i): Block(config) for i in range(config.layers)})
        self.norm: nn.Module | None = nn.RMSNorm(config.width)
        self.head: nn.Module | None = nn.Linear(config.width, config.vocabulary, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                residual = name.endswith(("attention.output.weight", "mlp.down.weight"))
                nn.init.normal_(parameter, std=0.02 / ((2 * config.layers) ** 0.5 if residual else 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers.values():
            x = layer(x)
        if self.norm is not None and self.head is not None:
            x = self.head(self.norm(x))
        return x


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width)
        self.attention = Attention(config)
        self.mlp_norm = nn.RMSNorm(config.width)
        self.mlp = Mlp(config)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Attention(nn.Module):
    """Causal self-attention with rotary positions. It takes the heads that the projections give it: under
    tensor parallelism, this rank's."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.head_width = config.width // config.heads
        self.query, self.key, self.value, self.output = (
            nn.Linear(config.width, config.width, bias=False) for _ in range(4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            project(x)
            .unflatten(-1, (-1, self.head_width))
            .transpose(1, 2)  # (batch, heads, length, head width)
            for project in (self.query, self.key, self.value)
        )
        y = scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True)
        return self.output(y.transpose(1, 2).flatten(-2))


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.gate = nn.Linear(config.width, config.hidden, bias=False)
        self.up = nn.Linear(config.width, config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(silu(self.gate(x)) * self.up(x))


def rotate(x: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding (Su et al. 2021, RoFormer) of (..., length, even width)."""
    length, half = x.shape[-2], x.shape[-1] // 2
    frequency = 10000.0 ** -(torch.arange(half, dtype=x.dtype) / half)
    angle = torch.arange(length, dtype=x.dtype)[:, None] * frequency
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)
