"""Scores of log-probs by reverse mode: one backward pass for each log-prob, projected on K random directions.

A direction of a matrix is u vᵀ with random signs u and v, that of a vector is random signs. Each of the K directions is
drawn anew, so that they are independent. For a linear layer y = W x, the gradient of a log-prob is Σ δ xᵀ over the
positions, with δ its gradient with respect to y. Along u vᵀ it is Σ (δ·u)(x·v), and the gradient of W itself, which is
as large as W, is never computed. LoGra (arXiv:2405.13954) projects both factors, too, on all pairs of a few vectors u
and v. Such pairs are not independent, and the intervals of a report resample directions as if they were.
"""

import copy
import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

TOGETHER = 8
"""Backward passes that are computed together. The gradients of all activations of so many are in memory."""


@dataclass(frozen=True)
class Directions:
    """K random directions over all parameters of a model."""

    count: int
    signs: Mapping[str, tuple[Tensor, ...]]
    """Parameter → for each of its dimensions ±1, (size, K). The direction is their outer product."""

    @property
    def hash(self) -> str:
        """Return the SHA-256 of all signs."""
        return hash_of({f"{name}.{axis}": x for name, factors in self.signs.items() for axis, x in enumerate(factors)})


def draw_directions(lm: PreTrainedModel, seed: int, count: int) -> Directions:
    """Draw `count` directions, which depend on the seed, and on the names and shapes of the parameters."""
    bits = np.random.Generator(np.random.PCG64(seed))

    def signs(size: int) -> Tensor:
        drawn = np.unpackbits(bits.integers(256, size=-(-size * count // 8), dtype=np.uint8), count=size * count)
        return torch.from_numpy(drawn).view(size, count).to(lm.device, torch.float32).mul_(2).sub_(1)

    return Directions(count, {name: tuple(map(signs, weight.shape)) for name, weight in lm.named_parameters()})


def hash_of(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of names and values."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode())
        digest.update(tensor.detach().contiguous().numpy(force=True).data)
    return digest.hexdigest()


def scored_copy(lm: PreTrainedModel) -> PreTrainedModel:
    """Copy a model for `scores_of`: without dropout, and without gradients of the weights whose factors are enough.

    Several backward passes are computed together, which needs attention and experts of plain tensor operations.
    """
    lm = copy.deepcopy(lm).eval()
    lm.gradient_checkpointing_disable()
    lm.set_attn_implementation("eager")
    lm.set_experts_implementation("eager")
    lm.requires_grad_(True)
    for module in lm.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            module.weight.requires_grad_(False)
    return lm


def scores_of(lm: PreTrainedModel, directions: Directions, log_probs: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
    """Compute log-probs and their scores along all directions, divided by √K.

    Args:
        lm: a `scored_copy`.
        log_probs: computes n log-probs with this model in one forward pass.

    Returns:
        The log-probs (n,), and ⟨∇ log π, direction⟩/√K of each, (n, K).
    """
    names = {id(weight): name for name, weight in lm.named_parameters()}
    with _uses(lm, directions, names) as uses:
        values = log_probs()
    whole = [weight for weight in lm.parameters() if weight.requires_grad]
    signs = [directions.signs[names[id(weight)]] for weight in whole]
    scores = torch.zeros(len(values), directions.count, device=values.device)
    each_alone = torch.eye(len(values), device=values.device)
    for chosen in torch.arange(len(values), device=values.device).split(TOGETHER):
        gradients = torch.autograd.grad(
            values, [*(use.output for use in uses), *whole], each_alone[chosen],
            retain_graph=True, allow_unused=True, is_grads_batched=True,
        )  # fmt: skip
        for use, delta in zip(uses, gradients, strict=False):
            if delta is not None:
                scores[chosen] += use.along(delta)
        for factors, gradient in zip(signs, gradients[len(uses) :], strict=True):
            if gradient is not None:
                scores[chosen] += _along(gradient, factors)
    return values.detach(), scores * directions.count**-0.5


@dataclass(frozen=True)
class _Use:
    """One use of a linear layer or an embedding in a forward pass."""

    output: Tensor
    of_output: Tensor  # signs for the dimension of the output, (out, K)
    of_input: Tensor  # the input times the signs for its dimension, (rows, K)

    def along(self, delta: Tensor) -> Tensor:
        """Return Σ (δ·u)(x·v) over the rows, for n gradients with respect to the output, (n, …, out) → (n, K)."""
        delta = delta.flatten(1, -2)
        rows = delta.any(-1).any(0).nonzero()[:, 0]  # a token has no gradient at later positions
        return ((delta[:, rows] @ self.of_output) * self.of_input[rows]).sum(1)


@contextmanager
def _uses(lm: PreTrainedModel, directions: Directions, names: Mapping[int, str]) -> Iterator[list[_Use]]:
    """Record the uses of linear layers and embeddings inside the block."""
    uses: list[_Use] = []

    def linear(module: nn.Linear, inputs: tuple[Any, ...], output: Tensor) -> None:
        of_output, of_input = directions.signs[names[id(module.weight)]]
        uses.append(_Use(output, of_output, inputs[0].detach().flatten(0, -2) @ of_input))

    def embedding(module: nn.Embedding, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        of_token, of_output = directions.signs[names[id(module.weight)]]
        leaf = output.detach().requires_grad_()  # the weight has no gradient, so the graph begins here
        uses.append(_Use(leaf, of_output, of_token[inputs[0].flatten()]))
        return leaf

    handles = [m.register_forward_hook(linear) for m in lm.modules() if isinstance(m, nn.Linear)]
    handles += [m.register_forward_hook(embedding) for m in lm.modules() if isinstance(m, nn.Embedding)]
    try:
        yield uses
    finally:
        for handle in handles:
            handle.remove()


def _along(gradients: Tensor, factors: tuple[Tensor, ...]) -> Tensor:
    """Return ⟨gradient, direction⟩, (n, …) → (n, K), for directions with one factor of signs for each dimension."""
    product = torch.tensordot(gradients, factors[-1], 1)  # (n, …, K)
    for signs in reversed(factors[:-1]):
        product = (product * signs).sum(-2)
    return product
