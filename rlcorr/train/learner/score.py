"""Scores of a sampled batch by the trainer's own models, its advantages, and its correction."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.func import functional_call

from rlcorr.analysis.segments import without_older
from rlcorr.config import CorrectionConfig
from rlcorr.correction import correct
from rlcorr.losses.advantages import gae, group_normalised, leave_one_out, returns_to_go, token_rewards, whiten
from rlcorr.masked import masked_sum
from rlcorr.train.config.learning import AdvantageConfig
from rlcorr.train.config.training import TrainConfig
from rlcorr.train.learner.budget import correct_within_budget
from rlcorr.train.learner.microbatch import lengths_of, plan_microbatches, slice_rows
from rlcorr.train.learner.policy import Policy, forward_options
from rlcorr.train.learner.ranks import Ranks, gather
from rlcorr.types import CorrectionResult, TokenBatch

GAMMA = 1.0
"""Discount factor per token. The reward comes at the end, and is for the whole answer."""
Forward = Callable[[TokenBatch], dict[str, Tensor]]


@torch.no_grad()
def score(
    batch: TokenBatch, forward: nn.Module, reference: Policy | None, config: TrainConfig, ranks: Ranks
) -> TokenBatch:
    """Add the log-probs of π_old and π_ref and the critic's values to a batch.

    Every mode computes π_old, because a run records pairs of π_old and π_rollout.
    """
    options = forward_options(config.rollout)

    def scores(part: TokenBatch) -> dict[str, Tensor]:
        policy = forward(part, **options)
        computed = {
            "old_log_probs": policy.log_probs, "values": policy.values, "old_top_log_probs": policy.top_log_probs
        }  # fmt: skip
        columns = {name: tensor for name, tensor in computed.items() if tensor is not None}
        if reference is not None:
            columns["ref_log_probs"] = reference(part, **options).log_probs
        return columns

    return batch.replace(**over_microbatches(batch, scores, config.optim.microbatch_tokens, ranks))


@torch.no_grad()
def score_sampled(
    batch: TokenBatch, policy: Policy, weights: Sequence[tuple[str, Tensor]], config: TrainConfig, ranks: Ranks
) -> TokenBatch:
    """Add the log-probs of the weights that sampled the batch, in the trainer's arithmetic, to a scored batch.

    Args:
        weights: the tensors of the language model that sampled, under the names that the engine gets.
    """
    old = {f"lm.{name}": tensor.float() for name, tensor in weights}

    def scores(part: TokenBatch) -> dict[str, Tensor]:
        options = forward_options(config.rollout)
        return {"sampled_log_probs": functional_call(policy, old, (part,), options, tie_weights=False).log_probs}

    return batch.replace(**over_microbatches(batch, scores, config.optim.microbatch_tokens, ranks))


@torch.no_grad()
def over_microbatches(batch: TokenBatch, forward: Forward, budget: int, ranks: Ranks) -> dict[str, Tensor]:
    """Return the named tensors (B, T) or (B, T, K) that `forward` computes for all rows.

    Every rank computes its share of the rows and gets the tensors of all rows.
    """
    shares = plan_microbatches(lengths_of(batch), budget, ranks.size)
    computed = [(rows, forward(slice_rows(batch, rows))) for rows in shares[ranks.rank]]
    tensors: dict[str, Tensor] = {}
    for parts in gather(ranks, [(rows, columns) for rows, columns in computed if rows]):
        for rows, columns in parts:
            for name, values in columns.items():
                if name not in tensors:
                    shape = batch.response_mask.shape + values.shape[2:]
                    tensors[name] = torch.zeros(shape, device=batch.response_mask.device)
                tensors[name][rows, : values.shape[1]] = values.to(tensors[name])
    return tensors


def with_advantages(batch: TokenBatch, config: AdvantageConfig, counted: Tensor | None = None) -> TokenBatch:
    """Add advantages, and for GAE also returns. Only rows in `counted` (B,) enter the statistics of their group."""
    mask, rewards = batch.response_mask, batch.rewards
    assert rewards is not None
    per_token = token_rewards(rewards, mask)
    if config.estimator == "gae":
        assert batch.values is not None
        advantages, returns = gae(per_token, batch.values, mask, GAMMA, config.gae_lambda)
        return batch.replace(advantages=advantages, returns=returns)
    if config.estimator == "reinforce_pp":
        return batch.replace(advantages=returns_to_go(per_token, mask, GAMMA))
    assert batch.group_ids is not None
    rewards = masked_sum(per_token, mask, -1)
    if config.estimator == "grpo":
        per_sequence = group_normalised(rewards, batch.group_ids, counted, by_std=config.norm_by_std)
    else:
        per_sequence = leave_one_out(rewards, batch.group_ids, counted)
    return batch.replace(advantages=torch.where(mask, per_sequence[:, None], 0))


def corrected(
    batch: TokenBatch, config: TrainConfig, step: int
) -> tuple[TokenBatch, CorrectionResult, CorrectionConfig]:
    """Return the batch with its advantages, the result of its correction, and the correction that was used.

    A rule that depends on the sign of an advantage uses the advantages before rejection. Afterwards, sequences without
    any kept token are left out of the mean and deviation of their group.
    """
    batch, correction = with_advantages(batch, config.advantage), config.correction
    if config.budget.rule:  # set by arms of the study only
        result, correction = correct_within_budget(batch, config, step)
    else:
        result = correct(batch, correction)
    if config.rollout.max_lag is not None:
        young = without_older(batch, step, config.rollout.max_lag).response_mask
        result = replace(result, keep_mask=result.keep_mask & young)
    kept = result.keep_mask.any(-1)
    if config.advantage.grouped and not bool(kept.all()):
        batch = with_advantages(batch, config.advantage, kept)
    return batch, result, correction


def whitened(batch: TokenBatch, result: CorrectionResult, config: AdvantageConfig) -> TokenBatch:
    """Normalise advantages to zero mean and unit variance over the kept tokens, unless the estimator has groups."""
    if config.grouped:
        return batch
    assert batch.advantages is not None
    return batch.replace(advantages=whiten(batch.advantages, result.keep_mask))
