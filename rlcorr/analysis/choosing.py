"""Bounds for a whole run: chosen on all of its steps but the last, checked on that, and on answers cut short."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlcorr.analysis.budget import keep_at_least
from rlcorr.bounds import BoundId, at_threshold, is_ratio
from rlcorr.config import CorrectionConfig
from rlcorr.correction import old_log_probs
from rlcorr.errors import UsageError
from rlcorr.measuring.measure import evaluate
from rlcorr.measuring.metric_definitions import PREFIX
from rlcorr.types import TokenBatch

DIGITS = 4
"""Significant digits of a threshold's distance from neutral, rounded so that it keeps more."""

LENGTHS = (5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
"""Numbers of tokens to which answers are cut."""
CUTS = 3
"""Largest number of cuts that are measured, the longest that are shorter than the longest answer."""


@dataclass(frozen=True)
class Pairs:
    """Several steps of a run as one batch."""

    steps: tuple[int, ...]
    batch: TokenBatch


CLIPPED_LIMIT, ESS_LIMIT = 0.05, 0.5
"""The glossary calls a larger clipped mass, and a smaller effective sample size, bad."""


@dataclass(frozen=True)
class Kept:
    """What a correction keeps of a batch."""

    share: float
    """Share of the tokens that teach something: their weight is above 0 and no rule rejects them."""
    ess: float
    """Effective sample size of the kept tokens, as a share of all tokens."""
    cut: float | None
    """Share of the tokens whose weights become a bound; None if weights are not truncated."""
    clipped: float
    """Clipped mass: share of the tokens whose weights lie outside their bounds, and become a bound or 0."""

    @property
    def zeroed(self) -> float:
        """Return the share of the tokens that teach nothing."""
        return 1 - self.share

    @property
    def has_high_clipped(self) -> bool:
        return self.clipped > CLIPPED_LIMIT

    @property
    def has_low_ess(self) -> bool:
        return self.ess < ESS_LIMIT


def pairs_of(steps: Iterable[tuple[int, TokenBatch]], *, with_advantages: bool = False) -> tuple[Pairs, Pairs | None]:
    """Split steps, in their order, into those that bounds are chosen on and the last step, which checks them.

    With one step there is nothing to check on: the second part is None.

    Raises:
        UsageError: if some steps lack the advantages that are asked for.
    """
    numbers, batches = zip(*((number, _pairs(batch, with_advantages)) for number, batch in steps), strict=True)
    if not numbers[1:]:
        return Pairs(numbers, batches[0]), None
    return Pairs(numbers[:-1], pooled(batches[:-1])), Pairs(numbers[-1:], batches[-1])


def choose_bound(
    batch: TokenBatch, correction: CorrectionConfig, share: float, bound: BoundId
) -> tuple[float, CorrectionConfig]:
    """Return the tightest threshold that keeps this share of the tokens, with few digits, and the correction there.

    Raises as `keep_at_least` does.
    """
    threshold = rounded_up(keep_at_least(batch, correction, share, bound), correction, bound)
    return threshold, at_threshold(correction, threshold, bound)


def kept(batch: TokenBatch, correction: CorrectionConfig) -> Kept:
    """Measure what a correction keeps of a batch."""
    result, numbers = evaluate(batch, correction)
    learned = result.keep_mask & (result.weights > 0)
    clipped = numbers.get(f"{PREFIX}rollout_is_oob_ratio")
    return Kept(
        int(learned.sum()) / int(batch.response_mask.sum()),
        numbers[f"{PREFIX}trained_eff_sample_size"],
        clipped if correction.rollout_is_mode == "truncate" else None,
        clipped or 0.0,
    )


def _pairs(batch: TokenBatch, with_advantages: bool) -> TokenBatch:
    advantages = batch.advantages if with_advantages else None
    return TokenBatch(batch.response_mask, batch.rollout_log_probs, old_log_probs(batch), advantages=advantages)


def pooled(batches: Sequence[TokenBatch]) -> TokenBatch:
    """Concatenate the rows of several batches, padded to one width.

    >>> pooled([TokenBatch.from_log_probs(*torch.zeros(2, 1, t), torch.ones(1, t)) for t in (2, 3)]).response_mask.sum()
    tensor(5)
    """
    width = max(batch.response_mask.shape[1] for batch in batches)
    columns = [batch.tensors() for batch in batches]
    for name in columns[0]:
        if not all(name in tensors for tensors in columns):
            raise UsageError(f"{name} is in some of the steps, and not in all.")
    return TokenBatch(**{name: torch.cat([_filled(x[name], width) for x in columns]) for name in columns[0]})


def _filled(x: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(x, (0, width - x.shape[1]))


def rounded_up(threshold: float, config: CorrectionConfig, bound: BoundId) -> float:
    """Round a threshold to few digits, never to a tighter one; for a ratio the digits are those of its distance from 1.

    >>> rounded_up(1.000123456, CorrectionConfig(rollout_is="token"), BoundId())
    1.0001235
    """
    offset = 1.0 if is_ratio(config, bound) and threshold > 1 else 0.0
    distance = threshold - offset
    if not 0 < distance < math.inf:
        return threshold
    unit = 10.0 ** (math.floor(math.log10(distance)) - DIGITS + 1)
    return float(f"{offset + math.ceil(distance / unit * (1 - 1e-12)) * unit:.12g}")


# --- the same answers, cut to fewer tokens: how a threshold carries over to longer ones ---


def kept_by_length(batch: TokenBatch, correction: CorrectionConfig) -> dict[int, Kept]:
    """Return number of tokens → what a correction keeps of the first so many of each answer; at last of whole answers.

    A token's own ratio does not change by the cut; products and means over an answer do. Answers that are shorter than
    the cut stay as they are.
    """
    longest = int(batch.response_mask.sum(dim=1).max())
    lengths = [length for length in LENGTHS if length < longest][-CUTS:]
    return {length: kept(cut_answers(batch, length), correction) for length in (*lengths, longest)}


def cut_answers(batch: TokenBatch, length: int) -> TokenBatch:
    """Return the batch with only the first `length` real tokens of each answer in its mask."""
    mask = batch.response_mask
    return batch.replace(response_mask=mask & (mask.cumsum(dim=1) <= length))
