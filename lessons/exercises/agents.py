"""Check the exercises on turns of an agent and second tokenisations."""

from collections.abc import Sequence

import torch
from torch import Tensor

from rlcorr.teaching.check import Exercise

# --- the log-ratio of a turn ---


def _by_turn(d: Tensor, turns: Tensor, mask: Tensor) -> Tensor:
    result = torch.zeros_like(d)
    for row, column in mask.nonzero().tolist():
        same = [t for t in range(d.shape[1]) if mask[row, t] and turns[row, t] == turns[row, column]]
        result[row, column] = sum(float(d[row, t]) for t in same)
    return result


def _episode(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return four episodes of up to three turns, with tokens of tools and padding between and after them."""
    generator = torch.Generator().manual_seed(seed)
    d = torch.randn(4, 10, dtype=torch.float64, generator=generator)
    turns = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2, 2, 2]]).repeat(4, 1)
    mask = torch.rand(4, 10, generator=generator) < 0.7
    return d, turns, mask


def _same_turn(turns: Tensor) -> Tensor:
    return (turns[:, :, None] == turns[:, None, :]).double()


SMALL_EPISODE = (
    torch.tensor([[0.5, 0.25, -9.0, -0.5, 1.0]], dtype=torch.float64),
    torch.tensor([[0, 0, 0, 1, 1]]),
    torch.tensor([[True, True, False, True, True]]),
)

TURN_LOG_RATIO = Exercise(
    expected=_by_turn,
    cases=(SMALL_EPISODE, _episode(0), _episode(1)),
    mistakes=(
        (lambda d, turns, mask: d.where(mask, 0).sum(1, keepdim=True).expand_as(d).where(mask, 0),
         "That is the log-ratio of the whole episode. Sum over the tokens of the same turn only."),
        (lambda d, turns, mask: (_same_turn(turns) @ d[..., None])[..., 0].where(mask, 0),
         "The tokens of the tool are in the sum. They were not sampled: use the mask before you add."),
        (lambda d, turns, mask: (_same_turn(turns) @ d.where(mask, 0)[..., None])[..., 0],
         "The result is not 0 on tokens that the policy did not sample."),
        (lambda d, turns, mask: (_same_turn(turns).tril() @ d.where(mask, 0)[..., None])[..., 0].where(mask, 0),
         "That is the sum up to this token. All tokens of a turn have the same sum."),
        (lambda d, turns, mask: ((turns[:, :, None] >= turns[:, None, :]).double() @ d.where(mask, 0)[..., None])[
             ..., 0
         ].where(mask, 0),
         "The turns before are in the sum. The log-ratio of a turn has the tokens of this turn alone."),
        (lambda d, turns, mask: (
             _by_turn(d, turns, mask) / (_same_turn(turns) @ mask.double()[..., None])[..., 0].clamp(min=1)
         ),
         "That is the mean over the turn, whose exponential is the geometric mean. The task asks for the sum."),
        (lambda d, turns, mask: d.where(mask, 0), "That is the log-ratio of the token alone."),
    ),
)  # fmt: skip

# --- which pairs survive a second tokenisation ---

Texts = Sequence[str]


def _spans(texts: Texts) -> list[tuple[int, int]]:
    spans, start = [], 0
    for text in texts:
        spans.append((start, start + len(text)))
        start += len(text)
    return spans


def _kept(sampled: Texts, encoded: Texts) -> tuple[bool, ...]:
    other = _spans(encoded)
    return tuple(span in other for span in _spans(sampled))


def _by_starts(sampled: Texts, encoded: Texts) -> tuple[bool, ...]:
    starts = {start for start, _ in _spans(encoded)}
    return tuple(start in starts for start, _ in _spans(sampled))


def _by_ends(sampled: Texts, encoded: Texts) -> tuple[bool, ...]:
    ends = {end for _, end in _spans(encoded)}
    return tuple(end in ends for _, end in _spans(sampled))


def _by_place(sampled: Texts, encoded: Texts) -> tuple[bool, ...]:
    return tuple(k < len(encoded) and text == encoded[k] for k, text in enumerate(sampled))


def _until_first(sampled: Texts, encoded: Texts) -> tuple[bool, ...]:
    equal = _by_place(sampled, encoded)
    first = equal.index(False) if False in equal else len(equal)
    return tuple(k < first for k in range(len(equal)))


STILL_PAIRED = Exercise(
    expected=_kept,
    cases=(
        (["17", "·", "2", "3", "=", "39", "1"], ["17", "·", "23", "=", "3", "91"]),
        (["a", "b", "a", "b", "a"], ["ab", "a", "b", "a"]),
        (["x", "yz", "x", "y", "z", "x"], ["xy", "z", "x", "y", "zx"]),
    ),
    mistakes=(
        (_by_place,
         "You compared the k-th token with the k-th. After the first token that was split or joined, the places are "
         "shifted: compare the characters that a token covers."),
        (lambda sampled, encoded: tuple(text in encoded for text in sampled),
         "You asked whether the text occurs anywhere. It must be the token of the same characters."),
        (_by_starts,
         "The start agrees, and the end must agree, too: “3” and “39” begin at the same character."),
        (_by_ends,
         "The end agrees, and the start must agree, too: “1” and “91” end at the same character."),
        (_until_first,
         "After a difference, tokens may cover the same characters again. Their pairs have other text before them, "
         "but they do exist; the exercise asks for them."),
    ),
)  # fmt: skip
