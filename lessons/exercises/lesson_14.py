"""The exercises of lesson 14."""

import math
from typing import Any

import torch
from torch import Tensor

from rlcorr.teaching.check import Exercise, Mistake


def _largest(row: list[float], k: int) -> list[int]:
    """Return the indices of the k largest numbers, the largest first."""
    return sorted(range(len(row)), key=lambda place: -row[place])[:k]


def _swapped(trainer: Tensor, engine: Tensor, k: int) -> Tensor:
    pairs = zip(trainer.tolist(), engine.tolist(), strict=True)
    return torch.tensor([set(_largest(mine, k)) != set(_largest(theirs, k)) for mine, theirs in pairs])


def _random(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


_LOGITS = torch.tensor([[2.0, 1.0, 0.9, 0.0], [2.0, 1.0, 0.9, 0.0], [2.0, 1.9, 0.5, 0.0]], dtype=torch.float64)
_SEEN = torch.tensor([[2.0, 0.9, 1.0, 0.0], [2.1, 1.1, 1.0, 0.1], [1.9, 2.0, 0.5, 0.0]], dtype=torch.float64)
_MANY = _random(140, 300, 8)

SWAPPED = Exercise(
    expected=_swapped,
    cases=(
        (_LOGITS, _SEEN, 2),
        (_LOGITS, _SEEN, 1),
        (_MANY, _MANY + 0.1 * _random(141, 300, 8), 2),
        (_MANY, _MANY + 0.1 * _random(141, 300, 8), 3),
    ),
    mistakes=(
        Mistake(
            lambda trainer, engine, k: (trainer.topk(k).indices != engine.topk(k).indices).any(-1),
            "You compare the order, too. The same two experts in another order are the same experts: compare sets.",
        ),
        Mistake(
            lambda trainer, engine, k: trainer.argmax(-1) != engine.argmax(-1),
            "You compare the best expert only. Any of the k experts may be swapped.",
        ),
        Mistake(
            lambda trainer, engine, k: trainer.topk(k).indices[:, -1] != engine.topk(k).indices[:, -1],
            "You compare the last of the k experts only. If the last two change places, the set is the same.",
        ),
        Mistake(
            lambda trainer, engine, k: trainer.argsort(-1).ne(engine.argsort(-1)).any(-1),
            "You compare the order of all experts. The order of those that are not taken does not matter.",
        ),
        Mistake(
            lambda trainer, engine, k: (
                trainer.topk(k).indices.sort(-1).values == engine.topk(k).indices.sort(-1).values
            ).all(-1),
            "This is the opposite: return True for tokens whose sets differ.",
        ),
        Mistake(
            lambda trainer, engine, k: (
                trainer.topk(k, largest=False).indices.sort(-1).values
                != engine.topk(k, largest=False).indices.sort(-1).values
            ).any(-1),
            "You compare the k smallest. A router takes the k largest.",
        ),
    ),
)


def _replayed(logits: Tensor, experts: Tensor) -> Tensor:
    rows = []
    for row, chosen in zip(logits.tolist(), experts.tolist(), strict=True):
        sizes = [math.exp(row[expert]) for expert in chosen]
        rows.append([size / sum(sizes) for size in sizes])
    return torch.tensor(rows, dtype=torch.float64)


def _by_own_choice(logits: Tensor, experts: Tensor) -> Tensor:
    return logits.topk(experts.shape[-1]).values.softmax(-1)


def _log(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64).log()


REPLAYED_WEIGHTS = Exercise(
    expected=_replayed,
    cases=(
        (_log([0.5, 0.3, 0.2], [0.1, 0.6, 0.3]), torch.tensor([[0, 2], [2, 1]])),
        (_random(142, 6, 8), torch.tensor([[0, 1], [3, 2], [7, 5], [4, 6], [1, 7], [2, 0]])),
    ),
    mistakes=(
        Mistake(
            _by_own_choice,
            "These are the trainer's own experts. Return the weights of the given experts, in their order.",
        ),
        Mistake(
            lambda logits, experts: logits.softmax(-1).gather(-1, experts),
            "The probabilities of all experts add up to 1, those of the taken experts do not. Divide by their sum.",
        ),
        Mistake(
            lambda logits, experts: torch.full(experts.shape, 1 / experts.shape[-1], dtype=logits.dtype),
            "All experts get the same weight. Then the router would have no gradient. Use its probabilities.",
        ),
        Mistake(
            lambda logits, experts: logits.gather(-1, experts) / logits.gather(-1, experts).sum(-1, keepdim=True),
            "You divided the logits. Take their exponentials first.",
        ),
        Mistake(
            lambda logits, experts: torch.zeros_like(logits).scatter(
                -1, experts, logits.gather(-1, experts).softmax(-1)
            ),
            "Return one weight per given expert, in their order, and not one per expert of the layer.",
        ),
    ),
)


def _terms(d: Tensor) -> list[float]:
    return [math.exp(x) - 1 - x for x in d.tolist()]


def _share(d: Tensor, count: int) -> float:
    terms = sorted(_terms(d), reverse=True)
    return sum(terms[:count]) / sum(terms)


def _share_of(values: Tensor, count: int) -> Any:
    return values.sort(descending=True).values[:count].sum() / values.sum()


_HEAVY = torch.cat([0.02 * _random(143, 60), torch.tensor([1.5, -2.0, 0.5], dtype=torch.float64)])

SHARE_OF_LARGEST = Exercise(
    expected=_share,
    cases=(
        (torch.tensor([1.0, -1.0, 0.0], dtype=torch.float64), 1),
        (torch.tensor([0.1, -2.0, 1.5, 0.2], dtype=torch.float64), 2),
        (_HEAVY, 1),
        (_HEAVY, 3),
    ),
    mistakes=(
        Mistake(
            lambda d, count: _share_of(d.abs(), count),
            "That is the share of |d|. k3 grows faster than |d|.",
        ),
        Mistake(
            lambda d, count: _share_of(d.square() / 2, count),
            "That is the share of k2. For large |d| k2 and k3 differ.",
        ),
        Mistake(
            lambda d, count: (d.exp() - 1 - d)[d.argsort(descending=True)[:count]].sum() / (d.exp() - 1 - d).sum(),
            "You took the largest d. A very negative d has a large k3 too: sort by k3.",
        ),
        Mistake(
            lambda d, count: (d.exp() - 1 - d).sort(descending=True).values[:count].mean() / (d.exp() - 1 - d).sum(),
            "You divided the mean of the largest by the sum of all. Use sums for both.",
        ),
        Mistake(
            lambda d, count: (d.exp() - 1 - d).sort().values[:count].sum() / (d.exp() - 1 - d).sum(),
            "These are the smallest. Sort the other way.",
        ),
    ),
)
