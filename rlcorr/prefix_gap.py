"""CPPO's budget: the probability gap of a token, plus the amount by which earlier tokens exceeded their budget."""

import torch
from torch import Tensor

from rlcorr.masked import count_true

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
