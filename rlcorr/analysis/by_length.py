"""What a correction keeps of the same answers cut to fewer tokens: how its threshold carries over to longer answers."""

from dataclasses import dataclass

from rlcorr.analysis.choosing import Kept, kept
from rlcorr.config import CorrectionConfig
from rlcorr.types import TokenBatch

LENGTHS = (5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
"""Numbers of tokens to which answers are cut."""
CUTS = 3
"""Largest number of cuts that are measured, the longest that are shorter than the longest answer."""


@dataclass(frozen=True)
class AtLength:
    """What a correction keeps of answers that were cut to at most this many tokens."""

    length: int
    kept: Kept


def kept_by_length(batch: TokenBatch, correction: CorrectionConfig) -> tuple[AtLength, ...]:
    """Measure what a correction keeps of the first tokens of each answer, and at last of whole answers.

    A token's own ratio does not change by the cut; products and means over an answer do. Answers that are shorter than
    the cut stay as they are.
    """
    longest = int(batch.response_mask.sum(dim=1).max())
    lengths = [length for length in LENGTHS if length < longest][-CUTS:]
    return tuple(AtLength(length, kept(cut_answers(batch, length), correction)) for length in (*lengths, longest))


def cut_answers(batch: TokenBatch, length: int) -> TokenBatch:
    """Return the batch with only the first `length` real tokens of each answer in its mask.

    >>> batch = TokenBatch.from_log_probs(*torch.zeros(2, 1, 3), torch.tensor([[1, 0, 1]]))
    >>> cut_answers(batch, 1).response_mask.tolist()
    [[True, False, False]]
    """
    mask = batch.response_mask
    return batch.replace(response_mask=mask & (mask.cumsum(dim=1) <= length))
