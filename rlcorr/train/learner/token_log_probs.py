"""Log-probs and entropies of tokens from the hidden states before them, never with the logits of all tokens at once.

With a vocabulary of 150,000 the logits of 2,000 tokens take 1.2 GB, and their backward pass as much again, several
times over. In chunks of tokens, each computed once more in the backward pass, they take the memory of one chunk.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

LOGITS_AT_ONCE = 2**24
"""Of a chunk: 64 MiB in float32, three times that with what the softmax needs."""


class Settings(NamedTuple):
    temperature: float
    entropy_gradient: bool


def token_log_probs(
    head: nn.Linear,
    hidden: Tensor,
    ids: Tensor,
    temperature: float,
    *,
    entropy_gradient: bool = False,
    logits_at_once: int = LOGITS_AT_ONCE,
) -> tuple[Tensor, Tensor]:
    """log softmax(head(h)/temperature) at each id, and −Σ p log p of the whole distribution.

    `hidden` (B, T, H), `ids` (B, T) → two tensors (B, T). Entropies have a gradient only where asked for.
    """
    states, tokens = hidden.flatten(0, -2), ids.flatten()
    count = max(logits_at_once // head.out_features, 1)
    compute: Any = _Recomputed.apply if torch.is_grad_enabled() and len(tokens) > count else _in_chunks
    settings = Settings(temperature, entropy_gradient)
    log_probs, entropies = compute(states, head.weight, head.bias, tokens, settings, count)
    return log_probs.view(ids.shape), entropies.view(ids.shape)


class _Recomputed(torch.autograd.Function):
    """`_in_chunks` that keeps no logits. The gradient of the head, as large as the head, is one tensor that all chunks
    are added to: autograd alone would hold up to three of its size."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, tokens: Tensor, settings: Settings, count: int
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(states, weight, bias, tokens)
        ctx.settings, ctx.count = settings, count
        device = states.device.type
        ctx.dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
        log_probs, entropies = _in_chunks(states, weight, bias, tokens, settings, count)
        if not settings.entropy_gradient:
            ctx.mark_non_differentiable(entropies)
        return log_probs, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_log_probs: Tensor, of_entropies: Tensor) -> tuple[Tensor | None, ...]:
        states, weight, bias, tokens = ctx.saved_tensors
        needed = ctx.needs_input_grad[:3]
        asked: Any = zip((states, weight, bias), needed, strict=True)
        sums = [torch.zeros_like(tensor) if wanted else None for tensor, wanted in asked]
        rounded = weight.detach().to(ctx.dtype).requires_grad_(needed[1])
        rounded_bias = None if bias is None else bias.detach().to(ctx.dtype).requires_grad_(needed[2])
        number = 2 if ctx.settings.entropy_gradient else 1
        for at in range(0, len(tokens), ctx.count):
            rows = slice(at, at + ctx.count)
            some = states[rows].detach().to(ctx.dtype).requires_grad_(needed[0])
            with torch.enable_grad():
                values = _of_chunk(some, rounded, rounded_bias, tokens[rows], ctx.settings)
            parts: Any = zip((some, rounded, rounded_bias), needed, strict=True)
            inputs = [tensor for tensor, wanted in parts if wanted]
            given = (of_log_probs[rows], of_entropies[rows])
            gradients = torch.autograd.grad(values[:number], inputs, given[:number])
            places = [None if sums[0] is None else sums[0][rows], *sums[1:]]
            for place, gradient in zip([place for place in places if place is not None], gradients, strict=True):
                place += gradient
        return *sums, None, None, None


def _in_chunks(
    states: Tensor, weight: Tensor, bias: Tensor | None, tokens: Tensor, settings: Settings, count: int
) -> tuple[Tensor, Tensor]:
    parts = [
        _of_chunk(some_states, weight, bias, some_tokens, settings)
        for some_states, some_tokens in zip(states.split(count), tokens.split(count), strict=True)
    ]
    log_probs, entropies = zip(*parts, strict=True)
    return torch.cat(log_probs), torch.cat(entropies)


def _of_chunk(
    states: Tensor, weight: Tensor, bias: Tensor | None, tokens: Tensor, settings: Settings
) -> tuple[Tensor, Tensor]:
    log_p = (nn.functional.linear(states, weight, bias).float() / settings.temperature).log_softmax(-1)
    with torch.set_grad_enabled(settings.entropy_gradient and torch.is_grad_enabled()):
        entropies = -(log_p.exp() * log_p).sum(-1)
    return log_p.gather(-1, tokens[:, None])[:, 0], entropies
