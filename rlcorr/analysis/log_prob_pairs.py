"""The pairs of log-probs of a batch, flat, and the numbers that are taken of them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rlcorr.errors import UsageError
from rlcorr.ratios import k3, ratio
from rlcorr.types import TokenBatch

RESOLVED = -1e-3
"""Log-probs above this one are left out of logits: float32 leaves too few digits of 1 − π there."""


@dataclass(frozen=True)
class Tokens:
    """Real tokens, flat, in float64."""

    old: Tensor  # (N,) p
    rollout: Tensor  # (N,) q
    ids: Tensor | None  # (N,)


def tokens_of(batch: TokenBatch) -> Tokens:
    """Raises `UsageError` without old_log_probs or without tokens."""
    mask, ids = batch.response_mask, batch.response_ids
    if batch.old_log_probs is None:
        raise UsageError("a mismatch needs old_log_probs; the batch has only rollout_log_probs.")
    if not bool(mask.any()):
        raise UsageError("a mismatch needs tokens; the response_mask of this batch is empty.")
    old, rollout = batch.old_log_probs[mask].double(), batch.rollout_log_probs[mask].double()
    return Tokens(old.detach(), rollout.detach(), None if ids is None else ids[mask])


def chosen(tokens: Tokens, where: Tensor) -> Tokens:
    """The tokens of a mask (N,)."""
    return Tokens(tokens.old[where], tokens.rollout[where], None if tokens.ids is None else tokens.ids[where])


def measured(tokens: Tokens) -> dict[str, float]:
    """The size of the mismatch, in numbers that its patterns share."""
    d, (_, y, _) = tokens.old - tokens.rollout, logits(tokens)
    divergence, r = k3(d), ratio(d)
    return {
        "abs_log_ratio": float(d.abs().mean()),
        "k3": float(divergence.mean()),
        "mult_error": float(ratio(d.abs()).mean()),
        "mean_ratio": float(r.mean()),
        "mean_ratio_error": standard_error(r),
        "share_above_one": float((d > 0).double().mean()),
        "logit_noise": 1.4826 * float((y - y.median()).abs().median()) if len(y) else 0.0,
        "worst_share": worst_share(divergence),
    }


def one_sided(d: Tensor) -> float:
    """Share of the tokens on which the trainer's log-prob is at most the engine's, but for a rounding of 0.02."""
    return float((d <= 0.02).double().mean())


def largest_hundredth(batch: TokenBatch) -> float:
    """Share of Σ k3 that one token in a hundred holds, of those whose log-probs are finite. Raises `UsageError` as
    `tokens_of` does."""
    tokens = tokens_of(batch)
    d = tokens.old - tokens.rollout
    return worst_share(k3(d[d.isfinite()]))


def worst_share(values: Tensor) -> float:
    """Share of the sum that the largest hundredth of some numbers ≥ 0 holds; 0 where all are 0."""
    largest = values.topk(-(-len(values) // 100)).values
    return float(largest.sum() / values.sum().clamp(min=1e-300))


def standard_error(values: Tensor) -> float:
    """Of the mean, for independent values; infinite for fewer than two."""
    return float(values.std()) / len(values) ** 0.5 if len(values) > 1 else torch.inf


def logits(tokens: Tokens) -> tuple[Tensor, Tensor, Tensor | None]:
    """x = logit q, y = logit p − x and the ids, of the tokens whose q is resolved. Chosen by q alone: a choice by p
    would bend what y looks like over x."""
    some = chosen(tokens, tokens.rollout < RESOLVED)
    x, p = _logit(some.rollout), _logit(some.old)
    return x, p - x, some.ids


def _logit(log_p: Tensor) -> Tensor:
    c = log_p.clamp(-50.0, -1e-8)
    return c - (-torch.expm1(c)).log()


def median_slope(x: Tensor, y: Tensor) -> float:
    """Median slope between tokens half a batch apart in x: a quarter of the tokens may be anywhere."""
    order = x.argsort(stable=True)
    x, y, half = x[order], y[order], len(x) // 2
    return float(((y[-half:] - y[:half]) / (x[-half:] - x[:half])).median())
