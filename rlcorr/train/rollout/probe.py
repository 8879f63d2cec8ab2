"""How far the engine is from the trainer before the first step, on the same weights, and what that looks like."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from rlcorr.analysis.log_prob_pairs import one_sided
from rlcorr.analysis.symptoms import Pattern
from rlcorr.analysis.triage import ONE_SIDED
from rlcorr.masked import masked_mean
from rlcorr.ratios import k3, log_ratio
from rlcorr.train.config.rollout import RolloutConfig
from rlcorr.train.learner.policy import Policy
from rlcorr.train.rollout.engine import RolloutEngine, to_batch
from rlcorr.train.rollout.sync_proof import rounding_bound
from rlcorr.types import TokenBatch

ProbedPattern = Pattern | Literal["routing", "tokenizer", "unexplained"]
"""What `triage` tells from pairs alone, and what the trainer can tell besides, because it can score once more."""


@dataclass(frozen=True)
class Probe:
    """What `probe` measured. d = log π_trainer − log π_engine on tokens that the engine sampled."""

    tokens: int
    abs_log_ratio: float  # mean |d|
    k3: float  # mean of e^d − 1 − d
    after_sync_k3: float  # the same after every tensor was perturbed and synced (`prove_sync`)
    round_trip: float  # share of the responses whose ids come back from their text
    pattern: ProbedPattern
    sentence: str


@torch.no_grad()
def probe(
    engine: RolloutEngine,
    policy: Policy,
    config: RolloutConfig,
    tokenizer: PreTrainedTokenizerFast,
    prompts: list[list[int]],
    *,
    max_tokens: int,
    after_sync_k3: float,
) -> Probe:
    """Sample as the run will, score as the run will, and say which known pattern the difference fits.

    stale tensor   a tensor that the engine does not take from a sync; on fresh weights it does not show
    precision      no more than rounding in the number formats of the engine and of the trainer explains
    temperature    rounding is left once the trainer scores at another temperature: the engine's, or 1
    routing        rounding is left once the trainer takes the engine's experts
    top-p mass     π_trainer ≤ π_engine on nearly every token: the engine shares out the mass that it cut off
    tokenizer      responses do not come back from their own text as the same ids
    unexplained    something else: another prompt, other weights, a fault in a kernel
    """
    sampled = engine.generate(prompts, n=1, max_tokens=max_tokens, sampling=config.sampling, seed=0)
    batch = to_batch(prompts, sampled, next(policy.parameters()).device)
    d = difference(policy, batch, config.scored_temperature, config.router_replay)
    same_ids = round_trip(tokenizer, sampled.response_ids)
    pattern, sentence = pattern_of(policy, config, batch, d, after_sync_k3, same_ids)
    mask = batch.response_mask
    mean_d, size = float(masked_mean(d.abs(), mask)), float(masked_mean(k3(d), mask))
    return Probe(int(mask.sum()), mean_d, size, after_sync_k3, same_ids, pattern, sentence)


def pattern_of(
    policy: Policy, config: RolloutConfig, batch: TokenBatch, d: Tensor, after_sync_k3: float, same_ids: float
) -> tuple[ProbedPattern, str]:
    """The first pattern that fits, and a sentence about it."""
    bound, scored, mask = rounding_bound(config, policy.precision), config.scored_temperature, batch.response_mask

    def k3_with(temperature: float, replay: bool) -> float:
        return mean_k3(policy, batch, temperature, replay)

    if not after_sync_k3 <= bound:
        return "stale tensor", "a sync leaves a tensor behind in the engine; the gap will grow with every step."
    if float(masked_mean(k3(d), mask)) <= bound:
        return "precision", rounding_sentence(policy, config, batch, bound)
    for other in sorted({1.0, config.temperature} - {scored}):
        if (k3_there := k3_with(other, config.router_replay)) <= bound:
            return "temperature", f"at {other:g} the trainer agrees (k3 {k3_there:.1e}); it scores at {scored:g}."
    if batch.routed_experts is not None and k3_with(scored, True) <= bound:
        return "routing", "with the engine's experts the trainer agrees: see --rollout.router-replay."
    if one_sided(d[mask]) >= ONE_SIDED:
        return "top-p mass", "the engine's probabilities are larger: it shares out what top_p or top_k cut off."
    if same_ids < 1:
        return "tokenizer", f"only {same_ids:.0%} of the responses come back from their text as the same ids."
    return "unexplained", "no known pattern fits: compare the tokens, the prompts and the weights."


def rounding_sentence(policy: Policy, config: RolloutConfig, batch: TokenBatch, bound: float) -> str:
    """Whose rounding it is: a trainer that rounds as well is held against itself in float32."""
    if policy.precision == "float32":
        return f"rounding in the engine's number format explains it (up to {bound:.0e})."
    alone = mean_k3(policy.in_float32(), batch, config.scored_temperature, config.router_replay)
    return (
        f"rounding in the engine's {config.dtype} and the trainer's {policy.precision} explains it (up to "
        f"{bound:.0e}); with the trainer in float32 k3 would be {alone:.1e}."
    )


def mean_k3(policy: Policy, batch: TokenBatch, temperature: float, replay: bool) -> float:
    return float(masked_mean(k3(difference(policy, batch, temperature, replay)), batch.response_mask))


def difference(policy: Policy, batch: TokenBatch, temperature: float, replay: bool) -> Tensor:
    """d (B, T), 0 on padding."""
    scores = policy(batch, temperature, replay=replay)
    return log_ratio(scores.log_probs, batch.rollout_log_probs, batch.response_mask)


def round_trip(tokenizer: PreTrainedTokenizerFast, responses: list[list[int]]) -> float:
    """Share of the responses whose ids come back from their text."""
    texts = [tokenizer.decode(ids) for ids in responses]
    back = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    return sum(ids == again for ids, again in zip(responses, back, strict=True)) / max(len(responses), 1)
