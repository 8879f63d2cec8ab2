"""What a rollout engine is, and the one that every platform has: transformers."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from rlcorr.train.config.rollout import RolloutConfig, Sampling
from rlcorr.types import TokenBatch


@dataclass(frozen=True)
class Samples:
    """Responses in the order of the prompts, n for each; <eos> is part of a response that ends by itself."""

    response_ids: list[list[int]]
    log_probs: list[list[float]]  # of the sampled tokens, processed or raw as the configuration says
    routed_experts: list[Tensor] | None = None  # each (prompt + response − 1, layers, k): the last token is never fed


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

    def next_log_probs(self, prompts: list[list[int]], sampling: Sampling) -> Tensor:
        """Log-probs of every token that may come next, (prompts, V) float32; −∞ where sampling cuts it off."""
        ...

    def sync(self, weights: Sequence[tuple[str, Tensor]]) -> None:
        """Replace every weight."""
        ...

    def close(self) -> None:
        """Give back what other processes share in, before their group ends."""
        ...


class TransformersEngine:
    """Hugging Face `generate` on a copy of the weights in the engine's dtype. Slow, and the same everywhere."""

    def __init__(self, config: RolloutConfig, lm: PreTrainedModel, stops: list[int]) -> None:
        self._lm = copy.deepcopy(lm).to(getattr(torch, config.dtype)).eval()
        self._config = config
        self._stops = stops
        if config.stale_lm_head:  # as in engines that hold a tied head twice
            head: Any = self._lm.get_output_embeddings()
            head.weight = torch.nn.Parameter(head.weight.detach().clone())

    @property
    def description(self) -> dict[str, Any]:
        import transformers

        return {"name": "transformers", "version": transformers.__version__, "dtype": self._config.dtype}

    def generate(
        self, prompts: list[list[int]], *, n: int, max_tokens: int, sampling: Sampling, seed: int = 0
    ) -> Samples:
        repeated = [prompt for prompt in prompts for _ in range(n)]
        tokens, log_p = self._sample(repeated, max_tokens, sampling, seed)
        chosen = log_p.gather(-1, tokens[..., None])[..., 0]
        return _until_stop(tokens.tolist(), chosen.tolist(), self._stops)

    def next_log_probs(self, prompts: list[list[int]], sampling: Sampling) -> Tensor:
        return self._sample(prompts, 1, sampling, seed=0)[1][:, 0]

    @torch.no_grad()
    def _sample(
        self, prompts: list[list[int]], max_tokens: int, sampling: Sampling, seed: int
    ) -> tuple[Tensor, Tensor]:
        """Tokens (B, T) and the log-probs of every token, (B, T, V)."""
        device = self._lm.device
        ids, mask = left_padded(prompts, device)
        raw = self._config.log_probs == "raw"
        settings = GenerationConfig(
            max_new_tokens=max_tokens,
            pad_token_id=0,
            eos_token_id=self._stops,
            return_dict_in_generate=True,
            output_logits=raw,
            output_scores=not raw,
            **_drawing(sampling),
        )
        with seeded(seed, device):
            generate: Any = self._lm.generate
            out = generate(ids, attention_mask=mask, generation_config=settings)
        tokens = out.sequences[:, ids.shape[1] :]
        return tokens, torch.stack(out.logits if raw else out.scores, 1).float().log_softmax(-1)

    def sync(self, weights: Sequence[tuple[str, Tensor]]) -> None:
        stale = self._config.stale_lm_head
        sent = {name: tensor for name, tensor in weights if not (stale and name == "lm_head.weight")}
        self._lm.load_state_dict(sent, strict=not stale)

    def close(self) -> None: ...


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Engines draw from torch's global generator; this seeds it, and leaves it to everybody else as it was."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def _drawing(sampling: Sampling) -> dict[str, Any]:
    if sampling.temperature == 0:
        return {"do_sample": False, "temperature": None, "top_k": None}
    return {
        "do_sample": True, "temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p
    }  # fmt: skip


def _until_stop(tokens: list[list[int]], log_probs: list[list[float]], stops: list[int]) -> Samples:
    lengths = [next((i + 1 for i, token in enumerate(row) if token in stops), len(row)) for row in tokens]
    return Samples(
        [row[:length] for row, length in zip(tokens, lengths, strict=True)],
        [row[:length] for row, length in zip(log_probs, lengths, strict=True)],
    )


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


def _routes(each: list[Tensor], prompt_mask: Tensor, response_mask: Tensor) -> Tensor:
    """(n_b − 1, layers, k) per row → (B, P + T, layers, k), −1 where no token was fed to the engine."""
    fed = torch.cat([prompt_mask, response_mask], -1)
    last = fed.cumsum(-1) == fed.sum(-1, keepdim=True)
    routes = torch.full((*fed.shape, *each[0].shape[1:]), -1, device=fed.device)
    routes[fed & ~last] = torch.cat(each).to(routes)
    return routes
