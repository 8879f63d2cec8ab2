"""Bounds that follow the batch: which rule a method that looks at all tokens at once comes to on these."""

import torch

from rlcorr.correction import old_log_probs
from rlcorr.errors import UsageError
from rlcorr.ratios import log_ratio
from rlcorr.rules import RejectionRule
from rlcorr.types import TokenBatch


def m2po(batch: TokenBatch, threshold: float = 0.04) -> RejectionRule:
    """The rule of M2PO on this batch: token_k2 with the largest bound under which the kept tokens' mean d² is below
    `threshold`; where none is, only the smallest d² stays (arXiv:2510.01161, τ = 0.04; AReaL, actor.m2_threshold).

    d = log π_old − log π_rollout, and k2 = d²/2. It hurts where a few tokens are far apart and all others near: they go
    although one of them would do, and where everything is a little apart: nothing is dropped. Waits for the device.
    Raises `UsageError` without tokens or old_log_probs, and for a threshold ≤ 0.

    >>> old = torch.tensor([[0.0, -0.1, -0.5]])
    >>> rule = m2po(TokenBatch.from_log_probs(old, torch.zeros(1, 3), torch.ones(1, 3)))  # 0.26/3 > 0.04 > 0.01/2
    >>> rule.name, round(rule.upper, 9)
    ('token_k2', 0.005)
    """
    if not threshold > 0:
        raise UsageError(f"the threshold of M2PO must be > 0; got {threshold}.")
    d = log_ratio(old_log_probs(batch), batch.rollout_log_probs, batch.response_mask)
    k2 = (d.square() / 2)[batch.response_mask].sort().values.double()
    if not len(k2):
        raise UsageError("M2PO needs a token to keep; the batch has none.")
    means = 2 * k2.cumsum(0) / torch.arange(1, len(k2) + 1, device=k2.device)
    kept = int((means < threshold).sum())  # means of the smallest grow with their number
    upper = float(k2[max(kept - 1, 0)])
    return RejectionRule.named("token_k2", upper=max(upper, torch.finfo(torch.float32).tiny))


def m2_at(batch: TokenBatch, upper: float) -> float:
    """The mean d² of the tokens that token_k2 keeps at this bound: every larger threshold of M2PO has at least this
    bound, so a bound that is swept or dragged is a threshold that is. 0 where nothing is kept. Waits for the device.

    >>> old = torch.tensor([[0.0, -0.1, -0.5]])
    >>> round(m2_at(TokenBatch.from_log_probs(old, torch.zeros(1, 3), torch.ones(1, 3)), 0.1), 9)
    0.005
    """
    d = log_ratio(old_log_probs(batch), batch.rollout_log_probs, batch.response_mask)
    squares = d[batch.response_mask].square()
    kept = squares[squares / 2 <= upper].double()
    return float(kept.sum() / max(len(kept), 1))
