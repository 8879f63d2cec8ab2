"""The engine for every platform: Hugging Face's `generate` on a copy of the weights."""

import copy
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from rlcorr.train.config.rollout import RolloutConfig, Sampling
from rlcorr.train.learner.ranks import full_tensor
from rlcorr.train.rollout.engine import NextLogProbs, Samples, left_padded, seeded
from rlcorr.train.rollout.sync_proof import fingerprint
from rlcorr.train.rollout.weight_formats import rounded


class TransformersEngine:
    """`generate` of transformers, with the weights in the engine's dtype. It is slow but runs on every platform."""

    def __init__(self, config: RolloutConfig, lm: PreTrainedModel, eos_ids: list[int]) -> None:
        self._lm = copy.deepcopy(lm).to(getattr(torch, config.dtype)).eval()
        self._config = config
        self._eos_ids = eos_ids
        if config.stale_lm_head:  # untie the head, like engines that keep a copy of a tied head
            head: Any = self._lm.get_output_embeddings()
            head.weight = torch.nn.Parameter(head.weight.detach().clone())

    @property
    def description(self) -> dict[str, Any]:
        import transformers

        weights = {} if self._config.weights == "none" else {"weights": self._config.weights}
        return {"name": "transformers", "version": transformers.__version__, "dtype": self._config.dtype, **weights}

    def generate(
        self, prompts: list[list[int]], *, n: int, max_tokens: int, sampling: Sampling, seed: int = 0
    ) -> Samples:
        repeated = [prompt for prompt in prompts for _ in range(n)]
        tokens, log_p = self._sample(repeated, max_tokens, sampling, seed)
        token_log_probs = log_p.gather(-1, tokens[..., None])[..., 0]
        samples = _until_eos(tokens.tolist(), token_log_probs.tolist(), self._eos_ids)
        if not self._config.top_logprobs:
            return samples
        best = log_p.topk(self._config.top_logprobs)
        rows = zip(best.indices.cpu(), best.values.cpu(), samples.response_ids, strict=True)
        return replace(samples, top=[(ids[: len(row)], values[: len(row)]) for ids, values, row in rows])

    def next_log_probs(self, prompts: list[list[int]], sampling: Sampling) -> NextLogProbs:
        return NextLogProbs(self._sample(prompts, 1, sampling, seed=0)[1][:, 0].cpu())

    @torch.no_grad()
    def _sample(
        self, prompts: list[list[int]], max_tokens: int, sampling: Sampling, seed: int
    ) -> tuple[Tensor, Tensor]:
        """Sample tokens (B, T); return them and the log-probs of every token of the vocabulary, (B, T, V)."""
        device = self._lm.device
        ids, mask = left_padded(prompts, device)
        raw = self._config.log_probs == "raw"
        settings = GenerationConfig(
            max_new_tokens=max_tokens,
            pad_token_id=0,
            eos_token_id=self._eos_ids,
            return_dict_in_generate=True,
            output_logits=raw,
            output_scores=not raw,
            **_generate_options(sampling),
        )
        with seeded(seed, device):
            generate: Any = self._lm.generate
            out = generate(ids, attention_mask=mask, generation_config=settings)
        tokens = out.sequences[:, ids.shape[1] :]
        return tokens, torch.stack(out.logits if raw else out.scores, 1).float().log_softmax(-1)

    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        state = self._lm.state_dict()
        missing = set(state)
        for name, tensor in weights:
            if self._config.stale_lm_head and name == "lm_head.weight":
                continue
            target = state[name]
            target.copy_(rounded(name, full_tensor(tensor).to(target.dtype), self._config.weights))
            missing.discard(name)
        assert missing <= {"lm_head.weight"}, f"a sync lacks {missing}"

    def fingerprints(self) -> dict[str, Tensor]:
        state = self._lm.state_dict()
        return {name: fingerprint(tensor) for name, tensor in state.items() if tensor.is_floating_point()}

    def close(self) -> None: ...


def _generate_options(sampling: Sampling) -> dict[str, Any]:
    if sampling.temperature == 0:
        return {"do_sample": False, "temperature": None, "top_k": None}
    return {
        "do_sample": True, "temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p
    }  # fmt: skip


def _until_eos(tokens: list[list[int]], log_probs: list[list[float]], eos_ids: list[int]) -> Samples:
    lengths = [next((i + 1 for i, token in enumerate(row) if token in eos_ids), len(row)) for row in tokens]
    return Samples(
        [row[:length] for row, length in zip(tokens, lengths, strict=True)],
        [row[:length] for row, length in zip(log_probs, lengths, strict=True)],
    )
