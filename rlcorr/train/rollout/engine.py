"""What a rollout engine is, and how its samples become a padded batch."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from rlcorr.train.config.rollout import Sampling
from rlcorr.types import TokenBatch


@dataclass(frozen=True)
class Samples:
    """Responses in the order of the prompts, n for each; <eos> is part of a response that ends by itself."""

    response_ids: list[list[int]]
    log_probs: list[list[float]]  # of the sampled tokens, processed or raw as the configuration says
    routed_experts: list[Tensor] | None = None  # each (prompt + response − 1, layers, k): the last token is never fed


class NextLogProbs(NamedTuple):
    """What may follow F prompts."""

    log_probs: Tensor  # (F, V) float32, as the engine reports them; −∞ where sampling cuts a token off
    routed_experts: list[Tensor] | None = None  # each (prompt, layers, k)


class RolloutEngine(Protocol):
    """Samples responses with log-probs, and takes new weights."""

    @property
    def description(self) -> dict[str, Any]:
        """Name, version and settings, for the manifest."""
        ...

    def generate(
        self, prompts: list[list[int]], *, n: int, max_tokens: int, sampling: Sampling, seed: int = 0
    ) -> Samples:
        """n responses to each prompt. The same weights, prompts and seed give the same responses."""
        ...

    def next_log_probs(self, prompts: list[list[int]], sampling: Sampling) -> NextLogProbs:
        """Log-probs of every token that may come next."""
        ...

    def sync(self, weights: Sequence[tuple[str, Tensor]]) -> None:
        """Replace every weight. Shards are gathered one after the other, at the same time on every rank."""
        ...

    def close(self) -> None:
        """Give back what other processes share in, before their group ends."""
        ...


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Engines draw from torch's global generator; this seeds it, and leaves it to everybody else as it was."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def left_padded(rows: list[list[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Ragged ids → (ids (B, P) padded with 0 on the left, mask (B, P))."""
    width = max(map(len, rows))
    ids = torch.tensor([[0] * (width - len(row)) + row for row in rows], device=device)
    lengths = torch.tensor([len(row) for row in rows], device=device)
    return ids, torch.arange(width, device=device) >= width - lengths[:, None]


def right_padded(rows: list[list[Any]], dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Ragged rows → (values (B, T) padded with 0 on the right, mask (B, T))."""
    width = max(map(len, rows))
    values = torch.tensor([row + [0] * (width - len(row)) for row in rows], dtype=dtype, device=device)
    lengths = torch.tensor([len(row) for row in rows], device=device)
    return values, torch.arange(width, device=device) < lengths[:, None]


def to_batch(prompts: list[list[int]], samples: Samples, device: torch.device) -> TokenBatch:
    """Ids, masks and rollout log-probs of one prompt and one response per row."""
    prompt_ids, prompt_mask = left_padded(prompts, device)
    response_ids, response_mask = right_padded(samples.response_ids, torch.int64, device)
    batch = TokenBatch(
        response_mask=response_mask,
        rollout_log_probs=right_padded(samples.log_probs, torch.float32, device)[0],
        prompt_ids=prompt_ids,
        prompt_mask=prompt_mask,
        response_ids=response_ids,
    )
    if samples.routed_experts is None:
        return batch
    return batch.replace(routed_experts=_routes(samples.routed_experts, prompt_mask, response_mask))


def _routes(experts: list[Tensor], prompt_mask: Tensor, response_mask: Tensor) -> Tensor:
    """(n_b − 1, layers, k) per row → (B, P + T, layers, k), −1 where no token was fed to the engine."""
    fed = torch.cat([prompt_mask, response_mask], -1)
    last = fed.cumsum(-1) == fed.sum(-1, keepdim=True)
    routes = torch.full((*fed.shape, *experts[0].shape[1:]), -1, device=fed.device)
    routes[fed & ~last] = torch.cat(experts).to(routes)
    return routes
