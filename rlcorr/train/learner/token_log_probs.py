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
ENTRIES_AT_ONCE = 2**14
"""Rows of the head whose gradient from a chunk is made at a time, before it is added to that of all chunks."""


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
    are added to piece by piece: autograd alone would hold up to three of its size."""

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
        for_states, for_weight, for_bias = ctx.needs_input_grad[:3]
        of_states = torch.empty_like(states) if for_states else None
        of_weight = torch.zeros_like(weight) if for_weight else None
        of_bias = torch.zeros_like(bias) if for_bias else None
        rounded, rounded_bias = weight.to(ctx.dtype), None if bias is None else bias.to(ctx.dtype)
        for at in range(0, len(tokens), ctx.count):
            rows = slice(at, at + ctx.count)
            some = states[rows].to(ctx.dtype)
            of_logits = _of_logits(
                nn.functional.linear(some, rounded, rounded_bias), tokens[rows], ctx.settings,
                of_log_probs[rows], of_entropies[rows],
            ).to(ctx.dtype)  # fmt: skip
            if of_states is not None:
                of_states[rows] = of_logits @ rounded
            if of_weight is not None:
                parts = of_logits.split(ENTRIES_AT_ONCE, -1)
                for entries, part in zip(of_weight.split(ENTRIES_AT_ONCE), parts, strict=True):
                    entries += part.T @ some
            if of_bias is not None:
                of_bias += of_logits.sum(0)
        return of_states, of_weight, of_bias, None, None, None


def _in_chunks(
    states: Tensor, weight: Tensor, bias: Tensor | None, tokens: Tensor, settings: Settings, count: int
) -> tuple[Tensor, Tensor]:
    parts = [
        _from_logits(nn.functional.linear(some_states, weight, bias), some_tokens, settings)
        for some_states, some_tokens in zip(states.split(count), tokens.split(count), strict=True)
    ]
    log_probs, entropies = zip(*parts, strict=True)
    return torch.cat(log_probs), torch.cat(entropies)


def _from_logits(logits: Tensor, tokens: Tensor, settings: Settings) -> tuple[Tensor, Tensor]:
    log_p = (logits.float() / settings.temperature).log_softmax(-1)
    with torch.set_grad_enabled(settings.entropy_gradient and torch.is_grad_enabled()):
        entropies = -(log_p.exp() * log_p).sum(-1)
    return log_p.gather(-1, tokens[:, None])[:, 0], entropies


def _of_logits(
    logits: Tensor, tokens: Tensor, settings: Settings, of_log_probs: Tensor, of_entropies: Tensor
) -> Tensor:
    """The gradient of `_from_logits`, (g·(1[token] − p) − h·p·(log p + H))/temperature, from the gradients g of
    log-probs and h of the entropies H. In place: logits are large."""
    log_p = (logits.float() / settings.temperature).log_softmax(-1)
    p, g = log_p.exp(), of_log_probs[:, None]
    if settings.entropy_gradient:
        entropies = -(p * log_p).sum(-1, keepdim=True)
        p *= log_p.add_(entropies).mul_(of_entropies[:, None]).add_(g)
    else:
        p *= g
    return p.neg_().scatter_add_(-1, tokens[:, None], g).div_(settings.temperature)
