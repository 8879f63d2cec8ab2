"""Answers of any length without padding, and how they become batches that hardly have any."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from rlcorr.types import TokenBatch

POOL = 1 << 22
"""Tokens that are sorted at once. The more, the less the lengths in a batch differ."""
PLACES = 1 << 18
"""Rows × columns of a batch: what stays in the cache."""


@dataclass(frozen=True)
class Answers:
    """The numbers of the real tokens, all answers one after the other."""

    fields: dict[str, Tensor]  # name → (N,)
    lengths: Tensor  # (B,) int64, with sum N


def pooled(pieces: Iterable[Answers]) -> Iterator[Answers]:
    """The same answers in pieces of at least `POOL` tokens, but for the last."""
    waiting: list[Answers] = []
    for piece in pieces:
        waiting.append(piece)
        if sum(len(answers.fields["rollout_log_probs"]) for answers in waiting) >= POOL:
            yield _joined(waiting)
            waiting = []
    if waiting:
        yield _joined(waiting)


def _joined(pieces: list[Answers]) -> Answers:
    fields = {name: torch.cat([piece.fields[name] for piece in pieces]) for name in pieces[0].fields}
    return Answers(fields, torch.cat([piece.lengths for piece in pieces]))


def batches(answers: Answers) -> Iterator[TokenBatch]:
    """All answers that have tokens, the shortest first, as batches in float64 of about `PLACES` places.

    On padding stands whatever follows an answer: the mask alone says what is real. In float64, sums over any number of
    tokens are those of another program to more digits than anybody reads.
    """
    lengths, order = answers.lengths.sort()
    starts = (answers.lengths.cumsum(0) - answers.lengths)[order]
    longest = int(lengths.max()) if len(lengths) else 0
    windows = {name: torch.cat([values, values.new_zeros(longest)]) for name, values in answers.fields.items()}
    for rows in _groups(lengths.tolist()):
        width = int(lengths[rows.stop - 1])
        columns = {name: values.unfold(0, width, 1)[starts[rows]].double() for name, values in windows.items()}
        yield TokenBatch(response_mask=torch.arange(width) < lengths[rows, None], **columns)


def _groups(lengths: list[int]) -> Iterator[slice]:
    """Consecutive rows of ascending lengths, as many as fit into `PLACES`, at least one; without the empty ones."""
    start = next((row for row, length in enumerate(lengths) if length), len(lengths))
    for row in range(start, len(lengths)):
        if row > start and (row + 1 - start) * lengths[row] > PLACES:
            yield slice(start, row)
            start = row
    if start < len(lengths):
        yield slice(start, len(lengths))
