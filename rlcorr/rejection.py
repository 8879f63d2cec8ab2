"""Rejection: what a rule compares, and what lies inside its bounds; the divergences beside those of `ratios`.

The rules follow verl's rollout correction, with its faults mended: bounds are on r and compared on log r.
"""

import math

import torch
from torch import Tensor

from rlcorr.prefix_gap import prefix_gap
from rlcorr.ratios import SAFETY_BOUND, at_least_float32, k2, k3, over_sequence
from rlcorr.rules import AppliesTo, Divergence, RejectionRule
from rlcorr.types import TokenBatch

PROBABILITY_FLOOR = 1e-6
"""The coins of binary_kl have probabilities in [1e-6, 1 − 1e-6], so it is at most about 13.8 (verl)."""
SIGNED_KL_FLOOR = 1e-8
"""The coins of signed_kl have probabilities in [1e-8, 1 − 1e-8]."""


def reject(batch: TokenBatch, d: Tensor, rules: tuple[RejectionRule, ...]) -> Tensor:
    """The number of the first rule that objects to a real token, else 0. A NaN statistic is rejected.

    >>> d = torch.tensor([[0.0, 2.0]])
    >>> batch = TokenBatch(torch.ones(1, 2, dtype=torch.bool), torch.zeros(1, 2), old_log_probs=d)
    >>> reject(batch, d, (RejectionRule.named("token_k2", upper=1.0),)).tolist()
    [[0.0, 1.0]]
    """
    by = torch.zeros_like(d, dtype=torch.float32)
    for number, rule in enumerate(rules, start=1):
        objects = ~passes(rule, rule_statistic(rule, batch, d), batch, d)
        by = torch.where((by == 0) & objects & batch.response_mask, float(number), by)
    return by


def rule_statistic(rule: RejectionRule, batch: TokenBatch, d: Tensor) -> Tensor:
    """What the rule compares: (B, T) for a token rule, (B, 1) for a sequence rule.

    For k1 this is log r, not −log r, so that bounds on it are bounds on the ratio.

    >>> d = torch.tensor([[0.0, 2.0]])
    >>> batch = TokenBatch(torch.ones(1, 2, dtype=torch.bool), torch.zeros(1, 2), old_log_probs=d)
    >>> rule_statistic(RejectionRule.named("seq_mean_k1", upper=2.0), batch, d).tolist()
    [[1.0]]
    """
    per_token = _divergence(rule.divergence, batch, d)
    if rule.reduce is None:
        return per_token
    return over_sequence(per_token, batch.response_mask, rule.reduce)[:, None]


def _divergence(name: Divergence, batch: TokenBatch, d: Tensor) -> Tensor:
    if name == "k1":
        return d
    if name == "prefix_gap":
        assert batch.old_log_probs is not None
        pair = at_least_float32(batch.old_log_probs.detach()), at_least_float32(batch.rollout_log_probs)
        return prefix_gap(*pair, batch.response_mask)
    if name in _OF_PROBABILITIES:
        old, rollout = batch.old_log_probs, batch.rollout_log_probs
        assert old is not None
        return _OF_PROBABILITIES[name](old.detach(), rollout)
    c = d.clamp(-SAFETY_BOUND, SAFETY_BOUND)  # per token, before it is summed: one token cannot make the sum infinite
    if name == "tv":
        return torch.expm1(c).abs()
    return {"k2": k2, "k3": k3, "mult_error": lambda x: x.abs().exp()}[name](c)


def log_bounds(rule: RejectionRule) -> tuple[float, float]:
    """Bounds on the rule's statistic; for k1 they are logarithms of the configured ones.

    Logarithms are compared because exp would move a ratio that lies exactly on a bound.

    >>> log_bounds(RejectionRule.named("token_k1", upper=1.0)), log_bounds(RejectionRule.named("token_k2", upper=3.0))
    ((-inf, 0.0), (-inf, 3.0))
    """
    lower = -math.inf if rule.lower is None else rule.lower
    if rule.divergence != "k1":
        return lower, rule.upper
    return (lower if rule.lower is None else math.log(lower)), math.log(rule.upper)


def inside(rule: RejectionRule, statistic: Tensor) -> Tensor:
    """Whether the statistic lies inside the rule's bounds; NaN does not.

    >>> inside(RejectionRule.named("token_k2", upper=1.0), torch.tensor([1.0, 1.5, torch.nan])).tolist()
    [True, False, False]
    """
    lower, upper = log_bounds(rule)
    return (statistic >= lower) & (statistic <= upper)


def passes(rule: RejectionRule, statistic: Tensor, batch: TokenBatch, d: Tensor) -> Tensor:
    """Which tokens the rule lets through: those inside, and those that it does not concern.

    >>> d, rule = torch.tensor([[2.0, 2.0]]), RejectionRule.named("token_k1_negative", upper=2.0)
    >>> advantages = torch.tensor([[1.0, -1.0]])
    >>> batch = TokenBatch(torch.ones(1, 2, dtype=torch.bool), torch.zeros(1, 2), advantages=advantages)
    >>> passes(rule, d, batch, d).tolist()
    [[True, False]]
    """
    if rule.applies_to == "all":
        return inside(rule, statistic)
    assert batch.advantages is not None
    return inside(rule, statistic) | ~_concerned(rule.applies_to, batch.advantages, d)


def _concerned(applies_to: AppliesTo, advantages: Tensor, d: Tensor) -> Tensor:
    """Written as what is not concerned, so that a NaN is."""
    if applies_to == "negative":
        return ~(advantages >= 0)
    return ~(d * advantages <= 0)


def prob_diff(log_p: Tensor, log_q: Tensor) -> Tensor:
    """p − q, at least float32.

    >>> round(prob_diff(torch.tensor(0.5).log(), torch.tensor(0.2).log()).item(), 4)
    0.3
    """
    return at_least_float32(log_p).exp() - at_least_float32(log_q).exp()


def binary_kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """max(KL(P‖Q), KL(Q‖P)) of the coins "this token or another" (KPop).

    >>> binary_kl(torch.tensor(0.5).log(), torch.tensor(0.5).log()).item()
    0.0
    >>> round(binary_kl(torch.tensor(0.5).log(), torch.tensor(0.25).log()).item(), 4)  # log 2 / 2 + log(2/3) / 2
    0.1438
    """
    p, q, token, rest = coins(log_p, log_q, PROBABILITY_FLOOR)
    return torch.maximum(p * token + (1 - p) * rest, -(q * token + (1 - q) * rest))


def forward_kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(Q‖P) of the coins, Q of π_rollout: the gate of FlashREINFORCE (OpenRLHF 0.11.2, binary_kl; pull request 1339).

    Never below 0, where rounding in float32 could bring it (−4.5e-8, OpenRLHF issue 1354).

    >>> round(forward_kl(torch.tensor(0.5).log(), torch.tensor(0.25).log()).item(), 4)
    0.1308
    >>> forward_kl(torch.tensor(0.25).log(), torch.tensor(0.25).log()).item() == 0
    True
    """
    _, q, token, rest = coins(log_p, log_q, PROBABILITY_FLOOR)
    return -(q * token + (1 - q) * rest).clamp(max=0)


def prob_gap(log_p: Tensor, log_q: Tensor) -> Tensor:
    """|p − q|, the total variation of the coins (OpenRLHF's tv gate, which keeps p and q 1e-6 off 0 and 1).

    >>> round(prob_gap(torch.tensor(0.2).log(), torch.tensor(0.5).log()).item(), 4)
    0.3
    """
    return prob_diff(log_p, log_q).abs()


def signed_kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(Q‖P) of the coins, negative where p < q (DPPO, arXiv:2602.04879).

    >>> p, q = torch.tensor([0.5, 0.25]).log(), torch.tensor([0.25, 0.5]).log()
    >>> [round(x, 4) for x in signed_kl(p, q).tolist()]
    [0.1308, -0.1438]
    """
    p, q, token, rest = coins(log_p, log_q, SIGNED_KL_FLOOR)
    return -(q * token + (1 - q) * rest) * torch.sign(p - q)


def coins(log_p: Tensor, log_q: Tensor, floor: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """p, q, log p/q and log (1−p)/(1−q); 1 − p comes from expm1, which keeps its digits where p is near 1.

    >>> p, q, _, _ = coins(torch.tensor(0.5).log(), torch.tensor(0.0).log(), floor=1e-6)
    >>> p.item(), round(q.item(), 9)
    (0.5, 1e-06)
    """
    low, high = math.log(floor), math.log1p(-floor)
    log_p, log_q = at_least_float32(log_p).clamp(low, high), at_least_float32(log_q).clamp(low, high)
    rest = (-torch.expm1(log_p)).log() - (-torch.expm1(log_q)).log()
    return log_p.exp(), log_q.exp(), log_p - log_q, rest


_OF_PROBABILITIES = {
    "binary_kl": binary_kl,
    "prob_diff": prob_diff,
    "signed_kl": signed_kl,
    "forward_kl": forward_kl,
    "prob_gap": prob_gap,
}
"""Divergences that the log-ratio alone does not give."""
