"""Log-probs and entropies of tokens from the hidden states before them, never with the logits of all tokens at once.

With a vocabulary of 150,000 the logits of 2,000 tokens take 1.2 GB, and their backward pass as much again, several
times over. In chunks of tokens, each computed once more in the backward pass, they take the memory of one chunk.
"""

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

LOGITS_AT_ONCE = 2**24
"""Of a chunk: 64 MiB in float32, three times that with what the softmax needs."""


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
    recompute = torch.is_grad_enabled() and len(tokens) > count
    parts = []
    for some_states, some_tokens in zip(states.split(count), tokens.split(count), strict=True):
        given = (head, some_states, some_tokens, temperature, entropy_gradient)
        parts.append(
            checkpoint(_of_chunk, *given, use_reentrant=False, preserve_rng_state=False)
            if recompute
            else _of_chunk(*given)
        )
    log_probs, entropies = zip(*parts, strict=True)
    return torch.cat(log_probs).view(ids.shape), torch.cat(entropies).view(ids.shape)


def _of_chunk(
    head: nn.Linear, states: Tensor, tokens: Tensor, temperature: float, entropy_gradient: bool
) -> tuple[Tensor, Tensor]:
    log_p = (head(states).float() / temperature).log_softmax(-1)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropies = -(log_p.exp() * log_p).sum(-1)
    return log_p.gather(-1, tokens[:, None])[:, 0], entropies
