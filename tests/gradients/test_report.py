"""Against the toy world, where scores are short enough to be taken whole: K is the number of parameters, the sketch is
the gradient itself, and every expectation is known exactly."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
import toy_sketches
from torch import Tensor
from toy_sketches import batch_of

from rlcorr.config import Aggregation, CorrectionConfig, LossConfig
from rlcorr.correction import correct
from rlcorr.errors import UsageError
from rlcorr.gradients import contributions, toy
from rlcorr.gradients import report as gradients
from rlcorr.gradients.bootstrap import mean_gradients
from rlcorr.gradients.report import decompose
from rlcorr.gradients.sketch import Reference, SampledSketch
from rlcorr.losses.objective import policy_loss
from rlcorr.presets import PRESETS, RANKED
from rlcorr.rules import RejectionRule
from rlcorr.types import TokenBatch

Sampled = tuple[TokenBatch, SampledSketch]

WORLD = toy.world(4, 4)
OLD = toy.random_policy(WORLD, 0, 0.7)
ROLLOUT = OLD + toy.random_policy(WORLD, 1, 0.35)
POLICIES = toy.Policies(ROLLOUT, OLD, OLD)
REWARDS = torch.randn(len(WORLD.tokens), generator=torch.Generator().manual_seed(2), dtype=torch.float64)
TOY = toy.Toy(WORLD, POLICIES, REWARDS)
SCORES = toy_sketches.node_scores(TOY)
ROUNDING = 1e-6
"""Of float32. What is compared with itself has an interval of this width."""
MODES: list[Aggregation] = ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]


def drawn(policy: Tensor, count: int, seed: int) -> Tensor:
    """Numbers of sampled responses."""
    return toy_sketches.drawn(TOY, policy, count, torch.Generator().manual_seed(seed))


def sketch_of(rows: Tensor, reference: Reference | None = None) -> SampledSketch:
    return SampledSketch(SCORES[rows][WORLD.mask[rows]].float(), reference)


def reference_of(count: int) -> Reference:
    return toy_sketches.sampled_reference(TOY, SCORES, count, torch.Generator().manual_seed(9), blocks=64)


def by_autograd(batch: TokenBatch, rows: Tensor, correction: CorrectionConfig, loss: LossConfig) -> Tensor:
    """−∇ of the trainer's own loss in the table of logits."""
    leaf = OLD.clone().requires_grad_()
    log_p = toy.log_probs(WORLD, leaf)[rows].float()
    value, _ = policy_loss(log_p, batch, correct(batch, correction), correction, loss)
    return -torch.autograd.grad(value, leaf)[0].flatten().float()


EACH_ONCE = torch.ones(1, 200)


def test_the_gradient_of_every_preset_is_the_trainers() -> None:
    rows = drawn(ROLLOUT, 200, seed=3)
    batch, sketch = batch_of(TOY, rows), sketch_of(rows)
    for name in RANKED:  # the others need top-k lists
        preset = PRESETS[name]
        loss = replace(preset.loss, use_rollout_kl_loss=False)  # the report is of the policy loss alone
        expected = by_autograd(batch, rows, preset.config, loss)
        got = mean_gradients(contributions.contributions(batch, sketch, [preset.config], preset.loss)[0], EACH_ONCE)[0]
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize(("denominator", "mode"), [("fixed", MODES[0]), *(("kept", mode) for mode in MODES)])
def test_the_gradient_of_every_aggregation_is_the_trainers(mode: Aggregation, denominator: str) -> None:
    rows, loss = drawn(ROLLOUT, 200, seed=4), LossConfig(loss_agg_mode=mode)
    rule = RejectionRule.named("seq_mean_k1", lower=0.9, upper=1.1)
    settings = CorrectionConfig(rollout_is="sequence", rollout_rs=(rule,), rollout_is_batch_normalize=True)
    settings = replace(settings, denominator=denominator)
    batch = batch_of(TOY, rows)
    parts = contributions.contributions(batch, sketch_of(rows), [settings], loss)[0]
    got = mean_gradients(parts, EACH_ONCE)[0]
    torch.testing.assert_close(got, by_autograd(batch, rows, settings, loss), rtol=1e-4, atol=1e-6)


CASES = {
    "nothing": CorrectionConfig(),
    "token weights": CorrectionConfig(rollout_is="token"),
    "sequence weights": CorrectionConfig(rollout_is="sequence", rollout_is_threshold=math.inf),
    "truncated": CorrectionConfig(rollout_is="sequence", rollout_is_threshold=0.8),
    "rejected": CorrectionConfig(rollout_rs=(RejectionRule.named("seq_mean_k1", lower=0.9, upper=1.1),)),
}


@pytest.fixture(scope="module")
def sampled() -> Sampled:
    rows = drawn(ROLLOUT, 8000, seed=5)
    return batch_of(TOY, rows), sketch_of(rows, reference_of(64000))


@pytest.mark.parametrize("mode", MODES[:2])
@pytest.mark.parametrize("name", CASES)
def test_the_report_covers_the_exact_numbers(name: str, mode: Aggregation, sampled: Sampled) -> None:
    """Each interval has a margin of half its width: twenty cells of 95 % would miss once."""
    loss = LossConfig(loss_agg_mode=mode)
    truth = toy.gradient_truth(WORLD, POLICIES, REWARDS, CASES[name], loss)
    got = gradients.report(*sampled, CASES[name], loss)
    exact = {
        "length": float(truth.expectation.norm()), "reference_length": float(truth.reference.norm()),
        "bias": truth.bias, "relative_bias": truth.relative_bias, "cosine": truth.cosine, "scale": truth.scale,
    }  # fmt: skip
    for key, value in exact.items():
        interval = getattr(got, key)
        margin = (interval.high - interval.low) / 2 + ROUNDING
        assert interval.low - margin <= value <= interval.high + margin, (key, value, interval)
    assert got.variance.value == pytest.approx(truth.variance, rel=0.1)
    for size, noise, share in zip(got.batch_sizes, got.noise, got.progress, strict=True):
        assert noise.value == pytest.approx((got.variance.value / size) ** 0.5 / got.reference_length.value, rel=1e-4)
        margin = (share.high - share.low) / 2
        assert share.low - margin <= truth.progress(size) <= share.high + margin, (size, share)


def expectation(correction: CorrectionConfig, loss: LossConfig) -> Tensor:
    return toy.gradient_truth(WORLD, POLICIES, REWARDS, correction, loss).expectation


RULE = RejectionRule.named("seq_mean_k1", lower=0.9, upper=1.1)
STAGES = {
    "start": CorrectionConfig(rollout_is="sequence", rollout_is_threshold=math.inf),
    "level": CorrectionConfig(rollout_is="token", rollout_is_threshold=math.inf),
    "truncation": CorrectionConfig(rollout_is="token", rollout_is_threshold=0.9),
    "rejection": CorrectionConfig(rollout_is="token", rollout_is_threshold=0.9, rollout_rs=(RULE,)),
    "denominator": CorrectionConfig(
        rollout_is="token", rollout_is_threshold=0.9, rollout_rs=(RULE,), denominator="kept"
    ),
}


@pytest.mark.parametrize("mode", MODES[1:3])
def test_the_parts_of_a_bias(mode: Aggregation, sampled: Sampled) -> None:
    """Four differences of exact expectations, in the units of the exact reference."""
    loss = LossConfig(loss_agg_mode=mode)
    got = decompose(*sampled, STAGES["denominator"], loss)
    unit = float(toy.gradient_truth(WORLD, POLICIES, REWARDS, STAGES["start"], loss).reference.norm())
    for (_, before), (name, after) in itertools.pairwise(STAGES.items()):
        exact = float((expectation(after, loss) - expectation(before, loss)).norm()) / unit
        interval = getattr(got, name)
        margin = (interval.high - interval.low) / 2
        assert exact > 0.01 or mode != "token-mean"
        assert interval.low - margin <= exact <= interval.high + margin, (name, exact, interval)


def test_without_a_reference_the_target_is_the_gradient_of_exact_weights(sampled: Sampled) -> None:
    """Exact weights then have no bias at all, and the other numbers agree with those of 64,000 on-policy answers within
    the two intervals."""
    batch, sketch = sampled
    alone = replace(sketch, reference=None)
    for name in ("nothing", "truncated"):
        correction = CASES[name]
        got, beside = gradients.report(batch, alone, correction), gradients.report(batch, sketch, correction)
        assert got.variance.value == pytest.approx(beside.variance.value)
        for number in ("relative_bias", "cosine", "scale"):
            one, other = getattr(got, number), getattr(beside, number)
            assert one.low <= other.high + 1e-6, (name, number)
            assert other.low <= one.high + 1e-6, (name, number)
    assert gradients.report(batch, alone, CASES["sequence weights"]).bias.high == 0


def test_few_effective_answers_are_compared_with_the_reference_alone() -> None:
    """Six answers on one direction, one of which has nearly all of the weight, and four blocks: by hand. The gradients
    2, 4, 0, 2, 4, 0 have mean 2 and variance of the mean 16/5/6; those of the blocks, 1, 3, 1, 3, have 2 and 4/3/4."""
    mask = torch.ones(6, 1, dtype=torch.bool)
    batch = TokenBatch(
        response_mask=mask, rollout_log_probs=torch.zeros(6, 1), advantages=torch.ones(6, 1),
        old_log_probs=torch.tensor([3.0, -2.0, -2.0, -2.0, -2.0, -2.0])[:, None],
    )  # fmt: skip
    blocks = torch.tensor([1.0, 3.0, 1.0, 3.0])[:, None]
    reference = Reference(blocks, blocks, torch.ones(4), torch.ones(4))
    for shift in (0.0, 3.0):
        scores = torch.tensor([2.0, 4.0, 0.0, 2.0, 4.0, 0.0])[:, None] + shift
        got = gradients.report(batch, SampledSketch(scores, reference), CorrectionConfig(), replicates=20)
        assert got.bias.value == pytest.approx(max(shift**2 - 16 / 30 - 1 / 3, 0) ** 0.5)
        assert got.reference_length.value == pytest.approx((4 - 1 / 3) ** 0.5)
        assert got.scale.value == pytest.approx(2 * (2 + shift) / (4 - 1 / 3))


def test_what_cannot_be_reported(sampled: Sampled) -> None:
    batch, sketch = sampled
    with pytest.raises(UsageError, match="kl_cov compares the tokens of a batch"):
        gradients.report(batch, sketch, CorrectionConfig(loss_type="kl_cov"))
    with pytest.raises(UsageError, match="needs old_log_probs and advantages"):
        gradients.report(batch.replace(advantages=None), sketch, CorrectionConfig())
    with pytest.raises(UsageError, match="it is of another step"):
        gradients.report(batch.rows(slice(0, 10)), sketch, CorrectionConfig())
