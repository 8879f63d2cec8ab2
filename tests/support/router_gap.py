"""How far the trainer's experts are from the engine's, with and without replay."""

from dataclasses import dataclass

import torch

from rlcorr.masked import masked_mean
from rlcorr.ratios import k3, log_ratio
from rlcorr.train.config.rollout import Sampling
from rlcorr.train.learner.policy import Policy
from rlcorr.train.learner.router_replay import replayed
from rlcorr.train.rollout.engine import RolloutEngine, to_batch
from rlcorr.types import TokenBatch


@dataclass(frozen=True)
class Gap:
    """d = log π_trainer − log π_engine on the tokens that the engine sampled."""

    k3: float  # mean of e^d − 1 − d
    abs_log_ratio: float  # mean |d|
    other_set: float  # share of all (token, layer) where the trainer's own choice differs from the engine's


@torch.no_grad()
def measure(engine: RolloutEngine, policy: Policy, prompts: list[list[int]], max_tokens: int) -> tuple[Gap, Gap]:
    """Without and with replay, on the same samples of an engine whose router is read."""
    batch = to_batch(
        prompts, engine.generate(prompts, n=1, max_tokens=max_tokens, sampling=Sampling()), torch.device("cpu")
    )
    return _gap(policy, batch, replay=False), _gap(policy, batch, replay=True)


def _gap(policy: Policy, batch: TokenBatch, *, replay: bool) -> Gap:
    mask = batch.response_mask
    d = log_ratio(policy(batch, 1.0, replay=replay).log_probs, batch.rollout_log_probs, mask)
    return Gap(
        k3=float(masked_mean(k3(d), mask)),
        abs_log_ratio=float(masked_mean(d.abs(), mask)),
        other_set=float(_other_sets(policy, batch, replay=replay).float().mean()),
    )


def _other_sets(policy: Policy, batch: TokenBatch, *, replay: bool) -> torch.Tensor:
    """(tokens fed to the engine, layers): the largest router logits are others than the engine's."""
    assert batch.prompt_ids is not None
    assert batch.prompt_mask is not None
    assert batch.response_ids is not None
    assert batch.routed_experts is not None
    ids = torch.cat([batch.prompt_ids, batch.response_ids], -1)
    attention = torch.cat([batch.prompt_mask, batch.response_mask], -1)
    positions = (attention.long().cumsum(-1) - 1).clamp(min=0)
    with replayed(policy.lm, batch.routed_experts if replay else None, attention):
        out = policy.lm(ids, attention_mask=attention, position_ids=positions, output_router_logits=True)
    k = batch.routed_experts.shape[-1]
    trainers = torch.stack([layer.topk(k).indices for layer in out.router_logits], 1)  # (B · S, layers, k)
    engines = batch.routed_experts.flatten(0, 1)
    fed = engines[:, 0, 0] >= 0
    return (trainers[fed].sort(-1).values != engines[fed].sort(-1).values).any(-1)
