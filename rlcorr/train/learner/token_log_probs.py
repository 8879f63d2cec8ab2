"""Log-probs and entropies of tokens from hidden states, without the logits of all tokens in memory at once.

With a vocabulary of 150,000, the logits of 2,000 tokens take 1.2 GB, and their backward pass takes several times as
much. In chunks of tokens, each computed again in the backward pass, they take only the memory of one chunk.
"""

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

LOGITS_AT_ONCE = 2**24
"""Logits per chunk: 64 MiB in float32, and three times that with the buffers of the softmax."""


def token_log_probs(
    head: nn.Linear, hidden: Tensor, ids: Tensor, temperature: float, *, logits_at_once: int = LOGITS_AT_ONCE
) -> tuple[Tensor, Tensor]:
    """Compute log softmax(head(h)/temperature) at each id, and the entropy −Σ p log p, which has no gradient.

    Args:
        hidden: states h that predict the tokens, (B, T, H).
        ids: the tokens, (B, T), or several tokens at each position, (B, T, J).

    Returns:
        Log-probs in the shape of `ids`, and entropies (B, T).
    """
    states, tokens = hidden.flatten(0, -2), ids.reshape(hidden.shape[:-1].numel(), -1)
    chunks = states.split(count := max(logits_at_once // head.out_features, 1))
    again = torch.is_grad_enabled() and len(chunks) > 1  # a single chunk would only be computed twice
    parts = []
    for part in zip(chunks, tokens.split(count), strict=True):
        of_chunk = (head.weight, head.bias, *part, temperature)
        parts.append(
            checkpoint(_of_chunk, *of_chunk, use_reentrant=False, preserve_rng_state=False)
            if again
            else _of_chunk(*of_chunk)
        )
    log_probs, entropies = zip(*parts, strict=True)
    return torch.cat(log_probs).view(ids.shape), torch.cat(entropies).view(hidden.shape[:-1])


def _of_chunk(
    weight: Tensor, bias: Tensor | None, states: Tensor, tokens: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    log_p = (nn.functional.linear(states, weight, bias).float() / temperature).log_softmax(-1)
    with torch.no_grad():
        entropies = -(log_p.exp() * log_p).sum(-1)
    return log_p.gather(-1, tokens), entropies
