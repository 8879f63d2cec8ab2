"""Synthetic policies whose mismatch has one known cause, or several: softmaxes over tokens, sampled and scored."""

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rlcorr import TokenBatch
from rlcorr.analysis.triage import triage

TOKENS, WIDTH = 2000, 10


@dataclass(frozen=True)
class Drawn:
    """Tokens from softmax policies over a vocabulary of V; log π_rollout as it was reported."""

    z: Tensor  # (N, V) the trainer's logits
    ids: Tensor  # (N,)
    rollout: Tensor  # (N,)


@functools.cache
def small(seed: int = 0) -> Tensor:
    """Logits over 12 tokens, of very different steepness."""
    g = torch.Generator().manual_seed(seed)
    steepness = 3 * torch.exp(0.5 * torch.randn(TOKENS, 1, generator=g, dtype=torch.float64))
    return steepness * torch.randn(TOKENS, 12, generator=g, dtype=torch.float64)


@functools.cache
def steep(seed: int = 0) -> Tensor:
    """Logits over 800 tokens that fall with the logarithm of the rank, as those of language models do; on 60 % of the
    places one token leads by 2 to 8."""
    g = torch.Generator().manual_seed(seed)
    slope = 1.2 * torch.exp(0.3 * torch.randn(TOKENS, 1, generator=g, dtype=torch.float64))
    z = -slope * torch.arange(1, 801, dtype=torch.float64).log() + 0.5 * torch.randn(
        TOKENS, 800, generator=g, dtype=torch.float64
    )
    lead = 2 + 6 * torch.rand(TOKENS, generator=g, dtype=torch.float64)
    z[:, 0] += torch.where(torch.rand(TOKENS, generator=g) < 0.6, lead, 0)
    return z


def cut(log_p: Tensor, *, top_p: float = 1.0, top_k: int = 10**6) -> Tensor:
    """The smallest set of likeliest tokens that holds `top_p`, of at most `top_k`, renormalised."""
    ordered, order = log_p.sort(-1, descending=True)
    before = ordered.exp().cumsum(-1) - ordered.exp()
    gone = (before >= top_p) | (torch.arange(log_p.shape[1]) >= top_k)
    return torch.empty_like(log_p).scatter(-1, order, ordered.masked_fill(gone, -math.inf)).log_softmax(-1)


def draw(z: Tensor, *, temperature: float = 1.0, raw: bool = False, **cuts) -> Drawn:
    """Sampled at a temperature from what is left of the policy; raw log-probs know of neither."""
    sampling = cut((z / temperature).log_softmax(-1), **cuts)
    ids = torch.multinomial(sampling.exp(), 1, generator=torch.Generator().manual_seed(1))
    reported = z.log_softmax(-1) if raw else sampling
    return Drawn(z, ids[:, 0], reported.gather(-1, ids)[:, 0])


def scored(drawn: Drawn, z: Tensor | None = None) -> TokenBatch:
    """With the trainer's log-probs, of other logits than its own if they are given."""
    p = (drawn.z if z is None else z).log_softmax(-1).gather(-1, drawn.ids[:, None])[:, 0]
    return batch_of(p, drawn.rollout, drawn.ids)


def batch_of(old: Tensor, rollout: Tensor, ids: Tensor | None = None) -> TokenBatch:
    """Rows of ten tokens, in float32."""
    batch = TokenBatch.from_log_probs(
        old.float().view(-1, WIDTH), rollout.float().view(-1, WIDTH), torch.ones(len(old) // WIDTH, WIDTH)
    )
    return batch if ids is None else batch.replace(response_ids=ids.view(-1, WIDTH))


def noisy(z: Tensor, size: float) -> Tensor:
    return z + size * torch.randn(z.shape, generator=torch.Generator().manual_seed(2), dtype=z.dtype)


def rounded(z: Tensor) -> Tensor:
    return z.bfloat16().double()


def moved(drawn: Drawn, z: Tensor | None = None, by: int = 1) -> TokenBatch:
    """π_rollout, rolled by a token within each row."""
    batch = scored(drawn, z)
    return batch.replace(rollout_log_probs=batch.rollout_log_probs.roll(by, -1))


def unfilled(drawn: Drawn, z: Tensor | None = None) -> TokenBatch:
    """Every tenth column of π_rollout holds the 0 of padding."""
    batch = scored(drawn, z)
    return batch.replace(rollout_log_probs=batch.rollout_log_probs.clone().index_fill(1, torch.tensor([3]), 0))


def patterns(batch: TokenBatch) -> list[str]:
    """Return the names of what `triage` finds."""
    return [symptom.pattern for symptom in triage(batch)]
