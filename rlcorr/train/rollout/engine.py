"""The interface of rollout engines, and the padding of their samples into a batch."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from itertools import chain
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from rlcorr.train.config.rollout import Sampling
from rlcorr.types import TokenBatch


@dataclass(frozen=True)
class Samples:
    """Responses in the order of the prompts, n per prompt. A response that ends by itself includes its <eos>."""

    response_ids: list[list[int]]
    log_probs: list[list[float]]  # of the sampled tokens, processed or raw as set in the configuration
    # (prompt + response − 1, layers, k) per response: the last token is never fed to the model.
    routed_experts: list[Tensor] | None = None
    # Per response, the engine's K likeliest tokens at each position and their log-probs, (response, K) each.
    top: list[tuple[Tensor, Tensor]] | None = None
    versions: list[list[int]] | None = None  # of the weights that sampled each token, if these changed on the way

    def rows(self, rows: Sequence[int]) -> "Samples":
        """Return the samples of these responses only."""
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        some: dict[str, Any] = {name: None if x is None else [x[row] for row in rows] for name, x in columns.items()}
        return Samples(**some)


def joined(parts: Sequence[Samples]) -> Samples:
    """Return the samples of all parts, one after the other."""
    together: dict[str, Any] = {}
    for field in fields(Samples):
        columns = [getattr(part, field.name) for part in parts]
        together[field.name] = None if columns[0] is None else list(chain.from_iterable(columns))
    return Samples(**together)


class NextLogProbs(NamedTuple):
    """Log-probs of every token that may follow each of F prompts."""

    log_probs: Tensor  # (F, V) float32, as the engine reports them; −∞ for tokens that sampling cuts off
    routed_experts: list[Tensor] | None = None  # (prompt, layers, k) per prompt


class RolloutEngine(Protocol):
    """An engine that samples responses with log-probs, and takes new weights."""

    @property
    def description(self) -> dict[str, Any]:
        """Return name, version and settings, for the manifest."""
        ...

    def generate(
        self, prompts: list[list[int]], *, n: int, max_tokens: int, sampling: Sampling, seed: int = 0
    ) -> Samples:
        """Sample n responses to each prompt. The same weights, prompts and seed give the same responses."""
        ...

    def next_log_probs(self, prompts: list[list[int]], sampling: Sampling) -> NextLogProbs:
        """Return the log-probs of every token that may come next."""
        ...

    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Replace every weight. Shards are gathered one after the other, so every rank must call this."""
        ...

    def fingerprints(self) -> dict[str, Tensor]:
        """Return numbers for each slice of each weight that this rank's engine has, by name, (slices, n) float32."""
        ...

    def close(self) -> None:
        """Release what is shared with other processes, before the process group ends."""
        ...


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Set the seed of torch's global generator, from which engines draw, for a `with` block; restore it afterwards."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def left_padded(rows: list[list[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Pad ragged ids with 0 on the left; return ids (B, P) and mask (B, P)."""
    ids, mask = right_padded([row[::-1] for row in rows], torch.int64, device)
    return ids.flip(1), mask.flip(1)


def right_padded(rows: list[list[Any]], dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Pad ragged rows with 0 on the right; return values (B, T) and mask (B, T)."""
    width = max(map(len, rows))
    values = torch.tensor([row + [0] * (width - len(row)) for row in rows], dtype=dtype, device=device)
    lengths = torch.tensor([len(row) for row in rows], device=device)
    return values, torch.arange(width, device=device) < lengths[:, None]


def to_batch(prompts: list[list[int]], samples: Samples, device: torch.device) -> TokenBatch:
    """Return a batch with ids, masks and rollout log-probs; each row is one prompt and one response."""
    prompt_ids, prompt_mask = left_padded(prompts, device)
    response_ids, response_mask = right_padded(samples.response_ids, torch.int64, device)
    batch = TokenBatch(
        response_mask=response_mask,
        rollout_log_probs=right_padded(samples.log_probs, torch.float32, device)[0],
        prompt_ids=prompt_ids,
        prompt_mask=prompt_mask,
        response_ids=response_ids,
    )
    if samples.top is not None:
        batch = batch.replace(**_top(samples.top, response_mask))
    if samples.routed_experts is None:
        return batch
    return batch.replace(routed_experts=_routes(samples.routed_experts, prompt_mask, response_mask))


def _top(top: list[tuple[Tensor, Tensor]], response_mask: Tensor) -> dict[str, Tensor]:
    """Pad the likeliest tokens of each response and their log-probs, (n_b, K) each, to (B, T, K)."""
    ids, log_probs = (torch.cat(lists).to(response_mask.device) for lists in zip(*top, strict=True))
    shape = (*response_mask.shape, ids.shape[-1])
    fields = {
        "top_ids": torch.full(shape, -1, device=ids.device),
        "rollout_top_log_probs": torch.zeros(shape, device=ids.device),
    }
    fields["top_ids"][response_mask], fields["rollout_top_log_probs"][response_mask] = ids, log_probs
    return fields


def _routes(experts: list[Tensor], prompt_mask: Tensor, response_mask: Tensor) -> Tensor:
    """Pad the experts of each row, (n_b − 1, layers, k), to (B, P + T, layers, k); −1 if no token was fed there."""
    fed = torch.cat([prompt_mask, response_mask], -1)
    last = fed.cumsum(-1) == fed.sum(-1, keepdim=True)
    routes = torch.full((*fed.shape, *experts[0].shape[1:]), -1, device=fed.device)
    routes[fed & ~last] = torch.cat(experts).to(routes)
    return routes
