"""Answers of a batch that differ from the others as a group: as if one worker, or one code path, had a fault."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from rlcorr.analysis.log_prob_pairs import Tokens

FEWEST = 100
"""Smallest number of tokens in a group, and outside it."""
COPIED, CUT = 8, 20
"""Tokens that an answer must have to count as a copy, and as sampled with a cut."""
SIDED = 0.98
"""Share of the tokens of an answer with π_old ≤ π_rollout from which on a cut is suspected."""
APART = 1.5
"""Factor by which the mean |Δ| of all answers of a group must be above that of all others."""


def row_groups(tokens: Tokens, mask: Tensor) -> Iterator[Tensor]:
    """Yield masks (N,) of the tokens of answers that may have a fault of their own; none of them proves one.

    These are answers with equal log-probs on both sides, answers with π_old ≤ π_rollout, and answers whose mean |Δ| is
    above the widest gap between two answers.

    Args:
        tokens: the real tokens, (N,), all with finite log-probs.
        mask: where they are in the batch, (B, T), with N true entries.
    """
    row = mask.nonzero()[:, 0].unique(return_inverse=True)[1]
    d = tokens.old - tokens.rollout
    count, total = torch.bincount(row).double(), torch.bincount(row, weights=d)
    size = torch.bincount(row, weights=d.abs())
    below = torch.bincount(row, weights=(d <= 0.02).double()) / count
    shown = torch.bincount(row, weights=(tokens.rollout != 0).double())
    groups = [(size == 0) & (shown >= COPIED), (count >= CUT) & (below >= SIDED) & (total < -0.02 * count)]
    for rows in (*groups, _larger(size / count)):
        chosen = rows[row]
        if FEWEST <= int(chosen.sum()) <= len(row) - FEWEST:
            yield chosen


def _larger(means: Tensor) -> Tensor:
    """Return the answers above the widest gap between the sorted means; none if no gap is as wide as `APART`."""
    ordered, order = means.sort()
    steps = ordered[1:].clamp(min=1e-9).log() - ordered[:-1].clamp(min=1e-9).log()
    larger = torch.zeros_like(means, dtype=torch.bool)
    if len(steps) and float(steps.max()) >= math.log(APART):
        larger[order[int(steps.argmax()) + 1 :]] = True
    return larger
