"""A tiny transformer whose sums have an order that we choose, for lesson 15.

A fast kernel chooses the order of its additions by the shape of its input. Here the order is an argument: `parts` says
into how many runs of neighbouring terms a sum is split. Every addition is written out. Exponentials, logarithms and
random numbers are computed in float64 and rounded, because their last digits depend on the processor.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Order = Callable[[int], int]
"""Number of rows in the batch → number of parts of every sum."""
WIDTH, HEADS, VOCABULARY = 32, 2, 24


def add_in_parts(terms: Tensor, parts: int) -> Tensor:
    """Sum over the last axis: first within `parts` equal runs of neighbours, one term after the other, then the runs.

    >>> add_in_parts(torch.tensor([256.0, 1.0, 1.0, 1.0], dtype=torch.bfloat16), 1).item()
    256.0
    >>> add_in_parts(torch.tensor([256.0, 1.0, 1.0, 1.0], dtype=torch.bfloat16), 2).item()
    258.0
    """
    runs = terms.unflatten(-1, (parts, -1))
    sums = runs[..., 0]
    for column in range(1, runs.shape[-1]):
        sums = sums + runs[..., column]
    total = sums[..., 0]
    for part in range(1, parts):
        total = total + sums[..., part]
    return total


def multiply(x: Tensor, weights: Tensor, parts: int) -> Tensor:
    """Multiply (…, K) by (K, N). A part is added in float32 and stored in the format of x, as split kernels may do."""
    terms = x.float()[..., None, :] * weights.float().T
    stored = add_in_parts(terms.unflatten(-1, (parts, -1)), 1).to(x.dtype)
    return add_in_parts(stored, 1)


@dataclass(frozen=True)
class Model:
    """A transformer without training: its embedding, per layer four matrices, and its head."""

    embedding: Tensor
    layers: tuple[tuple[Tensor, Tensor, Tensor, Tensor], ...]
    head: Tensor

    def to(self, dtype: torch.dtype) -> "Model":
        """Return the model with its weights rounded to a format."""
        layers = tuple(tuple(matrix.to(dtype) for matrix in layer) for layer in self.layers)
        return Model(self.embedding.to(dtype), layers, self.head.to(dtype))  # pyright: ignore[reportArgumentType]


def make_model(layers: int, seed: int = 0) -> Model:
    """Draw the weights, in float32."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(rows: int, columns: int, scale: float = 1.0) -> Tensor:
        normal = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
        return (scale * normal / rows**0.5).float()

    of_layers = tuple(
        (drawn(WIDTH, 3 * WIDTH), drawn(WIDTH, WIDTH), drawn(WIDTH, 2 * WIDTH), drawn(2 * WIDTH, WIDTH))
        for _ in range(layers)
    )
    embedding = torch.randn(VOCABULARY, WIDTH, generator=generator, dtype=torch.float64).float()
    return Model(embedding, of_layers, drawn(WIDTH, VOCABULARY, scale=3.0))


def log_probs(model: Model, ids: Tensor, order: Order) -> Tensor:
    """Return the log-prob of every token but the first, (B, T − 1), computed with the order for this batch."""
    parts = order(len(ids))
    x = model.embedding[ids]
    for qkv, out, up, down in model.layers:
        x = x + multiply(_attention(_normalised(x, parts), qkv, parts), out, parts)
        x = x + multiply(multiply(_normalised(x, parts), up, parts).clamp(min=0), down, parts)
    logits = multiply(_normalised(x, parts), model.head, parts).double()
    return logits[:, :-1].log_softmax(-1).float().gather(-1, ids[:, 1:, None])[..., 0]


def _normalised(x: Tensor, parts: int) -> Tensor:
    mean_square = add_in_parts(x.float().square(), parts) / WIDTH
    root = (mean_square[..., None] + 1e-6).double().sqrt().float()  # that of float32 is not rounded alike everywhere
    return (x.float() / root).to(x.dtype)


def _attention(x: Tensor, qkv: Tensor, parts: int) -> Tensor:
    """Return causal attention, (B, T, WIDTH). Its sums over positions always have one order."""
    q, k, v = (
        part.unflatten(-1, (HEADS, -1)).transpose(1, 2).float() for part in multiply(x, qkv, parts).chunk(3, -1)
    )  # (B, heads, T, WIDTH / heads)
    scores = add_in_parts(q[..., None, :] * k[..., None, :, :], parts) / k.shape[-1] ** 0.5
    future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    shares = scores.double().masked_fill(future, -torch.inf).softmax(-1).float()
    mixed = add_in_parts(shares[..., None, :] * v.transpose(-1, -2)[..., None, :, :], 1)
    return mixed.transpose(1, 2).flatten(-2).to(x.dtype)
