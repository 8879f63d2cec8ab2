"""CPPO's budget: how far a token is off, with what the tokens before it in the answer have overspent."""

import torch
from torch import Tensor

from rlcorr.masked import tally

LAST, BUDGET = 0.8, 0.02
"""CPPO's w_min and δ_b."""


def prefix_gap(log_p: Tensor, log_q: Tensor, keep: Tensor, *, last: float = LAST, budget: float = BUDGET) -> Tensor:
    """w_t D_t + max(0, Σ_{j<t} w_j D_j − b Σ_{j<t} w_j), (B, T): at most δ where CPPO keeps a token (arXiv:2606.10968;
    UniRL, unirl/algorithms/cppo.py), which writes it as w_t D_t ≤ min(δ, δ + b Σ w_j − Σ w_j D_j).

    D = |p − q|; w falls from 1 at the first kept token to `last` at the last one; b is the 90 % quantile of the
    answer's D, within 1 and 2 times `budget`. NaN everywhere in an answer with a NaN.

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
    """w, D and what is overspent, (B, T) each.

    >>> p, q = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.45, 0.2]]).log()
    >>> [[round(y, 3) for y in x[0].tolist()] for x in prefix_parts(p, q, torch.ones(1, 2, dtype=torch.bool))]
    [[1.0, 0.8], [0.05, 0.3], [0.0, 0.01]]
    """
    gap = torch.where(keep, (log_p.exp() - log_q.exp()).abs(), 0)
    place = keep.cumsum(-1) - 1
    w = torch.where(keep, 1 - (1 - last) * place / (tally(keep)[:, None] - 1).clamp(min=1), 0)
    spent, allowed = ((x.cumsum(-1) - x) for x in (w * gap, w))
    b = upper_quantile(gap, keep, 0.9)[:, None].clamp(budget, 2 * budget) + 0 * gap.sum(-1, keepdim=True)
    return w, gap, (spent - b * allowed).clamp(min=0)


def upper_quantile(x: Tensor, keep: Tensor, share: float) -> Tensor:
    """(B, T) → (B,): the quantile of each row's kept numbers, between two of them on the line that joins them; 0 of a
    row without any.

    >>> upper_quantile(torch.tensor([[1.0, 3.0, 9.0]]), torch.tensor([[True, True, False]]), 0.9).tolist()
    [2.799999952316284]
    """
    if not x.shape[-1]:
        return x.sum(-1)
    ordered = torch.where(keep, x, torch.inf).sort(-1).values
    at = share * (keep.sum(-1) - 1).clamp(min=0).to(x.dtype)
    low, high = (ordered.gather(-1, place.long()[:, None])[:, 0] for place in (at.floor(), at.ceil()))
    return torch.where(keep.any(-1), low + (at - at.floor()) * (high - low), 0)
