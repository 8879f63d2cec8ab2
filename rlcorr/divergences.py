"""The divergences that a rejection rule may compare with its bounds: one record each in `DIVERGENCES`.

A new divergence is one record. d = log π_old − log π_rollout and r = eᵈ on tokens sampled from π_rollout. Several are
between two-outcome (Bernoulli) distributions: "this token" (p under π_old, q under π_rollout) or "any other token".
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rlcorr.masked import count_true
from rlcorr.ratios import SAFETY_BOUND, at_least_float32, excess, k2, k3, ratio

PROBABILITY_FLOOR = 1e-6
"""binary_kl clamps both probabilities to [1e-6, 1 − 1e-6], so it is at most about 13.8 (verl)."""
SIGNED_KL_FLOOR = 1e-8
"""signed_kl clamps both probabilities to [1e-8, 1 − 1e-8]."""


@dataclass(frozen=True)
class Divergence:
    """A distance of the two policies at one token. Exactly one of the three functions is given."""

    meaning: str
    """Formula, for people who choose a rule."""
    subject: str
    """The words for it in a sentence: "k3" in "keeps a token while k3 ≤ 0.1"."""
    title: str
    """The same in the title of a preset: "KL" in "reject tokens by KL"."""
    of_log_ratio: Callable[[Tensor], Tensor] | None = None
    """d → divergence, elementwise. Those but k1 clamp d to ±20, so that one token cannot make a sum infinite."""
    of_pair: Callable[[Tensor, Tensor], Tensor] | None = None
    """log p and log q → divergence, elementwise."""
    of_answer: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None
    """log p, log q and the mask, (B, T) each → a divergence that depends on the tokens before it. For token rules."""
    signed: bool = False
    """True if the divergence has a direction: it may have a lower and an upper bound, the others only an upper one."""
    neutral: float = 0.0
    """The value of a token on which the policies agree. 1 for ratios, whose bounds are compared as logarithms."""
    usual: tuple[float | None, float] = (None, 0.01)
    """A lower and an upper bound to start from, those of public presets where there are any."""
    most: float = 100.0
    """Largest bound that a page offers."""

    def of(self, d: Tensor, log_p: Tensor | None, log_q: Tensor, mask: Tensor) -> Tensor:
        """Return the divergence of every token, (B, T). Of k1 it is log r, see `rules.rule_statistic`."""
        if self.of_log_ratio is not None:
            return self.of_log_ratio(d)
        assert log_p is not None
        log_p, log_q = at_least_float32(log_p.detach()), at_least_float32(log_q)
        if self.of_pair is not None:
            return self.of_pair(log_p, log_q)
        assert self.of_answer is not None
        return self.of_answer(log_p, log_q, mask)


def prob_diff(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return p − q, at least float32."""
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
    """
    low, high = math.log(floor), math.log1p(-floor)
    log_p, log_q = at_least_float32(log_p).clamp(low, high), at_least_float32(log_q).clamp(low, high)
    rest = (-torch.expm1(log_p)).log() - (-torch.expm1(log_q)).log()
    return log_p.exp(), log_q.exp(), log_p - log_q, rest


LAST, BUDGET = 0.8, 0.02
"""CPPO's w_min and δ_b."""


def prefix_gap(log_p: Tensor, log_q: Tensor, keep: Tensor, *, last: float = LAST, budget: float = BUDGET) -> Tensor:
    """Return w_t D_t + max(0, Σ_{j<t} w_j D_j − b Σ_{j<t} w_j), shape (B, T).

    CPPO keeps a token if this is at most δ. It writes w_t D_t ≤ min(δ, δ + b Σ w_j − Σ w_j D_j), which is the same
    (arXiv:2606.10968; UniRL, unirl/algorithms/cppo.py). If an answer contains a NaN, all its values are NaN.

    Args:
        log_p, log_q: (B, T) log-probs of the two policies; D = |p − q|.
        keep: (B, T) bool, the tokens that count.
        last: Weight w of the last kept token. w falls linearly from 1 at the first kept token.
        budget: Smallest b. b is the 90 % quantile of the answer's D, clamped to `budget` and 2 · `budget`.

    >>> p, q = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.45, 0.2]]).log()
    >>> keep = torch.ones(1, 2, dtype=torch.bool)
    >>> [round(x, 3) for x in prefix_gap(p, q, keep)[0].tolist()]  # 0.8 · 0.3 + 0.05 − 0.04
    [0.05, 0.25]
    """
    w, gap, overspent = prefix_parts(log_p, log_q, keep, last=last, budget=budget)
    return w * gap + overspent


def prefix_parts(
    log_p: Tensor, log_q: Tensor, keep: Tensor, *, last: float = LAST, budget: float = BUDGET
) -> tuple[Tensor, Tensor, Tensor]:
    """Return w, D and the overspent amount max(0, …) of `prefix_gap`, (B, T) each."""
    gap = torch.where(keep, (log_p.exp() - log_q.exp()).abs(), 0)
    position = keep.cumsum(-1) - 1  # of the token among the kept tokens of its row
    w = torch.where(keep, 1 - (1 - last) * position / (count_true(keep)[:, None] - 1).clamp(min=1), 0)
    spent, allowed = ((x.cumsum(-1) - x) for x in (w * gap, w))  # sums over earlier tokens only
    nan_if_any = 0 * gap.sum(-1, keepdim=True)  # spreads a NaN over its answer
    b = upper_quantile(gap, keep, 0.9)[:, None].clamp(budget, 2 * budget) + nan_if_any
    return w, gap, (spent - b * allowed).clamp(min=0)


def upper_quantile(x: Tensor, keep: Tensor, share: float) -> Tensor:
    """Return the quantile of each row's kept numbers, (B, T) → (B,), with linear interpolation; 0 for an empty row."""
    if not x.shape[-1]:
        return x.sum(-1)
    ordered = torch.where(keep, x, torch.inf).sort(-1).values
    rank = share * (keep.sum(-1) - 1).clamp(min=0).to(x.dtype)
    low, high = (ordered.gather(-1, index.long()[:, None])[:, 0] for index in (rank.floor(), rank.ceil()))
    return torch.where(keep.any(-1), low + (rank - rank.floor()) * (high - low), 0)


DIVERGENCES: dict[str, Divergence] = {
    "k1": Divergence(
        "r itself; sum and mean give the product and the geometric mean of the ratios, min and max a veto",
        "ratio", "ratio", lambda d: d, signed=True, neutral=1.0, usual=(0.5, 2.0),
    ),
    "k2": Divergence("d²/2", "k2", "k2", lambda d: k2(d.clamp(-SAFETY_BOUND, SAFETY_BOUND))),
    "k3": Divergence("eᵈ − 1 − d", "k3", "k3", k3),
    "binary_kl": Divergence(
        "max(KL(P‖Q), KL(Q‖P)) (KPop)", "two-sided binary KL", "two-sided KL", of_pair=binary_kl, usual=(None, 2.0),
        most=20.0,
    ),
    "prob_diff": Divergence(
        "p − q, in [−1, 1] (binary total variation, with its sign)", "π_old − π_rollout", "probability difference",
        of_pair=prob_diff, signed=True, usual=(-0.2, 0.2), most=1.0,
    ),
    "signed_kl": Divergence(
        "KL(Q‖P), with the sign of p − q", "signed binary KL", "signed KL", of_pair=signed_kl, signed=True,
        usual=(-0.05, 0.05), most=20.0,
    ),
    "abs_ratio_error": Divergence(
        "|r − 1|, whose mean estimates twice the total variation", "|r − 1|", "distance of the ratio from 1",
        lambda d: excess(d).abs(), usual=(None, 2.0),
    ),
    "mult_error": Divergence(
        "e^|d| ≥ 1, the factor by which the two probabilities differ", "e^|log r|", "log-prob error",
        lambda d: ratio(d.abs()), neutral=1.0, usual=(None, 2.0),
    ),
    "forward_kl": Divergence(
        "KL(Q‖P), without a sign (FlashREINFORCE)", "binary KL(π_rollout‖π_old)", "KL", of_pair=forward_kl,
        usual=(None, 5e-3), most=20.0,
    ),
    "binary_tv": Divergence(
        "|p − q|, the total variation of P and Q", "|π_old − π_rollout|", "total variation", of_pair=binary_tv,
        usual=(None, 0.05), most=1.0,
    ),
    "prefix_gap": Divergence(
        "weighted binary_tv plus what earlier tokens of the answer exceeded their budget by (CPPO)",
        "w|π_old − π_rollout| + what the answer has overspent before", "gap of the prefix", of_answer=prefix_gap,
        usual=(None, 0.2),
    ),
}  # fmt: skip
"""Name of a divergence → its record. Rules are named after them, such as token_k1 and seq_mean_k3."""

SIGNED = tuple(name for name, divergence in DIVERGENCES.items() if divergence.signed)
"""Divergences with a direction."""
