"""Rejection by budget in the trainer: bounds that follow the batch, and rejection by chance."""

import re

import pytest
import torch

from rlcorr.config import CorrectionConfig
from rlcorr.correction import correct
from rlcorr.errors import UsageError
from rlcorr.train.config.learning import AdvantageConfig, BudgetConfig
from rlcorr.train.config.training import TrainConfig
from rlcorr.train.learner.budget import reject_at_random
from rlcorr.train.learner.score import corrected
from rlcorr.types import TokenBatch

ROWS, COLUMNS = 200, 5


def random_batch(seed: int = 0) -> TokenBatch:
    """200 sequences of one to five tokens, whose log-ratios have a standard deviation of 0.3; rewards of ±0.5."""
    chance = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, COLUMNS + 1, (ROWS, 1), generator=chance)
    mask = torch.arange(COLUMNS) < lengths
    rollout = torch.where(mask, -torch.rand(mask.shape, generator=chance), 0)
    old = torch.where(mask, rollout + 0.3 * torch.randn(mask.shape, generator=chance), 0)
    return TokenBatch(mask, rollout, old_log_probs=old, rewards=torch.arange(ROWS) % 2 - 0.5)


def config_of(rule: str, keep: float, seed: int = 0) -> TrainConfig:
    plain = AdvantageConfig(estimator="reinforce_pp")
    return TrainConfig(preset="disabled", budget=BudgetConfig(rule, keep), advantage=plain, seed=seed)


def by_budget(rule: str, keep: float, step: int = 1, seed: int = 0) -> tuple[torch.Tensor, CorrectionConfig]:
    batch, result, correction = corrected(random_batch(), config_of(rule, keep, seed), step)
    assert torch.equal(result.keep_mask & ~batch.response_mask, torch.zeros_like(result.keep_mask))
    return result.keep_mask, correction


def test_a_rule_for_negative_advantages_has_a_lower_bound_alone() -> None:
    """Odd rows have a positive advantage, and stay; of the others those go whose mean log-ratio is lowest."""
    batch = random_batch()
    _, result, correction = corrected(batch, config_of("seq_mean_k1_negative", 0.8), 1)
    assert bool(result.keep_mask[1::2].any(-1).all())
    assert batch.old_log_probs is not None
    mask = batch.response_mask
    means = ((batch.old_log_probs - batch.rollout_log_probs) * mask).sum(-1)[::2] / mask.sum(-1)[::2]
    kept = result.keep_mask[::2].any(-1)
    assert means[kept].min() > means[~kept].max()
    assert correction.rollout_rs[0].upper == float("inf")
    assert 0.8 <= float(result.keep_mask.sum() / mask.sum()) < 0.82


@pytest.mark.parametrize("rule", ["random_token", "random_negative"])
def test_chance_follows_seed_and_step_alone(rule: str) -> None:
    keep, _ = by_budget(rule, 0.8, step=3)
    again, _ = by_budget(rule, 0.8, step=3)
    other_step, _ = by_budget(rule, 0.8, step=4)
    other_seed, _ = by_budget(rule, 0.8, step=3, seed=1)
    assert torch.equal(keep, again)
    assert not torch.equal(keep, other_step)
    assert not torch.equal(keep, other_seed)


def test_how_much_chance_keeps() -> None:
    """Single tokens: ⌈0.3 n⌉ of n. Whole sequences: the first of a random order until they have 0.3 n, so at most four
    tokens more."""
    batch = random_batch()
    mask = batch.response_mask
    tokens = int(mask.sum())
    result = correct(batch, CorrectionConfig())
    chance = torch.Generator().manual_seed(0)
    single = reject_at_random(result, batch, BudgetConfig("random_token", 0.3), chance).keep_mask
    assert int(single.sum()) == -(-3 * tokens // 10)
    assert bool((single <= mask).all())
    assert bool((single.any(-1) & (single != mask).any(-1)).any())  # parts of sequences
    whole = reject_at_random(result, batch, BudgetConfig("random_sequence", 0.3), chance).keep_mask
    assert torch.equal(whole, mask & whole.any(-1, keepdim=True))
    assert 0.3 * tokens <= int(whole.sum()) < 0.3 * tokens + 5


def test_chance_among_negative_advantages() -> None:
    """Odd rows have A > 0, and stay whole. Of the even rows whole ones go, until one more would leave too little; where
    all of them would have to go and more, they all go and nothing else."""
    batch = random_batch()
    mask = batch.response_mask
    advantages = torch.where(torch.arange(ROWS)[:, None] % 2 == 1, 1.0, -1.0).expand(mask.shape)
    batch, tokens = batch.replace(advantages=advantages), int(mask.sum())
    result = correct(batch, CorrectionConfig())
    chance = torch.Generator().manual_seed(0)
    keep = reject_at_random(result, batch, BudgetConfig("random_negative", 0.8), chance).keep_mask
    assert torch.equal(keep[1::2], mask[1::2])
    assert torch.equal(keep, mask & keep.any(-1, keepdim=True))
    assert 0.8 * tokens <= int(keep.sum()) < 0.8 * tokens + 5
    keep = reject_at_random(result, batch, BudgetConfig("random_negative", 0.1), chance).keep_mask
    assert torch.equal(keep, mask & (advantages > 0))


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        ({"budget": {"rule": "token_k9"}}, "unknown budget.rule 'token_k9'"),
        ({"budget": {"rule": "token_k1", "keep": 0.0}}, "budget.keep must be above 0 and at most 1; got 0.0."),
        ({"budget": {"rule": "token_k1"}, "preset": "skyrl_geo_mask"}, "by itself; got preset skyrl_geo_mask"),
        ({"budget": {"rule": "token_k1"}, "preset": "bypass_ppo_clip"}, "goes with a decoupled preset"),
    ],
)  # fmt: skip
def test_what_does_not_fit(options: dict, refusal: str) -> None:
    budget = options.pop("budget")
    with pytest.raises(UsageError, match=re.escape(refusal)):
        TrainConfig(budget=BudgetConfig(**budget), **options)
