"""Rejection: a rule's statistic, its comparison with the bounds, and the divergences that are not in `ratios`.

The rules follow verl's rollout correction, with its faults repaired: bounds are on r, and are compared on log r.
Several divergences are between two-outcome (Bernoulli) distributions: "this token" or "any other token".
"""

import math

import torch
from torch import Tensor

from rlcorr.prefix_gap import prefix_gap
from rlcorr.ratios import SAFETY_BOUND, at_least_float32, k2, k3, over_sequence
from rlcorr.rules import AppliesTo, Divergence, RejectionRule
from rlcorr.types import TokenBatch

PROBABILITY_FLOOR = 1e-6
"""binary_kl clamps both probabilities to [1e-6, 1 − 1e-6], so it is at most about 13.8 (verl)."""
SIGNED_KL_FLOOR = 1e-8
"""signed_kl clamps both probabilities to [1e-8, 1 − 1e-8]."""


def reject(batch: TokenBatch, d: Tensor, rules: tuple[RejectionRule, ...]) -> Tensor:
    """Return the number k ≥ 1 of the first rule that rejects each real token, else 0; (B, T) float32.

    A NaN statistic is rejected.

    >>> d = torch.tensor([[0.0, 2.0]])
    >>> batch = TokenBatch(torch.ones(1, 2, dtype=torch.bool), torch.zeros(1, 2), old_log_probs=d)
    >>> reject(batch, d, (RejectionRule.named("token_k2", upper=1.0),)).tolist()
    [[0.0, 1.0]]
    """
    rejected_by = torch.zeros_like(d, dtype=torch.float32)
    for index, rule in enumerate(rules, start=1):
        rejects = ~passes(rule, rule_statistic(rule, batch, d), batch, d)
        rejected_by = torch.where((rejected_by == 0) & rejects & batch.response_mask, float(index), rejected_by)
    return rejected_by


def rule_statistic(rule: RejectionRule, batch: TokenBatch, d: Tensor) -> Tensor:
    """Return the value that the rule compares with its bounds: (B, T) for a token rule, (B, 1) for a sequence rule.

    For k1 this is log r, not −log r, so that its bounds are bounds on the ratio.

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
    if name in _PROBABILITY_DIVERGENCES:
        old, rollout = batch.old_log_probs, batch.rollout_log_probs
        assert old is not None
        return _PROBABILITY_DIVERGENCES[name](old.detach(), rollout)
    c = d.clamp(-SAFETY_BOUND, SAFETY_BOUND)  # before the sum over tokens, so that one token cannot make it infinite
    if name == "abs_ratio_error":
        return torch.expm1(c).abs()
    return {"k2": k2, "k3": k3, "mult_error": lambda x: x.abs().exp()}[name](c)


def log_bounds(rule: RejectionRule) -> tuple[float, float]:
    """Return the bounds on the rule's statistic. For k1 they are the logarithms of the configured bounds.

    Logarithms are compared because exp would round, and move a ratio that is exactly on a bound.

    >>> log_bounds(RejectionRule.named("token_k1", upper=1.0)), log_bounds(RejectionRule.named("token_k2", upper=3.0))
    ((-inf, 0.0), (-inf, 3.0))
    """
    lower = -math.inf if rule.lower is None else rule.lower
    if rule.divergence != "k1":
        return lower, rule.upper
    return (lower if rule.lower is None else math.log(lower)), math.log(rule.upper)


def inside(rule: RejectionRule, statistic: Tensor) -> Tensor:
    """Check whether the statistic is inside the rule's bounds. NaN is outside.

    >>> inside(RejectionRule.named("token_k2", upper=1.0), torch.tensor([1.0, 1.5, torch.nan])).tolist()
    [True, False, False]
    """
    lower, upper = log_bounds(rule)
    return (statistic >= lower) & (statistic <= upper)


def passes(rule: RejectionRule, statistic: Tensor, batch: TokenBatch, d: Tensor) -> Tensor:
    """Return which tokens the rule keeps: those inside its bounds, and those to which it does not apply.

    >>> d, rule = torch.tensor([[2.0, 2.0]]), RejectionRule.named("token_k1_negative", upper=2.0)
    >>> advantages = torch.tensor([[1.0, -1.0]])
    >>> batch = TokenBatch(torch.ones(1, 2, dtype=torch.bool), torch.zeros(1, 2), advantages=advantages)
    >>> passes(rule, d, batch, d).tolist()
    [[True, False]]
    """
    if rule.applies_to == "all":
        return inside(rule, statistic)
    assert batch.advantages is not None
    return inside(rule, statistic) | ~_applies(rule.applies_to, batch.advantages, d)


def _applies(applies_to: AppliesTo, advantages: Tensor, d: Tensor) -> Tensor:
    """Return the tokens to which the rule applies. The negated form makes it apply to a NaN."""
    if applies_to == "negative":
        return ~(advantages >= 0)
    return ~(d * advantages <= 0)


def prob_diff(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return p − q, at least float32.

    >>> round(prob_diff(torch.tensor(0.5).log(), torch.tensor(0.2).log()).item(), 4)
    0.3
    """
    return at_least_float32(log_p).exp() - at_least_float32(log_q).exp()


def binary_kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return max(KL(P‖Q), KL(Q‖P)) of the two-outcome distributions "this token or another" (KPop).

    >>> binary_kl(torch.tensor(0.5).log(), torch.tensor(0.5).log()).item()
    0.0
    >>> round(binary_kl(torch.tensor(0.5).log(), torch.tensor(0.25).log()).item(), 4)  # log 2 / 2 + log(2/3) / 2
    0.1438
    """
    p, q, token, rest = bernoulli_terms(log_p, log_q, PROBABILITY_FLOOR)
    return torch.maximum(p * token + (1 - p) * rest, -(q * token + (1 - q) * rest))


def forward_kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return KL(Q‖P) of the two-outcome distributions, where Q belongs to π_rollout.

    This is the gate of FlashREINFORCE (OpenRLHF 0.11.2, binary_kl; pull request 1339). Values below 0, which come from
    rounding in float32 (−4.5e-8, OpenRLHF issue 1354), become 0.

    >>> round(forward_kl(torch.tensor(0.5).log(), torch.tensor(0.25).log()).item(), 4)
    0.1308
    >>> forward_kl(torch.tensor(0.25).log(), torch.tensor(0.25).log()).item() == 0
    True
    """
    _, q, token, rest = bernoulli_terms(log_p, log_q, PROBABILITY_FLOOR)
    return -(q * token + (1 - q) * rest).clamp(max=0)


def binary_tv(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return |p − q|, the total variation of the two-outcome distributions.

    OpenRLHF's tv gate is the same, except that it clamps p and q to [1e-6, 1 − 1e-6].

    >>> round(binary_tv(torch.tensor(0.2).log(), torch.tensor(0.5).log()).item(), 4)
    0.3
    """
    return prob_diff(log_p, log_q).abs()


def signed_kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return KL(Q‖P) of the two-outcome distributions, with a minus sign if p < q (DPPO, arXiv:2602.04879).

    >>> p, q = torch.tensor([0.5, 0.25]).log(), torch.tensor([0.25, 0.5]).log()
    >>> [round(x, 4) for x in signed_kl(p, q).tolist()]
    [0.1308, -0.1438]
    """
    p, q, token, rest = bernoulli_terms(log_p, log_q, SIGNED_KL_FLOOR)
    return -(q * token + (1 - q) * rest) * torch.sign(p - q)


def bernoulli_terms(log_p: Tensor, log_q: Tensor, floor: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return p, q, log p/q and log (1−p)/(1−q), with p and q clamped to [floor, 1 − floor].

    1 − p is computed with expm1, which keeps its digits if p is near 1.

    >>> p, q, _, _ = bernoulli_terms(torch.tensor(0.5).log(), torch.tensor(0.0).log(), floor=1e-6)
    >>> p.item(), round(q.item(), 9)
    (0.5, 1e-06)
    """
    low, high = math.log(floor), math.log1p(-floor)
    log_p, log_q = at_least_float32(log_p).clamp(low, high), at_least_float32(log_q).clamp(low, high)
    rest = (-torch.expm1(log_p)).log() - (-torch.expm1(log_q)).log()
    return log_p.exp(), log_q.exp(), log_p - log_q, rest


_PROBABILITY_DIVERGENCES = {
    "binary_kl": binary_kl,
    "prob_diff": prob_diff,
    "signed_kl": signed_kl,
    "forward_kl": forward_kl,
    "binary_tv": binary_tv,
}
"""Divergences that need the two probabilities; the log-ratio alone is not enough."""
