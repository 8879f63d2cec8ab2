"""Check the exercises on experts that are swapped."""

import torch
from torch import Tensor

from rlcorr.teaching.check import Exercise


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
        (lambda trainer, engine, k: (trainer.topk(k).indices != engine.topk(k).indices).any(-1),
         "You compare the order, too. The same two experts in another order are the same experts: compare sets."),
        (lambda trainer, engine, k: trainer.argmax(-1) != engine.argmax(-1),
         "You compare the best expert only. Any of the k experts may be swapped."),
        (lambda trainer, engine, k: trainer.topk(k).indices[:, -1] != engine.topk(k).indices[:, -1],
         "You compare the last of the k experts only. If the last two change places, the set is the same."),
        (lambda trainer, engine, k: trainer.argsort(-1).ne(engine.argsort(-1)).any(-1),
         "You compare the order of all experts. The order of those that are not taken does not matter."),
        (lambda trainer, engine, k: (
             trainer.topk(k).indices.sort(-1).values == engine.topk(k).indices.sort(-1).values
         ).all(-1),
         "This is the opposite: return True for tokens whose sets differ."),
        (lambda trainer, engine, k: (
             trainer.topk(k, largest=False).indices.sort(-1).values
             != engine.topk(k, largest=False).indices.sort(-1).values
         ).any(-1),
         "You compare the k smallest. A router takes the k largest."),
    ),
)  # fmt: skip
