"""Measure the mismatch between engine and trainer on the same weights, before the first step, and name its cause."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from rlcorr.analysis.log_prob_pairs import tokens_of
from rlcorr.analysis.published import SPREAD, Format, rounding
from rlcorr.analysis.triage import ONE_SIDED, top_p_mass
from rlcorr.masked import masked_mean
from rlcorr.ratios import k3, log_ratio
from rlcorr.train.config.learning import Precision
from rlcorr.train.config.rollout import RolloutConfig
from rlcorr.train.learner.policy import Policy, first_names
from rlcorr.train.rollout.engine import RolloutEngine, to_batch
from rlcorr.train.rollout.sync_proof import SYNCED_K3, SyncProof
from rlcorr.types import TokenBatch


@dataclass(frozen=True)
class Probe:
    """Result of `probe`. d = log π_trainer − log π_engine on tokens that the engine sampled."""

    tokens: int
    abs_log_ratio: float  # mean |d|
    k3: float  # mean of e^d − 1 − d
    left_behind: list[str]  # tensors that stayed old in the engine after a sync (`prove_sync`)
    round_trip: float  # share of the responses whose text is tokenized to the same ids
    pattern: str  # one of the table in `probe`
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
    proof: SyncProof,
) -> Probe:
    """Sample and score as the run will, and decide which known pattern the difference d fits. The first that fits wins:

    stale tensor   the engine does not take a tensor from a sync; this does not show in d while the weights are fresh
    temperature    d is the change of the trainer's log-probs at another temperature: the engine's, or 1
    routing        d is the change of the trainer's log-probs with the engine's experts
    top-p mass     π_trainer ≤ π_engine on nearly every token: the engine redistributes the mass that it cut off
    precision      none of these, and k3 is not larger than rounding in these formats was measured to make it
    tokenizer      the text of a response is not tokenized to the same ids
    unexplained    something else: another prompt, other weights, a fault in a kernel
    """
    sampled = engine.generate(prompts, n=1, max_tokens=max_tokens, sampling=config.sampling, seed=0)
    batch = to_batch(prompts, sampled, next(policy.parameters()).device)
    d, mask = difference(policy, batch, config), batch.response_mask
    same_ids = round_trip(tokenizer, sampled.response_ids)
    pattern, sentence = pattern_of(policy, config, batch, d, proof, same_ids)
    return Probe(
        tokens=int(mask.sum()),
        abs_log_ratio=float(masked_mean(d.abs(), mask)),
        k3=float(masked_mean(k3(d), mask)),
        left_behind=proof.left_behind,
        round_trip=same_ids,
        pattern=pattern,
        sentence=sentence,
    )


def pattern_of(
    policy: Policy, config: RolloutConfig, batch: TokenBatch, d: Tensor, proof: SyncProof, same_ids: float
) -> tuple[str, str]:
    """Return the first pattern that fits, and a sentence about it."""
    scored, mask = config.scored_temperature, batch.response_mask
    if proof.left_behind:
        stale = f"a sync leaves {first_names(proof.left_behind)} behind in the engine"
        return "stale tensor", f"{stale}; the gap will grow with every step."
    for other in sorted({1.0, config.temperature} - {scored}):
        d_other = difference(policy, batch, replace(config, trainer_temperature=other))
        if explains(d, d_other, mask):
            return "temperature", f"at {other:g} the trainer agrees ({k3_of(d_other, mask)}); it scores at {scored:g}."
    if batch.routed_experts is not None and not config.router_replay:
        d_other = difference(policy, batch, replace(config, router_replay=True))
        if explains(d, d_other, mask):
            agrees = f"with the engine's experts the trainer agrees better ({k3_of(d_other, mask)})"
            return "routing", f"{agrees}: see --rollout.router-replay."
    if cuts_mass(batch, d):
        return "top-p mass", "the engine's probabilities are larger: it redistributes what top_p or top_k cut off."
    if (sentence := rounding_sentence(policy, config, batch, d)) is not None:
        return "precision", sentence
    if same_ids < 1:
        return "tokenizer", f"only {same_ids:.0%} of the responses have a text that is tokenized to the same ids."
    return "unexplained", "no known pattern fits: compare the tokens, the prompts and the weights."


def explains(d: Tensor, d_other: Tensor, mask: Tensor) -> bool:
    """Check whether another way to score, with the difference `d_other`, explains the difference d.

    d is regressed on d − d_other by least squares. The slope is 1 if the engine scores in the other way, and 0 if it
    does not. Rounding is the noise of the regression. The slope must be above 1/2 by four standard errors.
    """
    target, change = d[mask].double(), (d - d_other)[mask].double()
    square = change.square().sum()
    if not bool(target.isfinite().all()) or not square > 0:
        return False
    slope = (target * change).sum() / square
    error = ((target - slope * change).square().mean() / square).sqrt()
    return bool(slope - 0.5 > 4 * error)


def cuts_mass(batch: TokenBatch, d: Tensor) -> bool:
    """Check whether the engine's probabilities are larger on nearly every token, as they are after top-p or top-k."""
    if not bool(d[batch.response_mask].isfinite().all()):
        return False
    symptom = top_p_mass(tokens_of(batch.replace(old_log_probs=batch.rollout_log_probs + d)))
    return symptom is not None and symptom.strength >= ONE_SIDED


def format_of(config: RolloutConfig, precision: Precision) -> Format:
    """Return the coarsest number format of engine and trainer: the one with the largest measured k3."""
    formats: list[Format] = [config.dtype, precision]
    if config.kv_cache_dtype != "auto":
        formats.append("fp8_kv" if config.kv_cache_dtype == "fp8" else "e5m2_kv")
    if config.quantization == "fp8" or config.weights == "fp8_e4m3":
        formats.append("fp8_weights")
    if config.weights in ("int8", "int4"):
        formats.append("int8_weights" if config.weights == "int8" else "int4_weights")
    return max(formats, key=lambda name: rounding(name)[1])


def rounding_sentence(policy: Policy, config: RolloutConfig, batch: TokenBatch, d: Tensor) -> str | None:
    """Return a sentence that compares k3 with measured gaps of the same number format; None if it is larger than them.

    If the trainer does not compute in float32, the sentence adds the k3 that it would have in float32. This separates
    the engine's rounding from the trainer's.
    """
    coarsest, mask = format_of(config, policy.precision), batch.response_mask
    smallest, largest = rounding(coarsest)
    largest = max(largest, SYNCED_K3 / SPREAD) if coarsest == "float32" else largest
    if not float(masked_mean(k3(d), mask)) <= SPREAD * largest:
        return None
    measured = f"rounding in {coarsest} has been measured to make a k3 of {smallest:.0e} to {largest:.0e}"
    if policy.precision == "float32":
        return f"{measured}."
    d_float32 = difference(policy.in_float32(), batch, config)
    return f"{measured}; with the trainer in float32 it would be {k3_of(d_float32, mask)}."


def k3_of(d: Tensor, mask: Tensor) -> str:
    return f"k3 {float(masked_mean(k3(d), mask)):.1e}"


def difference(policy: Policy, batch: TokenBatch, config: RolloutConfig) -> Tensor:
    """Return d (B, T) as the run computes it, 0 on padding."""
    scores = policy(batch, config.scored_temperature, replay=config.router_replay, support=config.support_replay)
    return log_ratio(scores.log_probs, batch.rollout_log_probs, batch.response_mask)


def round_trip(tokenizer: PreTrainedTokenizerFast, responses: list[list[int]]) -> float:
    """Return the share of the responses whose text is tokenized to the same ids."""
    texts = [tokenizer.decode(ids) for ids in responses]
    encoded = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    return sum(ids == again for ids, again in zip(responses, encoded, strict=True)) / max(len(responses), 1)
