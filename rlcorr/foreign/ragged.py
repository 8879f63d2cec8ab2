"""Responses of any length without padding, and how they are put into batches with little padding."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from rlcorr.types import TokenBatch

POOL_TOKENS = 1 << 22
"""Number of tokens that are sorted by length together. The more there are, the less the lengths in a batch differ."""
MAX_PADDED_TOKENS = 1 << 18
"""Rows × columns of a batch, padding included: small enough for the processor's cache."""


@dataclass(frozen=True)
class RaggedTokens:
    """The numbers of real tokens, all responses one after the other."""

    fields: dict[str, Tensor]  # name → (N,)
    lengths: Tensor  # (B,) int64, with sum N


def pool(pieces: Iterable[RaggedTokens]) -> Iterator[RaggedTokens]:
    """Yield the same responses in pieces of at least `POOL_TOKENS` tokens; the last piece may be smaller."""
    waiting: list[RaggedTokens] = []
    for piece in pieces:
        waiting.append(piece)
        if sum(len(ragged.fields["rollout_log_probs"]) for ragged in waiting) >= POOL_TOKENS:
            yield _concat(waiting)
            waiting = []
    if waiting:
        yield _concat(waiting)


def _concat(pieces: list[RaggedTokens]) -> RaggedTokens:
    fields = {name: torch.cat([piece.fields[name] for piece in pieces]) for name in pieces[0].fields}
    return RaggedTokens(fields, torch.cat([piece.lengths for piece in pieces]))


def to_batches(ragged: RaggedTokens) -> Iterator[TokenBatch]:
    """Yield all responses that have tokens, the shortest first, as float64 batches of about `MAX_PADDED_TOKENS`.

    The padding of a row holds the values that follow it in `fields`; only the mask says which tokens are real. In
    float64, sums over any number of tokens agree with those of another program to more digits than are printed.
    """
    lengths, order = ragged.lengths.sort()
    starts = (ragged.lengths.cumsum(0) - ragged.lengths)[order]
    longest = int(lengths.max()) if len(lengths) else 0
    # With `longest` zeros at the end, a window of any width that starts at a response stays within the array.
    windows = {name: torch.cat([values, values.new_zeros(longest)]) for name, values in ragged.fields.items()}
    for rows in _row_groups(lengths.tolist()):
        width = int(lengths[rows.stop - 1])
        columns = {name: values.unfold(0, width, 1)[starts[rows]].double() for name, values in windows.items()}
        yield TokenBatch(response_mask=torch.arange(width) < lengths[rows, None], **columns)


def _row_groups(lengths: list[int]) -> Iterator[slice]:
    """Yield consecutive rows of ascending lengths: at least one, and as many as fit into `MAX_PADDED_TOKENS`.

    Rows without tokens are skipped.
    """
    start = next((row for row, length in enumerate(lengths) if length), len(lengths))
    for row in range(start, len(lengths)):
        if row > start and (row + 1 - start) * lengths[row] > MAX_PADDED_TOKENS:
            yield slice(start, row)
            start = row
    if start < len(lengths):
        yield slice(start, len(lengths))
