"""Parts of responses: tokens by the age of the weights that sampled them, and by their turn; corrections per turn.

In an answer of an agent, tools or other speakers answer in between. A product of ratios over all turns grows with their
number, and its mean mixes turns that may have been sampled by different weights. With a turn per row, the sequence
weights and the rules on sequences of any correction are those of a turn.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlcorr.analysis.symptoms import percent, short
from rlcorr.config import CorrectionConfig
from rlcorr.correction import correct, old_log_probs
from rlcorr.errors import UsageError
from rlcorr.ratios import k3, log_ratio
from rlcorr.types import CorrectionResult, TokenBatch

MOST = 0.5
"""Share of k3 from which on the age of the weights is the first thing to look at."""
FEW = 100
"""Tokens of the youngest weights, below which their k3 is noise."""


@dataclass(frozen=True)
class Segment:
    """The gap on the tokens with one lag, or of one turn: d = log π_old − log π_rollout."""

    number: int
    tokens: int
    k3: float
    abs_log_ratio: float
    log_ratio_mean: float


@dataclass(frozen=True)
class AgeShare:
    """The share of a step's k3 that comes with the age of the weights: an estimate from versions, and a sentence."""

    share: float
    is_most: bool
    """True if that is most of it, and there are enough tokens of the youngest weights to know."""
    sentence: str


def token_lags(batch: TokenBatch, step: int) -> Tensor:
    """Return how many updates older the weights were that sampled each token, (B, T).

    Step s is scored by version s − 1, or by the newest version in the batch if that is newer. Raises `UsageError`
    without policy_versions.
    """
    if batch.policy_versions is None:
        raise UsageError("a lag needs policy_versions; this batch has none.")
    versions = batch.policy_versions
    versions = (versions if versions.dim() == 2 else versions[:, None]).expand_as(batch.response_mask)
    sampled = versions[batch.response_mask]
    return max(step - 1, int(sampled.max()) if len(sampled) else 0) - versions


def without_older(batch: TokenBatch, step: int, max_lag: int) -> TokenBatch:
    """Return the batch without the tokens that weights more than `max_lag` updates old have sampled.

    Raises `UsageError` without policy_versions, or for a negative lag.
    """
    if max_lag < 0:
        raise UsageError(f"max_lag must be at least 0; got {max_lag}.")
    return batch.replace(response_mask=batch.response_mask & (token_lags(batch, step) <= max_lag))


def by_lag(batch: TokenBatch, step: int) -> tuple[Segment, ...]:
    """Measure the tokens of each lag, the smallest lag first. Raises as `token_lags` does."""
    return _measured(batch, token_lags(batch, step))


def by_turn(batch: TokenBatch) -> tuple[Segment, ...]:
    """Measure the tokens of each turn, the first turn first. Raises `UsageError` without turn_ids."""
    if batch.turn_ids is None:
        raise UsageError("turns need turn_ids; this batch has none.")
    return _measured(batch, batch.turn_ids)


def age_share(segments: Sequence[Segment]) -> AgeShare | None:
    """Return how much of k3 comes with the age of the weights, from the segments of `by_lag`; None if there is one age.

    The engine's part is taken to be that of the youngest weights at every age. `sampled_log_probs` measure it instead.

    >>> age_share((Segment(0, 100, 0.001, 0.03, 0.0), Segment(2, 300, 0.005, 0.07, 0.0))).share
    0.75
    """
    if len(segments) < 2:
        return None
    youngest = segments[0]
    whole = sum(one.k3 * one.tokens for one in segments) / sum(one.tokens for one in segments)
    share = 1 - youngest.k3 / whole if whole > youngest.k3 else 0.0
    first = (
        f"k3 is {short(youngest.k3)} on the {youngest.tokens:,} tokens of weights {youngest.number} updates old, and "
        f"{short(whole)} on all."
    )
    if not share:
        return AgeShare(0.0, False, f"{first} So the gap does not grow with the age of the weights.")
    then = f"If the engine's part is the same at every age, older weights make {percent(share)} of k3."
    is_most = share > MOST and youngest.tokens >= FEW
    return AgeShare(share, is_most, f"{first} {then} With sampled_log_probs it would be measured.")


def _measured(batch: TokenBatch, numbers: Tensor) -> tuple[Segment, ...]:
    """Measure the tokens that share a number, (B, T). Tokens without a finite ratio are left out."""
    d = log_ratio(old_log_probs(batch), batch.rollout_log_probs, batch.response_mask).detach().double()
    real = batch.response_mask & d.isfinite()
    values, index = numbers[real].unique(return_inverse=True)
    d = d[real]
    count = torch.bincount(index, minlength=len(values)).double()
    means = [torch.bincount(index, weights=x, minlength=len(values)) / count for x in (k3(d), d.abs(), d)]
    rows = zip(values.tolist(), count.tolist(), *(mean.tolist() for mean in means), strict=True)
    return tuple(Segment(int(number), int(tokens), *sizes) for number, tokens, *sizes in rows)


# --- corrections per turn: each turn of a conversation is corrected as if it were an answer of its own ---

_PER_TOKEN = (
    "rollout_log_probs", "old_log_probs", "sampled_log_probs", "log_probs", "ref_log_probs", "values", "advantages",
    "returns", "response_ids", "policy_versions", "turn_ids",
)  # fmt: skip
_PER_ROW = ("rewards", "group_ids", "policy_versions")


def turns_as_rows(batch: TokenBatch) -> TokenBatch:
    """Return a batch with one row per turn, in the order of the rows and their turns, without prompts.

    A row's reward, group and version go to each of its turns. Raises `UsageError` without turn_ids.
    """
    if batch.turn_ids is None:
        raise UsageError("a correction per turn needs turn_ids; this batch has none.")
    old_mask = batch.response_mask
    row = torch.arange(len(old_mask), device=old_mask.device)[:, None].expand_as(old_mask)[old_mask]
    pairs = torch.stack([row, batch.turn_ids[old_mask].to(row)], -1)
    turns, lengths = pairs.unique_consecutive(dim=0, return_counts=True)
    width = int(lengths.max()) if len(lengths) else 0
    mask = torch.arange(width, device=old_mask.device) < lengths[:, None]  # its tokens are in the order of the old mask
    fields: dict[str, Tensor] = {}
    for name, tensor in batch.tensors().items():
        if name in _PER_TOKEN and tensor.shape == old_mask.shape:
            fields[name] = tensor.new_zeros(mask.shape).masked_scatter(mask, tensor[old_mask])
        elif name in _PER_ROW:
            fields[name] = tensor[turns[:, 0]]
    return TokenBatch(response_mask=mask, **fields)


def correct_per_turn(batch: TokenBatch, config: CorrectionConfig) -> CorrectionResult:
    """Correct each turn on its own, and return the result in the shape of the batch, (B, T).

    Raises `UsageError` without turn_ids, and as `correct` does.
    """
    rows = turns_as_rows(batch)
    of_turns = correct(rows, config)
    log_ratio, weights, keep, rejected = (
        x.new_zeros(batch.response_mask.shape).masked_scatter(batch.response_mask, x[rows.response_mask])
        for x in (of_turns.log_ratio, of_turns.weights, of_turns.keep_mask, of_turns.rejected_by)
    )
    return CorrectionResult(log_ratio, weights, keep, rejected, of_turns.norm_factor)
