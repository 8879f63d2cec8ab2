"""What a rollout engine is, and the one that every platform has: transformers."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from rlcorr.train.config import RolloutConfig
from rlcorr.types import TokenBatch


@dataclass(frozen=True)
class Samples:
    """Responses in the order of the prompts, n for each; <eos> is part of a response that ends by itself."""

    response_ids: list[list[int]]
    log_probs: list[list[float]]  # of the sampled tokens, under the distribution that was sampled


class RolloutEngine(Protocol):
    """Samples responses with log-probs, and takes new weights."""

    @property
    def description(self) -> dict[str, Any]:
        """Name, version and settings, for the manifest."""
        ...

    def generate(self, prompts: list[list[int]], *, n: int, max_tokens: int, temperature: float) -> Samples:
        """Temperature 0 is greedy."""
        ...

    def sync(self, weights: Sequence[tuple[str, Tensor]]) -> None:
        """Replace every weight."""
        ...


class TransformersEngine:
    """Hugging Face `generate` on a copy of the weights in the engine's dtype. Slow, and the same everywhere."""

    def __init__(self, config: RolloutConfig, lm: PreTrainedModel, seed: int) -> None:
        self._lm = copy.deepcopy(lm).to(getattr(torch, config.dtype)).eval()
        self._seed = seed
        self._dtype = config.dtype

    @property
    def description(self) -> dict[str, Any]:
        import transformers

        return {"name": "transformers", "version": transformers.__version__, "dtype": self._dtype}

    @torch.no_grad()
    def generate(self, prompts: list[list[int]], *, n: int, max_tokens: int, temperature: float) -> Samples:
        ids, mask = left_padded([prompt for prompt in prompts for _ in range(n)], self._lm.device)
        settings = GenerationConfig(
            max_new_tokens=max_tokens,
            do_sample=temperature > 0,
            temperature=temperature or None,
            top_k=0 if temperature > 0 else None,
            pad_token_id=self._lm.config.pad_token_id,
            eos_token_id=self._lm.config.eos_token_id,
            return_dict_in_generate=True,
            output_scores=True,
        )
        self._seed += 1  # generate draws from the global generator; a fork keeps everybody else's numbers
        with torch.random.fork_rng(devices=[self._lm.device] if self._lm.device.type == "cuda" else []):
            torch.manual_seed(self._seed)
            generate: Any = self._lm.generate
            out = generate(ids, attention_mask=mask, generation_config=settings)
        tokens = out.sequences[:, ids.shape[1] :]
        log_p = torch.stack(out.scores, 1).float().log_softmax(-1).gather(-1, tokens[..., None])[..., 0]
        return _until_eos(tokens.tolist(), log_p.tolist(), self._lm.config.eos_token_id)

    def sync(self, weights: Sequence[tuple[str, Tensor]]) -> None:
        self._lm.load_state_dict(dict(weights))


def _until_eos(tokens: list[list[int]], log_probs: list[list[float]], eos: int) -> Samples:
    lengths = [row.index(eos) + 1 if eos in row else len(row) for row in tokens]
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
    return TokenBatch(
        response_mask=response_mask,
        rollout_log_probs=right_padded(samples.log_probs, torch.float32, device)[0],
        prompt_ids=prompt_ids,
        prompt_mask=prompt_mask,
        response_ids=response_ids,
    )
