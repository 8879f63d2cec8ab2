"""Log-probs and entropies of tokens from hidden states, without the logits of all tokens in memory at once.

With a vocabulary of 150,000, the logits of 2,000 tokens take 1.2 GB, and their backward pass takes several times as
much. In chunks of tokens, each computed again in the backward pass, they take only the memory of one chunk.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

LOGITS_AT_ONCE = 2**24
"""Logits per chunk: 64 MiB in float32, and three times that with the buffers of the softmax."""
ENTRIES_AT_ONCE = 2**14
"""Rows of the head for which a chunk's gradient is computed at a time, before it is added to that of all chunks."""


def token_log_probs(
    head: nn.Linear,
    hidden: Tensor,
    ids: Tensor,
    temperature: float,
    *,
    logits_at_once: int = LOGITS_AT_ONCE,
) -> tuple[Tensor, Tensor]:
    """Compute log softmax(head(h)/temperature) at each id, and the entropy −Σ p log p, which has no gradient.

    Args:
        hidden: states h that predict the tokens, (B, T, H).
        ids: the tokens, (B, T), or several tokens at each position, (B, T, J).

    Returns:
        Log-probs in the shape of `ids`, and entropies (B, T).
    """
    states, tokens = hidden.flatten(0, -2), ids.reshape(hidden.shape[:-1].numel(), -1)
    count = max(logits_at_once // head.out_features, 1)
    compute: Any = _Recomputed.apply if torch.is_grad_enabled() and len(tokens) > count else _in_chunks
    log_probs, entropies = compute(states, head.weight, head.bias, tokens, temperature, count)
    return log_probs.view(ids.shape), entropies.view(hidden.shape[:-1])


class _Recomputed(torch.autograd.Function):
    """`_in_chunks` without stored logits: the backward pass computes them again.

    The gradient of the head is as large as the head. All chunks are added piece by piece to one such tensor; autograd
    alone would keep up to three of them.
    """

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, tokens: Tensor, temperature: float, count: int
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(states, weight, bias, tokens)
        ctx.temperature, ctx.count = temperature, count
        device = states.device.type
        ctx.dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
        log_probs, entropies = _in_chunks(states, weight, bias, tokens, temperature, count)
        ctx.mark_non_differentiable(entropies)
        return log_probs, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_log_probs: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        states, weight, bias, tokens = ctx.saved_tensors
        for_states, for_weight, for_bias = ctx.needs_input_grad[:3]
        grad_states = torch.empty_like(states) if for_states else None
        grad_weight = torch.zeros_like(weight) if for_weight else None
        grad_bias = torch.zeros_like(bias) if for_bias else None
        # Under autocast the forward pass rounded its inputs, so the backward pass rounds them in the same way.
        rounded, rounded_bias = weight.to(ctx.dtype), None if bias is None else bias.to(ctx.dtype)
        for start in range(0, len(tokens), ctx.count):
            rows = slice(start, start + ctx.count)
            chunk = states[rows].to(ctx.dtype)
            grad_logits = _grad_logits(
                nn.functional.linear(chunk, rounded, rounded_bias), tokens[rows], ctx.temperature,
                grad_log_probs[rows],
            ).to(ctx.dtype)  # fmt: skip
            if grad_states is not None:
                grad_states[rows] = grad_logits @ rounded
            if grad_weight is not None:
                parts = grad_logits.split(ENTRIES_AT_ONCE, -1)
                for entries, part in zip(grad_weight.split(ENTRIES_AT_ONCE), parts, strict=True):
                    entries += part.T @ chunk
            if grad_bias is not None:
                grad_bias += grad_logits.sum(0)
        return grad_states, grad_weight, grad_bias, None, None, None


def _in_chunks(
    states: Tensor, weight: Tensor, bias: Tensor | None, tokens: Tensor, temperature: float, count: int
) -> tuple[Tensor, Tensor]:
    parts = [
        _from_logits(nn.functional.linear(chunk, weight, bias), chunk_tokens, temperature)
        for chunk, chunk_tokens in zip(states.split(count), tokens.split(count), strict=True)
    ]
    log_probs, entropies = zip(*parts, strict=True)
    return torch.cat(log_probs), torch.cat(entropies)


def _from_logits(logits: Tensor, tokens: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    log_p = (logits.float() / temperature).log_softmax(-1)
    with torch.no_grad():
        entropies = -(log_p.exp() * log_p).sum(-1)
    return log_p.gather(-1, tokens), entropies


def _grad_logits(logits: Tensor, tokens: Tensor, temperature: float, grad_log_probs: Tensor) -> Tensor:
    """Return the gradient of the log-probs in the logits, Σ_j g_j·(1[token j] − p)/temperature.

    g is the gradient in the log-probs. Operations are in place, because logits are large.
    """
    p = (logits.float() / temperature).log_softmax(-1).exp_()
    p *= grad_log_probs.sum(-1, keepdim=True)
    return p.neg_().scatter_add_(-1, tokens, grad_log_probs).div_(temperature)
