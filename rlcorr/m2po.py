"""M2PO: a bound on k2 that is computed from all tokens of a batch at once (arXiv:2510.01161)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from rlcorr.correction import old_log_probs
from rlcorr.errors import UsageError
from rlcorr.ratios import log_ratio
from rlcorr.rules import RejectionRule
from rlcorr.types import TokenBatch


def m2po(batch: TokenBatch, threshold: float = 0.04, counts: Tensor | None = None) -> RejectionRule:
    """Return the rejection rule of M2PO for this batch.

    M2PO keeps as many tokens as possible, those with the smallest d² first, while the mean d² of the kept tokens stays
    below `threshold`; d = log π_old − log π_rollout. As a rule this is an upper bound on k2 = d²/2 (`token_k2`). If
    even the smallest d² is too large, that token alone is kept.

    M2PO fails in two situations. If π_old and π_rollout differ much on a few tokens and little on all others, a single
    one of the few may lift the mean above the threshold, so all of the few are dropped. If they differ a little on all
    tokens, none is dropped.

    Source: arXiv:2510.01161, τ = 0.04; AReaL, actor.m2_threshold.
    Waits for the device.

    Args:
        batch: Needs old_log_probs.
        threshold: The limit τ for the mean d²; > 0.
        counts: (B,) how many times each response counts; by default once.

    Raises:
        UsageError: If the batch has no tokens or no old_log_probs, or if the threshold is not > 0.

    >>> old = torch.tensor([[0.0, -0.1, -0.5]])
    >>> rule = m2po(TokenBatch.from_log_probs(old, torch.zeros(1, 3), torch.ones(1, 3)))  # 0.26/3 > 0.04 > 0.01/2
    >>> rule.name, round(rule.upper, 9)
    ('token_k2', 0.005)
    """
    if not threshold > 0:
        raise UsageError(f"the threshold of M2PO must be > 0; got {threshold}.")
    k2, means = _ordered(batch, counts)
    if not len(k2):
        raise UsageError("M2PO needs a token to keep; the batch has none.")
    kept = int((means < threshold).sum())  # the running means of ascending values ascend, so this counts a prefix
    upper = float(k2[max(kept - 1, 0)])
    return RejectionRule.named("token_k2", upper=max(upper, torch.finfo(torch.float32).tiny))


def m2_at(batch: TokenBatch, uppers: Sequence[float], counts: Tensor | None = None) -> list[float]:
    """Return the mean d² of the tokens that token_k2 keeps at each of these upper bounds; 0 if it keeps none.

    With any threshold above the returned value, `m2po` gives at least that bound, so sweeping the bound sweeps M2PO's
    threshold. `counts` is explained at `m2po`.
    """
    k2, means = _ordered(batch, counts)
    kept = torch.searchsorted(k2, torch.tensor(uppers, dtype=k2.dtype, device=k2.device), right=True)
    return torch.cat([means.new_zeros(1), means])[kept].tolist()


def _ordered(batch: TokenBatch, counts: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return k2 of the real tokens in ascending order, and the mean d² of each token and all before it; float64."""
    mask = batch.response_mask
    d = log_ratio(old_log_probs(batch), batch.rollout_log_probs, mask).detach()[mask]
    k2, order = (d.square() / 2).double().sort()
    weights = torch.ones_like(k2) if counts is None else counts[:, None].expand(mask.shape)[mask].double()[order]
    return k2, (2 * k2 * weights).cumsum(0) / weights.cumsum(0)
