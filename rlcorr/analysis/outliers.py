"""Few tokens that decide the diagnosis of a gap, because they make most of its k3."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rlcorr.analysis.log_prob_pairs import Tokens, mismatch_numbers
from rlcorr.analysis.size_pattern import verdict_on
from rlcorr.analysis.symptoms import Symptom, listed, percent, short
from rlcorr.ratios import k3
from rlcorr.types import TokenBatch

FEWEST = 100
"""Smallest number of tokens of which some can be called few."""
MOST = 3
"""Largest number of tokens that are called few."""
SHARE = 0.5
"""Share of k3 that they must make. On 103 recorded steps one token makes up to 0.95 of it (tiny models in bfloat16,
900 tokens) and up to 0.23 (SmolLM2-135M, 1,700 tokens or more). The verdict is the same without it on all of them."""


@dataclass(frozen=True)
class Outliers:
    """The symptom that names the tokens, and a mask of all others, (N,)."""

    symptom: Symptom
    others: Tensor


def outliers(tokens: Tokens, mask: Tensor) -> Outliers | None:
    """Return the largest tokens by k3, if they make most of it and the verdict on its size is another without them.

    As few tokens are taken as are enough, at most `MOST`. The strength is their share of k3.

    Args:
        tokens: the real tokens, (N,), all with finite log-probs.
        mask: where they are in the batch, (B, T), with N true entries.
    """
    divergence = k3(tokens.old - tokens.rollout)
    total, count = float(divergence.sum()), len(divergence)
    if count < FEWEST:
        return None
    largest = divergence.topk(MOST).indices
    for taken in range(1, len(largest) + 1):
        others = torch.ones_like(divergence, dtype=torch.bool)
        others[largest[:taken]] = False
        rest = float(divergence[others].sum())
        if total - rest <= SHARE * total:
            continue
        with_them, without = total / count, rest / (count - taken)
        if verdict_on(with_them) != verdict_on(without):
            return Outliers(_symptom(tokens, mask, largest[:taken], with_them, without), others)
    return None


def without_outliers(batch: TokenBatch, symptoms: list[Symptom]) -> TokenBatch:
    """Return the batch without the tokens that a symptom names.

    >>> batch = TokenBatch.from_log_probs(*torch.zeros(2, 1, 3), torch.ones(1, 3))
    >>> named = Symptom("outlier", "One token.", {}, 1.0, ((0, 1),))
    >>> without_outliers(batch, [named]).response_mask.tolist()
    [[True, False, True]]
    """
    named = [token for symptom in symptoms for token in symptom.tokens]
    if not named:
        return batch
    mask = batch.response_mask.clone()
    for row, column in named:
        mask[row, column] = False
    return batch.replace(response_mask=mask)


def _symptom(tokens: Tokens, mask: Tensor, largest: Tensor, with_them: float, without: float) -> Symptom:
    """Name the tokens by row and position, with both log-probs of each."""
    places = [(int(row), int(column)) for row, column in mask.nonzero()[largest]]
    names = [
        f"response {row}, token {column} (log-probs {rollout:.4g} in the engine and {old:.4g} in the trainer)"
        for (row, column), rollout, old in zip(
            places, tokens.rollout[largest].tolist(), tokens.old[largest].tolist(), strict=True
        )
    ]
    share = 1 - without * (len(tokens.old) - len(largest)) / (with_them * len(tokens.old))
    subject, verb, them = ("One token", "makes", "it") if len(names) == 1 else (f"{len(names)} tokens", "make", "them")
    sentence = f"{subject} {verb} {percent(share)} of k3: {listed(names)}, counted from 0. With {them} k3 is "
    sentence += f"{short(with_them)}, without {them} {short(without)}."
    numbers = mismatch_numbers(tokens) | {"k3_without": without}
    return Symptom("outlier", sentence.replace(" -", " −"), numbers, share, tuple(places))
