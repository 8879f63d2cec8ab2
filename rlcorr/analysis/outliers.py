"""Few tokens, few answers, or one place of every answer that decide the diagnosis: they make most of its k3."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from rlcorr.analysis.log_prob_pairs import Tokens, mismatch_numbers
from rlcorr.analysis.size_pattern import verdict_on
from rlcorr.analysis.symptoms import HEALTHY, Symptom, listed, percent, short, some_rows
from rlcorr.ratios import k3
from rlcorr.types import TokenBatch

FEWEST = 100
"""Smallest number of tokens of which some can be called few."""
MOST = 3
"""Largest number of tokens that are called few; of answers it is this number, or a tenth of them if that is more."""
SHARE = 0.5
"""Share of k3 that they must make. On 103 recorded steps one token makes up to 0.95 of it (tiny models in bfloat16,
900 tokens) and up to 0.23 (SmolLM2-135M, 1,700 tokens or more). The verdict is the same without it on all of them."""
TIMES = 100
"""The mean of k3 of these answers, or at this place, over that of the others. On the recorded steps the largest answers
reach 37 times (a mixture of experts in bfloat16)."""
NEARLY_ALL = 0.9
"""Share of k3 from which on answers and places are named although the verdict without them is the same."""
WIDEST = 0.25
"""Largest share of the tokens that one place of every answer may be."""


@dataclass(frozen=True)
class Outliers:
    """The symptom that names the tokens, and a mask of all others, (N,)."""

    symptom: Symptom
    others: Tensor


def outliers(tokens: Tokens, batch: TokenBatch) -> Outliers | None:
    """Return what makes most of k3, if the verdict on its size is another without it.

    As few tokens are taken as are enough, at most `MOST`. If the others do not look healthy then, few answers or one
    place of every answer come first. The strength is their share of k3.

    Args:
        tokens: the real tokens, (N,), all with finite log-probs.
        batch: the batch, whose mask has N true entries.
    """
    divergence = k3(tokens.old - tokens.rollout)
    if len(divergence) < FEWEST:
        return None
    few = _few_tokens(tokens, divergence, batch.response_mask)
    if few is not None and verdict_on(float(divergence[few.others].mean()))[0] in HEALTHY:
        return few
    return _answers_or_places(tokens, divergence, batch) or few


def _few_tokens(tokens: Tokens, divergence: Tensor, mask: Tensor) -> Outliers | None:
    largest = divergence.topk(MOST).indices
    for taken in range(1, len(largest) + 1):
        others = torch.ones_like(divergence, dtype=torch.bool)
        others[largest[:taken]] = False
        if _decides(divergence, others):
            return Outliers(_symptom(tokens, mask, largest[:taken], _sizes(divergence, others)), others)
    return None


def _answers_or_places(tokens: Tokens, divergence: Tensor, batch: TokenBatch) -> Outliers | None:
    for part, name, advice in (*_answers(divergence, batch), *_places(divergence, batch)):
        if _stands_out(divergence, part):
            with_them, without = _sizes(divergence, ~part)
            share = float(divergence[part].sum() / divergence.sum())
            sentence = f"{100 * share:.3g} % of k3 is in {name}: {percent(float(part.double().mean()))} of the tokens. "
            sentence += f"With them k3 is {short(with_them)}, without them {short(without)}. {advice}"
            places = torch.zeros_like(batch.response_mask).masked_scatter(batch.response_mask, part)
            numbers = mismatch_numbers(tokens) | {"k3_without": without}
            return Outliers(Symptom("outlier", sentence, numbers, share, places=places), ~part)
    return None


def without_outliers(batch: TokenBatch, symptoms: list[Symptom]) -> TokenBatch:
    """Return the batch without the tokens that a symptom names, and without its places.

    >>> batch = TokenBatch.from_log_probs(*torch.zeros(2, 1, 3), torch.ones(1, 3))
    >>> named = Symptom("outlier", "One token.", {}, 1.0, ((0, 1),))
    >>> without_outliers(batch, [named]).response_mask.tolist()
    [[True, False, True]]
    """
    mask = batch.response_mask.clone()
    for symptom in symptoms:
        for row, column in symptom.tokens:
            mask[row, column] = False
        if symptom.places is not None:
            mask &= ~symptom.places
    return batch.replace(response_mask=mask) if bool((mask != batch.response_mask).any()) else batch


def _decides(divergence: Tensor, others: Tensor) -> bool:
    """Check whether the tokens except `others`, (N,), make most of k3, and the verdict without them is another."""
    if float(divergence[others].sum()) >= (1 - SHARE) * float(divergence.sum()):
        return False
    with_them, without = _sizes(divergence, others)
    return verdict_on(with_them) != verdict_on(without)


def _stands_out(divergence: Tensor, part: Tensor) -> bool:
    """Check whether answers or places are far above the others, and decide the pattern or make nearly all of k3."""
    if not MOST < int(part.sum()) <= len(part) - FEWEST:
        return False
    of_part, (with_them, without) = float(divergence[part].mean()), _sizes(divergence, ~part)
    if verdict_on(with_them)[0] in HEALTHY:
        return False
    share = float(divergence[part].sum() / divergence.sum().clamp(min=1e-300))
    decides = share > SHARE and verdict_on(with_them)[0] != verdict_on(without)[0]
    return of_part > TIMES * without and (decides or share >= NEARLY_ALL)


def _sizes(divergence: Tensor, others: Tensor) -> tuple[float, float]:
    return float(divergence.mean()), float(divergence[others].mean())


def _answers(divergence: Tensor, batch: TokenBatch) -> Iterator[tuple[Tensor, str, str]]:
    """Yield the tokens of the few answers above the widest gap between two answers."""
    row = batch.response_mask.nonzero()[:, 0].unique(return_inverse=True)[1]
    means = torch.bincount(row, weights=divergence) / torch.bincount(row)
    most = min(max(MOST, len(means) // 10), len(means) // 2)
    if most:
        ordered, order = means.topk(most + 1)
        few = order[: int((ordered[:-1] / ordered[1:].clamp(min=1e-300)).argmax()) + 1]
        part = torch.isin(row, few)
        rows = batch.response_mask.any(-1).nonzero()[:, 0][few].sort().values
        yield part, some_rows(rows, len(means)), "Look at these answers first: did both sides score the same tokens?"


def _places(divergence: Tensor, batch: TokenBatch) -> Iterator[tuple[Tensor, str, str]]:
    """Yield the tokens at one place of every answer, if the mean there is far above that of the others."""
    row, column = batch.response_mask.nonzero().unbind(-1)
    new_row = torch.ones_like(row, dtype=torch.bool)
    new_row[1:] = row[1:] != row[:-1]
    end = "Check what is scored at the end of answers: an end token, or the boundary to the next text."
    start = "Check what is scored at the beginning of answers: another token, or the end of the prompt."
    named = [
        (new_row.roll(-1), "the last tokens of the answers", end),
        (new_row, "the first tokens of the answers", start),
    ]
    if batch.turn_ids is not None:
        turn = batch.turn_ids[row, column]
        new_turn = torch.zeros_like(new_row)
        new_turn[1:] = (turn[1:] != turn[:-1]) & ~new_row[1:]
        turns = "Check what is scored next to the answer of a tool, which one side may tokenise in another way."
        named += [
            (new_turn, "the first tokens of the later turns", turns),
            (new_turn.roll(-1), "the last tokens before the later turns", turns),
        ]
    for part, name, advice in named:
        if int(part.sum()) <= WIDEST * len(part):
            yield part, name, advice


def _symptom(tokens: Tokens, mask: Tensor, largest: Tensor, sizes: tuple[float, float]) -> Symptom:
    """Name the tokens by row and position, with both log-probs of each."""
    with_them, without = sizes
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
