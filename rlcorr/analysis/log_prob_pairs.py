"""The pairs of log-probs of a batch as flat tensors, and numbers computed from them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rlcorr.errors import UsageError
from rlcorr.ratios import k3, ratio
from rlcorr.types import TokenBatch

RESOLVED = -1e-3
"""Log-probs above this value are left out of logits: float32 leaves too few digits of 1 − π."""


@dataclass(frozen=True)
class Tokens:
    """The real tokens of a batch, as flat tensors in float64, in A answers that have some."""

    old: Tensor  # (N,) p
    rollout: Tensor  # (N,) q
    ids: Tensor | None  # (N,)
    mask: Tensor  # (B, T) bool, where they are in the batch

    @property
    def rows(self) -> Tensor:
        """Return the row of the batch of each answer, (A,)."""
        return self.mask.any(-1).nonzero()[:, 0]

    @property
    def widths(self) -> Tensor:
        """Return the number of tokens of each answer, (A,)."""
        return self.mask.sum(-1)[self.rows]

    @property
    def answer(self) -> Tensor:
        """Return the answer of each token, (N,), as an index into `rows`."""
        return torch.arange(len(self.rows)).repeat_interleave(self.widths)

    @property
    def place(self) -> Tensor:
        """Return how many tokens of its answer are before each token, (N,)."""
        return torch.arange(len(self.old)) - (self.widths.cumsum(0) - self.widths)[self.answer]

    def where(self, chosen: Tensor) -> Tensor:
        """Return where the chosen tokens, (N,) bool, are in the batch, (B, T) bool."""
        return torch.zeros_like(self.mask).masked_scatter(self.mask, chosen)


def tokens_of(batch: TokenBatch) -> Tokens:
    """Return the real tokens of a batch. Raises `UsageError` without old_log_probs or without tokens."""
    mask, ids = batch.response_mask, batch.response_ids
    if batch.old_log_probs is None:
        raise UsageError("a mismatch needs old_log_probs; this batch has only rollout_log_probs.")
    if not bool(mask.any()):
        raise UsageError("a mismatch needs tokens; the response_mask of this batch is empty.")
    old, rollout = batch.old_log_probs[mask].double(), batch.rollout_log_probs[mask].double()
    return Tokens(old.detach(), rollout.detach(), None if ids is None else ids[mask], mask)


def select_tokens(tokens: Tokens, mask: Tensor) -> Tokens:
    """Return the tokens where the mask, (N,), is true."""
    if bool(mask.all()):  # a copy would be as large as the batch
        return tokens
    ids = None if tokens.ids is None else tokens.ids[mask]
    return Tokens(tokens.old[mask], tokens.rollout[mask], ids, tokens.where(mask))


def mismatch_numbers(tokens: Tokens) -> dict[str, float]:
    """Measure the size of the mismatch, in numbers that several patterns use."""
    noise = logit_noise(tokens)  # before the rest, because it needs most of the memory
    d = tokens.old - tokens.rollout
    divergence, r = k3(d), ratio(d)
    return {
        "abs_log_ratio": float(d.abs().mean()),
        "k3": float(divergence.mean()),
        "mult_error": float(ratio(d.abs()).mean()),
        "mean_ratio": float(r.mean()),
        "mean_ratio_error": standard_error(r),
        "share_above_one": float((d > 0).double().mean()),
        "logit_noise": noise,
        "worst_share": worst_share(divergence),
    }


def logit_noise(tokens: Tokens) -> float:
    """Return the standard deviation of y if it is normal noise: 1.4826 × the median absolute deviation."""
    y = logits(tokens)[1]
    return 1.4826 * float((y - y.median()).abs().median()) if len(y) else 0.0


def one_sided(d: Tensor) -> float:
    """Return the share of tokens whose trainer log-prob is at most the engine's, with 0.02 allowed for rounding."""
    return float((d <= 0.02).double().mean())


def largest_hundredth(batch: TokenBatch) -> float:
    """Return the share of Σ k3 that comes from the largest 1 % of the tokens, among those with finite log-probs.

    Raises `UsageError` for the same reasons as `tokens_of`.
    """
    tokens = tokens_of(batch)
    d = tokens.old - tokens.rollout
    return worst_share(k3(d[d.isfinite()]))


def worst_share(values: Tensor) -> float:
    """Return the share of the sum of numbers ≥ 0 that comes from the largest 1 % of them; 0 if all are 0."""
    largest = values.topk(-(-len(values) // 100)).values
    return float(largest.sum() / values.sum().clamp(min=1e-300))


def standard_error(values: Tensor) -> float:
    """Return the standard error of the mean of independent values; infinite for fewer than two."""
    return float(values.std()) / len(values) ** 0.5 if len(values) > 1 else torch.inf


def logits(tokens: Tokens) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return x = logit q, y = logit p − x and the ids, of the tokens whose q is resolved.

    Tokens are selected by q only. A selection by p would distort y over x.
    """
    resolved = select_tokens(tokens, tokens.rollout < RESOLVED)
    x, p = _logit(resolved.rollout), _logit(resolved.old)
    return x, p - x, resolved.ids


def _logit(log_p: Tensor) -> Tensor:
    c = log_p.clamp(-50.0, -1e-8)
    return c - torch.expm1(c).neg_().log_()  # log π − log(1 − π)


def median_slope(x: Tensor, y: Tensor) -> float:
    """Return the median slope between tokens that are half a batch apart in the order of x.

    A quarter of the tokens may have any value without changing it much.
    """
    order, half = x.argsort(stable=True), len(x) // 2
    low, high = order[:half], order[-half:]
    return float(((y[high] - y[low]) / (x[high] - x[low])).median())
