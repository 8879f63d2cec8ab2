"""How far training moved a model: both KLs between it and its reference, exact at each token of sampled answers."""

import itertools
from pathlib import Path

import torch
from torch import Tensor
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
from rlcorr.types import TokenBatch

AT_ONCE = 16
"""Answers that are sampled and compared together. The log-probs of all next tokens are in memory."""


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
    return {
        "kl": _mean_kl(config, policy, reference, start, answers),
        "reverse_kl": _mean_kl(config, reference, policy, start, answers),
    }


@torch.no_grad()
def _mean_kl(config: TrainConfig, p: PreTrainedModel, q: PreTrainedModel, model: Path, answers: int) -> float:
    task, (tokenizer, ending_ids) = task_of(config), tokenizer_of(model)
    drawn = itertools.islice(examples(task, 0, held_out=True), answers)
    prompts = [encode_example(tokenizer, task, example) for example in drawn]
    engine = TransformersEngine(RolloutConfig(engine="transformers", dtype="float32"), p, ending_ids)
    sampling, sums, tokens = Sampling(config.rollout.scored_temperature), 0.0, 0
    for first in range(0, len(prompts), AT_ONCE):
        rows = prompts[first : first + AT_ONCE]
        samples = engine.generate(rows, n=1, max_tokens=task.max_tokens, sampling=sampling, seed=first)
        batch = to_batch(rows, samples, p.device)
        log_p, log_q = (next_log_probs(lm, batch, sampling.temperature) for lm in (p, q))
        kl = (log_p.exp() * (log_p - log_q)).sum(-1)
        sums += float(kl[batch.response_mask].double().sum())
        tokens += int(batch.response_mask.sum())
    return sums / tokens


def next_log_probs(lm: PreTrainedModel, batch: TokenBatch, temperature: float) -> Tensor:
    """Return the log-probs of all next tokens at each place of the responses, (B, T, V)."""
    return head_log_probs(lm, response_states(lm, batch, replay=False), temperature)
