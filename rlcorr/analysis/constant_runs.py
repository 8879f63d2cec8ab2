"""Padding that only a mask could show: answers that begin or end with one constant, such as 0, on both sides."""

import torch
from torch import Tensor

from rlcorr.analysis.log_prob_pairs import Tokens
from rlcorr.analysis.symptoms import Symptom, percent, some_rows

RUN = 2
"""Tokens of a run at the beginning or end of an answer from which on it may be padding."""
FILLED = 0.4
"""Share of the answers between others of their length that must have a run. In micro-batches of two it is one half; in
a recorded run of which most answers are cut off, and many end in tokens of probability 1, it is 0.13."""
ALL, SPREAD = 0.9, 8
"""Share of the answers with a run, and the difference between the longest and the shortest run, if all answers of the
batch are equally long and none is without a run."""
SHARE = 0.01
"""Smallest share of the tokens; less changes no number that anyone reads."""


def constant_runs(tokens: Tokens, real: Tensor, mask: Tensor) -> tuple[list[Symptom], Tensor]:
    """Return the symptom of such padding, if there is any, and a mask (N,) of the `real` tokens without it.

    A policy that is certain of a token has log-prob 0 on both sides, too. So the runs must fill up the answers to the
    length of the longest one next to them, see `_filled_up`. The strength is the share of the tokens.

    Args:
        tokens: the tokens of a batch, (N,).
        real: the tokens that are looked at, (N,).
        mask: where the tokens are in the batch, (B, T), with N true entries.
    """
    row = mask.nonzero()[:, 0].unique(return_inverse=True)[1]
    same = real & (tokens.old == tokens.rollout)
    twice = same[1:] & same[:-1] & (tokens.old[1:] == tokens.old[:-1]) & (row[1:] == row[:-1])
    if not bool(twice.any()):
        return [], real
    constant = tokens.old[1:][twice].mode().values
    hit, width = same & (tokens.old == constant), torch.bincount(row)
    last = width.cumsum(0)
    place = torch.arange(len(row)) - (last - width)[row]
    padded = torch.zeros_like(hit)
    for places in (place, width[row] - 1 - place):  # counted from the beginning, and from the end
        # The run ends at the first place that has another value.
        length = width.scatter_reduce(0, row[~hit], places[~hit], "amin")
        padded |= (_filled_up(length, width)[row]) & (places < length[row])
    count = int(padded.sum())
    if count < SHARE * len(row):
        return [], real
    rows, value = mask.nonzero()[:, 0][padded].unique(), f"{float(constant):g}".replace("-", "−")
    sentence = (
        f"Looks like padding: both log-probs are exactly {value} on {count:,} tokens ({percent(count / len(row))}), "
    )
    sentence += (
        f"at the beginning or end of {some_rows(rows, len(width))}. Without a mask such places count as tokens of "
    )
    sentence += "ratio 1. Say which tokens are real: with a response_mask, or with lengths."
    numbers = {"tokens": float(count), "share_of_tokens": count / len(row), "value": float(constant)}
    places = torch.zeros_like(mask).masked_scatter(mask, padded)
    return [Symptom("padding", sentence, numbers, count / len(row), places=places)], real & ~padded


def _filled_up(length: Tensor, width: Tensor) -> Tensor:
    """Return the answers whose run fills them up to the length of the answers before or after them, (B,).

    Args:
        length: tokens of the run at one end of each answer, (B,).
        width: tokens of each answer, (B,), the run included.
    """
    block = torch.nn.functional.pad((width[1:] != width[:-1]).long(), (1, 0)).cumsum(0)  # answers of one length
    shortest = length.clone().scatter_reduce(0, block, length, "amin", include_self=False)[block]
    several = torch.bincount(block)[block] > 1
    runs = length >= RUN
    if not bool(block.any()) and float(runs.double().mean()) >= ALL and int(length.max() - length.min()) >= SPREAD:
        return runs
    candidates = several & (shortest < RUN)
    filled = runs & candidates
    count = int(filled.sum())
    enough = count >= 3 and count >= FILLED * int(candidates.sum()) and 2 * count >= int(runs.sum())
    return filled if enough else torch.zeros_like(filled)
