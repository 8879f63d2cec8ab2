"""Measure how far training moved a model: both KLs to its reference, exact at each token of sampled answers."""

import itertools
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel

from rlcorr.train.config.rollout import RolloutConfig, Sampling
from rlcorr.train.config.training import TrainConfig
from rlcorr.train.inputs.model_source import resolve_model
from rlcorr.train.inputs.tasks import examples
from rlcorr.train.learner.policy import load_lm, response_states
from rlcorr.train.rollout.collect import encode_example
from rlcorr.train.rollout.engine import to_batch
from rlcorr.train.rollout.transformers_engine import TransformersEngine
from rlcorr.train.session.session import task_of, tokenizer_of
from rlcorr.train.sketches.token_scores import head_log_probs

AT_ONCE = 16
"""Answers that are sampled and compared together. The log-probs of all next tokens are in memory."""


@dataclass(frozen=True)
class Asked:
    """The prompts for both models, as token ids; how long an answer may be, what ends it, and the temperature."""

    prompts: list[list[int]]
    max_tokens: int
    eos_ids: list[int]
    temperature: float


def reference_kl(config: TrainConfig, trained: Path, answers: int) -> dict[str, float]:
    """Return KL(π‖π_ref) over answers of π as `kl`, and KL(π_ref‖π) over answers of π_ref as `reverse_kl`.

    KL(p‖q) is Σ_v p(v) (log p(v) − log q(v)) over the vocabulary, in nats: the mean over the tokens of one answer to
    each of the first held-out prompts, sampled from p at the run's temperature. Both models compute in float32.

    Args:
        config: the run that trained; its reference model is `reference_model`, or the model it started from.
        trained: directory of the trained model.
        answers: number of prompts.
    """
    start = resolve_model(config.reference_model or config.model)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    policy, reference = load_lm(trained, device).eval(), load_lm(start, device).eval()
    task, (tokenizer, ending_ids) = task_of(config), tokenizer_of(start)
    drawn = itertools.islice(examples(task, 0, held_out=True), answers)
    asked = Asked(
        [encode_example(tokenizer, task, example) for example in drawn], task.max_tokens, ending_ids,
        config.rollout.scored_temperature,
    )  # fmt: skip
    return {"kl": _mean_kl(policy, reference, asked), "reverse_kl": _mean_kl(reference, policy, asked)}


@torch.no_grad()
def _mean_kl(p: PreTrainedModel, q: PreTrainedModel, asked: Asked) -> float:
    """Return the mean of KL(p‖q) over the tokens of answers of p."""
    engine = TransformersEngine(RolloutConfig(engine="transformers", dtype="float32"), p, asked.eos_ids)
    sampling, sums, tokens = Sampling(asked.temperature), 0.0, 0
    for first in range(0, len(asked.prompts), AT_ONCE):
        rows = asked.prompts[first : first + AT_ONCE]
        samples = engine.generate(rows, n=1, max_tokens=asked.max_tokens, sampling=sampling, seed=first)
        batch = to_batch(rows, samples, p.device)
        states = (response_states(lm, batch, replay=False) for lm in (p, q))
        log_p, log_q = (head_log_probs(lm, x, asked.temperature) for lm, x in zip((p, q), states, strict=True))
        kl = (log_p.exp() * (log_p - log_q)).sum(-1)
        sums += float(kl[batch.response_mask].double().sum())
        tokens += int(batch.response_mask.sum())
    return sums / tokens
