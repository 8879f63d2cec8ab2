"""Bounds that follow the batch: which rule a method that looks at all tokens at once comes to on these."""

from collections.abc import Sequence

import torch
from torch import Tensor

from rlcorr.correction import old_log_probs
from rlcorr.errors import UsageError
from rlcorr.ratios import log_ratio
from rlcorr.rules import RejectionRule
from rlcorr.types import TokenBatch


def m2po(batch: TokenBatch, threshold: float = 0.04, counts: Tensor | None = None) -> RejectionRule:
    """The rule of M2PO on this batch: token_k2 with the largest bound under which the kept tokens' mean d² is below
    `threshold`; where none is, only the smallest d² stays (arXiv:2510.01161, τ = 0.04; AReaL, actor.m2_threshold).

    d = log π_old − log π_rollout, and k2 = d²/2; `counts` (B,) says how often a response counts, by default once. It
    hurts where a few tokens are far apart and all others near: they go although one of them would do, and where
    everything is a little apart: nothing is dropped. Waits for the device. Raises `UsageError` without tokens or
    old_log_probs, and for a threshold ≤ 0.

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
    kept = int((means < threshold).sum())  # means of the smallest grow with their number
    upper = float(k2[max(kept - 1, 0)])
    return RejectionRule.named("token_k2", upper=max(upper, torch.finfo(torch.float32).tiny))


def m2_at(batch: TokenBatch, uppers: Sequence[float], counts: Tensor | None = None) -> list[float]:
    """The mean d² of the tokens that token_k2 keeps at each bound, `counts` as in `m2po`. Every larger threshold of
    M2PO has at least this bound, so a bound that is swept or dragged is a threshold that is. 0 where nothing is kept.

    >>> old = torch.tensor([[0.0, -0.1, -0.5]])
    >>> batch = TokenBatch.from_log_probs(old, torch.zeros(1, 3), torch.ones(1, 3))
    >>> [round(x, 9) for x in m2_at(batch, [0.1, 1.0])]
    [0.005, 0.086666667]
    """
    k2, means = _ordered(batch, counts)
    kept = torch.searchsorted(k2, torch.tensor(uppers, dtype=k2.dtype, device=k2.device), right=True)
    return torch.cat([means.new_zeros(1), means])[kept].tolist()


def _ordered(batch: TokenBatch, counts: Tensor | None) -> tuple[Tensor, Tensor]:
    """k2 of the real tokens, ascending, and the mean d² up to each; float64."""
    mask = batch.response_mask
    d = log_ratio(old_log_probs(batch), batch.rollout_log_probs, mask).detach()[mask]
    k2, order = (d.square() / 2).double().sort()
    weights = torch.ones_like(k2) if counts is None else counts[:, None].expand(mask.shape)[mask].double()[order]
    return k2, (2 * k2 * weights).cumsum(0) / weights.cumsum(0)
