"""Check the exercises on the order of sums."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from rlcorr.teaching.check import Exercise

# --- which tokens of two answers can be compared ---


def _before_difference(first: Tensor, second: Tensor, mask: Tensor) -> Tensor:
    result = torch.zeros_like(mask)
    for row in range(len(first)):
        for column in range(first.shape[1]):
            if not mask[row, column] or first[row, column] != second[row, column]:
                break
            result[row, column] = True
    return result


_FIRST = torch.tensor([[5, 7, 2, 9], [4, 4, 1, 0], [3, 8, 0, 0]])
_SECOND = torch.tensor([[5, 7, 6, 9], [4, 4, 1, 0], [2, 8, 0, 0]])
_BOTH = torch.tensor([[True, True, True, True], [True, True, True, False], [True, True, False, False]])


def _ids(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    first = torch.randint(3, 50, (6, 9), generator=generator)
    changed = torch.rand(6, 9, generator=generator) < 0.2
    mask = torch.arange(9) < torch.tensor([[9], [4], [7], [9], [2], [6]])
    return first.where(mask, 0), torch.where(changed, first + 1, first).where(mask, 0), mask


COMPARABLE = Exercise(
    expected=_before_difference,
    cases=((_FIRST, _SECOND, _BOTH), _ids(0), _ids(1)),
    mistakes=(
        (lambda a, b, mask: (a == b) & mask,
         "After the first difference the two texts are not the same, so an equal token there has other text before "
         "it. It must not be compared."),
        (lambda a, b, mask: ((a != b).cumsum(1) - (a != b).int() == 0) & mask,
         "The token that differs is in the mask. The two log-probs belong to two different tokens there."),
        (lambda a, b, mask: ((a == b) | ~mask).all(1, keepdim=True) & mask,
         "You kept whole answers only. The tokens before the first difference can be compared as well."),
        (lambda a, b, mask: (a != b).cumsum(1) == 0,
         "Padding is equal on both sides. Use the mask as well."),
    ),
)  # fmt: skip

# --- the trainer's own part of a gap ---

Share = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def _k3_by_hand(p: Tensor, q: Tensor, mask: Tensor) -> float:
    total = 0.0
    for row, column in mask.nonzero().tolist():
        d = float(p[row, column] - q[row, column])
        total += math.exp(d) - 1 - d
    return total / int(mask.sum())


def _own_share(eight: Tensor, one: Tensor, engine: Tensor, mask: Tensor) -> float:
    return _k3_by_hand(eight, one, mask) / _k3_by_hand(eight, engine, mask)


def _k3(d: Tensor) -> Tensor:
    return d.exp() - 1 - d


def _quotient(of_gap: Callable[[Tensor], Tensor]) -> Share:
    return lambda eight, one, engine, mask: of_gap((eight - one)[mask]).mean() / of_gap((eight - engine)[mask]).mean()


def _scores(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    base = -2 * torch.rand(4, 6, dtype=torch.float64, generator=generator)
    noise = torch.randn(3, 4, 6, dtype=torch.float64, generator=generator)
    mask = torch.arange(6) < torch.tensor([[6], [3], [5], [1]])
    sides = (base, base + 0.2 * noise[0] + 0.05, base + 0.4 * noise[1])
    eight, one, engine = (side.where(mask, math.nan) for side in sides)
    return eight, one, engine, mask


OWN_SHARE = Exercise(
    expected=_own_share,
    cases=(
        (
            torch.tensor([[0.5, 0.4], [0.25, math.nan]], dtype=torch.float64).log(),
            torch.tensor([[0.4, 0.4], [0.25, math.nan]], dtype=torch.float64).log(),
            torch.tensor([[0.25, 0.5], [0.5, math.nan]], dtype=torch.float64).log(),
            torch.tensor([[True, True], [True, False]]),
        ),
        _scores(0),
        _scores(1),
    ),
    mistakes=(
        (_quotient(torch.abs),
         "That is the share of the mean |d|. For k3, take e^d − 1 − d of every token."),
        (_quotient(torch.square),
         "Those are squares, twice k2. For k3, take e^d − 1 − d of every token."),
        (lambda eight, one, engine, mask: 1 / _quotient(_k3)(eight, one, engine, mask),
         "Upside down: divide the trainer's own gap by the gap to the engine."),
        (lambda eight, one, engine, mask: _quotient(_k3)(one, eight, engine, mask),
         "You compared the engine with the scores of one row at a time. The task asks for the scores of eight rows."),
        (_quotient(lambda d: _k3(-d)),
         "The sign of d is wrong. d is log p − log q: the first score minus the one it is compared with."),
        (lambda eight, one, engine, mask: (_k3(eight - one) / _k3(eight - engine))[mask].mean(),
         "You averaged the quotients of single tokens. Take both means first, then divide."),
        (lambda eight, one, engine, mask: _k3(eight - one).nanmean() / _k3(eight - engine).where(mask, 0).mean(),
         "The two means divide by different numbers of tokens: one counts padding."),
    ),
)  # fmt: skip
