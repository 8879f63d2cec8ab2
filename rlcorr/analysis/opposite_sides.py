"""Log-probs that one side has padded on the left, the other on the right: zeros, and the text moved by their number."""

import torch
from torch import Tensor

from rlcorr.analysis.log_prob_pairs import Tokens, mismatch_numbers, select_tokens
from rlcorr.analysis.symptoms import Symptom, short, some_rows

FEWEST = 32
"""Smallest number of tokens behind the zeros that are compared."""
LEFT = 0.25
"""Largest share of |Δ| that the move may leave."""


def opposite_sides(tokens: Tokens, mask: Tensor) -> Symptom | None:
    """Check whether answers of one side begin or end with zeros, and agree with the other if moved by their number.

    The number of zeros is the length of the padding, so it differs between answers. The strength is the share of Σ|Δ|
    that the move removes, on the tokens that have a counterpart.

    Args:
        tokens: the tokens of a batch, (N,).
        mask: where they are in the batch, (B, T), with N true entries.
    """
    is_zero = (tokens.rollout == 0) | (tokens.old == 0)
    if not bool(is_zero.any()):
        return None
    answer = mask.nonzero()[:, 0]
    answers, with_zeros = len(answer.unique()), torch.isin(answer, answer[is_zero].unique())
    answer, part = answer[with_zeros], select_tokens(tokens, with_zeros)
    row = answer.unique(return_inverse=True)[1]
    width = torch.bincount(row)
    place = torch.arange(len(row)) - (width.cumsum(0) - width)[row]
    symptoms = []
    for name, side, other in (("engine", part.rollout, part.old), ("trainer", part.old, part.rollout)):
        for direction, places in (("left", place), ("right", width[row] - 1 - place)):
            zeros = width.scatter_reduce(0, row[side != 0], places[side != 0], "amin")[row]
            text = ((zeros > 0) & (places >= zeros)).nonzero()[:, 0]
            moved = text - zeros[text] if direction == "left" else text + zeros[text]
            before, after = (float((side[text] - other[at]).abs().sum()) for at in (text, moved))
            if len(text) < FEWEST or not after < LEFT * before:
                continue
            rows = answer[text].unique()
            sentence = f"Looks like padding on opposite sides: the {name}'s log-probs are padded with zeros on the "
            sentence += (
                f"{direction}, those of the other side are not. In {some_rows(rows, answers)} the text agrees if "
            )
            sentence += f"it is moved by their number (mean |Δ| {short(after / len(text))} instead of "
            sentence += f"{short(before / len(text))}). Pad both on one side, and cut both with one mask."
            symptoms.append(Symptom("padding", sentence, mismatch_numbers(tokens), 1 - after / before))
    return max(symptoms, key=lambda symptom: symptom.strength, default=None)
