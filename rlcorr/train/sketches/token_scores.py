"""Scores of log-probs by reverse mode, projected on K directions: one backward pass for a position of many answers.

A direction of a matrix is u vᵀ with random signs u and v, that of a vector is random signs. Each of the K directions is
drawn anew, so that they are independent. For a linear layer y = W x, the gradient of a log-prob is Σ δ xᵀ over the
positions, with δ its gradient with respect to y. Along u vᵀ it is Σ (δ·u)(x·v), and the gradient of W itself, which is
as large as W, is never computed. No answer of a batch depends on another one, so the δ of a sum over the answers has
the δ of each answer in its rows. LoGra (arXiv:2405.13954) projects both factors, too, on all pairs of a few vectors u
and v. Such pairs are not independent, and the intervals of a report resample directions as if they were.
"""

import copy
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlcorr.train.learner.microbatch import lengths_of, plan_microbatches
from rlcorr.types import TokenBatch

TOKENS_AT_ONCE = 512
"""Tokens of answers that share a backward pass, prompts and padding included. The gradients of all their activations
are in memory."""
Columns = Callable[[], Iterable[Tensor]]
"""Yields columns of log-probs or of sums of them, (B,), of B answers that do not depend on each other."""
Use = tuple[Tensor, Callable[[Tensor], Tensor]]
"""A tensor of a forward pass, and the function from its gradient to what it adds to the scores, (B, K)."""


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
    """Copy a model for `scores_of`: without dropout, and without gradients of the weights whose factors are enough."""
    lm = copy.deepcopy(lm).eval()
    lm.gradient_checkpointing_disable()
    lm.requires_grad_(True)
    for module in lm.modules():
        if isinstance(module, nn.Linear | nn.Embedding) or _is_norm(module):
            module.requires_grad_(False)
    return lm


def has_whole_gradients(lm: PreTrainedModel) -> bool:
    """Return whether a `scored_copy` has weights, such as experts, whose gradients are computed for one answer only."""
    return any(weight.requires_grad for weight in lm.parameters())


def groups_of(lm: PreTrainedModel, batch: TokenBatch) -> list[list[int]]:
    """Return the rows of the batch whose backward passes are computed together."""
    return plan_microbatches(lengths_of(batch), 0 if has_whole_gradients(lm) else TOKENS_AT_ONCE)[0]


def head_log_probs(lm: PreTrainedModel, states: Tensor, temperature: float) -> Tensor:
    """Compute the log-probs of all tokens from the last hidden states, (..., H) → (..., V)."""
    head = lm.get_output_embeddings()
    assert head is not None
    return (head(states).float() / temperature).log_softmax(-1)


def _is_norm(module: nn.Module) -> bool:
    """Return whether the module multiplies its normalised input by its weight with broadcasting, as transformers do."""
    return type(module).__name__.endswith("RMSNorm") and not isinstance(module, nn.RMSNorm)


def scores_of(lm: PreTrainedModel, directions: Directions, columns: Columns) -> tuple[Tensor, Tensor]:
    """Compute columns of log-probs and their scores along all directions, divided by √K: a backward pass for a column.

    Args:
        lm: a `scored_copy`.
        columns: computes n columns with this model in one forward pass. If the model `has_whole_gradients`, B is 1.

    Returns:
        The columns (B, n), and ⟨∇ log π, direction⟩/√K of each number, (B, n, K).
    """
    whole = {name: weight for name, weight in lm.named_parameters() if weight.requires_grad}
    values, scores = [], []
    with _uses(lm, directions) as uses:
        for column in columns():
            assert len(column) == 1 or not whole
            wanted = [*(tensor for tensor, _ in uses), *whole.values()]
            gradients = torch.autograd.grad(column.sum(), wanted, retain_graph=True, allow_unused=True)
            along = [
                *(of_gradient for _, of_gradient in uses),
                *(partial(_along, directions.signs[name]) for name in whole),
            ]
            parts = (of(gradient) for of, gradient in zip(along, gradients, strict=True) if gradient is not None)
            scores.append(sum(parts, torch.zeros(len(column), directions.count, device=column.device)))
            values.append(column.detach())
    return torch.stack(values, 1), torch.stack(scores, 1) * directions.count**-0.5


@contextmanager
def _uses(lm: PreTrainedModel, directions: Directions) -> Iterator[list[Use]]:
    """Record the uses of linear layers, embeddings and norms inside the block."""
    names = {id(weight): name for name, weight in lm.named_parameters()}
    uses: list[Use] = []

    def signs_of(weight: Tensor) -> tuple[Tensor, ...]:
        return directions.signs[names[id(weight)]]

    def linear(module: nn.Linear, inputs: tuple[Any, ...], output: Tensor) -> None:
        of_output, of_input = signs_of(module.weight)
        of_bias = None if module.bias is None else signs_of(module.bias)[0]
        uses.append((output, partial(_along_factors, of_output, inputs[0].detach() @ of_input, of_bias)))

    def embedding(module: nn.Embedding, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        of_token, of_output = signs_of(module.weight)
        leaf = output.detach().requires_grad_()  # the weight has no gradient, so the graph begins here
        scale = getattr(module, "embed_scale", 1.0)  # gemma multiplies the rows of its embedding
        uses.append((leaf, partial(_along_factors, of_output, of_token[inputs[0]] * scale, None)))
        return leaf

    def norm(weight: nn.Parameter, module: Any, inputs: tuple[Any, ...]) -> None:
        """Give each answer a weight of its own, so that the gradients of the answers stay apart."""
        inner = [1] * (inputs[0].dim() - 2)
        leaf = weight.detach().expand(len(inputs[0]), *inner, -1).requires_grad_()
        module._parameters["weight"] = leaf  # a plain tensor, as in torch.func.functional_call
        uses.append((leaf, lambda gradient: gradient.flatten(1) @ signs_of(weight)[0]))

    modules: list[Any] = list(lm.modules())
    norms = {module: module.weight for module in modules if _is_norm(module)}
    handles = [m.register_forward_hook(linear) for m in modules if isinstance(m, nn.Linear)]
    handles += [m.register_forward_hook(embedding) for m in modules if isinstance(m, nn.Embedding)]
    handles += [m.register_forward_pre_hook(partial(norm, weight)) for m, weight in norms.items()]
    try:
        yield uses
    finally:
        for handle in handles:
            handle.remove()
        for module, weight in norms.items():
            module.weight = weight


def _along_factors(of_output: Tensor, along_input: Tensor, of_bias: Tensor | None, delta: Tensor) -> Tensor:
    """Return Σ (δ·u)(x·v), and Σ δ·b for a bias, over the positions of each answer, (B, K).

    Args:
        of_output: the signs u, (out, K).
        along_input: x·v at every position, (B, …, K).
        of_bias: the signs b, (out, K), if the layer has a bias.
        delta: the gradient with respect to the output, (B, …, out).
    """
    positions = delta[0, ..., 0].numel()
    delta, along_input = delta.flatten(0, -2), along_input.flatten(0, -2)
    rows = delta.any(-1).nonzero()[:, 0]  # neither padding nor later positions have a gradient
    products = (delta[rows] @ of_output) * along_input[rows]
    if of_bias is not None:
        products += delta[rows] @ of_bias
    sums = torch.zeros(len(delta) // positions, products.shape[1], device=delta.device)
    return sums.index_add_(0, rows // positions, products)


def _along(factors: tuple[Tensor, ...], gradient: Tensor) -> Tensor:
    """Return ⟨gradient, direction⟩ of one answer, (1, K); a direction has one factor of signs for each dimension."""
    product = torch.tensordot(gradient, factors[-1], 1)  # (…, K)
    for signs in reversed(factors[:-1]):
        product = (product * signs).sum(-2)
    return product[None]
