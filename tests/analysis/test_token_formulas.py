"""The lines of a token's formulas: by hand, and for every rule and preset the numbers that the library used."""

import math
import re

import oracle
import pytest
import torch
from rules_under_test import RULES_UNDER_TEST
from token_batches import BATCH, GIVEN, TOKENS, rule_of

from rlcorr import PRESETS, CorrectionConfig, RejectionRule, TokenBatch, correct
from rlcorr.analysis.token_formulas import formulas
from rlcorr.analysis.token_story import token_story
from rlcorr.config import LossConfig

NUMBER = r"−?(?:∞|\d+(?:\.\d+)?(?:e−?\d+)?)"


def number(text: str) -> float:
    return float(text.replace("−", "-").replace("∞", "inf"))


def last(text: str) -> float:
    return number(re.findall(rf" = ({NUMBER})", text)[-1])


def all_lines(config: CorrectionConfig, loss: LossConfig | None = None):
    result = correct(BATCH, config)
    for b, t in TOKENS:
        yield b, t, formulas(token_story(BATCH, result, config, b, t, loss), config)


def test_lines_of_every_kind_of_rule() -> None:
    for name in RULES_UNDER_TEST:
        rule = rule_of(name)
        statistics = oracle.statistics(rule, GIVEN)
        for b, t, lines in all_lines(CorrectionConfig(rollout_rs=(rule,))):
            value = oracle.exp(statistics[b][t]) if rule.divergence == "k1" else statistics[b][t]
            # 1 − p loses digits in float32 where p is near 1.
            slack = 5e-3 if rule.divergence in ("binary_kl", "signed_kl", "forward_kl") else 6e-4
            assert lines[2].startswith(f"{name} = "), (name, b, t)
            assert last(lines[2]) == pytest.approx(value, rel=slack, abs=2e-6), (name, b, t)
            rejected = lines[2].endswith(": outside")
            assert rejected == oracle.objects(rule, GIVEN, b, t, statistics[b][t]), (name, b, t)


def test_lines_of_every_preset() -> None:
    for name, preset in PRESETS.items():
        expected = oracle.correct(GIVEN, preset.config)
        for b, t, (ratio, weight, *rules, contribution) in all_lines(preset.config, preset.loss):
            assert last(ratio) == pytest.approx(oracle.ratio(expected.log_ratio[b][t]), rel=6e-4), (name, b, t)
            weight = weight.partition("   (")[0]
            assert last(weight) == pytest.approx(expected.weights[b][t], rel=6e-4), (name, b, t, weight)
            assert [line.partition(" = ")[0] for line in rules] == [rule.name for rule in preset.config.rollout_rs]
            assert contribution.startswith("c = "), (name, b, t)


def weights(level, upper: float = 2.0, lower: float | None = None, **changes) -> CorrectionConfig:
    return CorrectionConfig(
        rollout_is=level, rollout_is_threshold=upper, rollout_is_threshold_lower=lower, **changes
    )  # fmt: skip


def rules(name: str, upper: float = math.inf, lower: float | None = None) -> CorrectionConfig:
    return CorrectionConfig(rollout_rs=(RejectionRule.named(name, upper=upper, lower=lower),))


PAIRS = [-0.51, -1.0], [-0.93, -3.0]  # log-ratios 0.42 and 2: ratios 1.52196 and 7.38906
MASK = weights("token", 5.0, 0.5, rollout_is_mode="mask")


@pytest.mark.parametrize(
    ("config", "column", "advantage", "index", "line"),
    [
        (weights("token"), 0, None, 0, "r = exp(−0.51 − (−0.93)) = 1.522"),
        (weights("token"), 0, None, 1, "w = min(1.522, 2) = 1.522"),
        (weights("token"), 0, 0.5, 2, "c = w·A/N = 1.522·0.5/2 = 0.3805"),
        (weights("token", lower=0.5), 1, None, 1, "w = max(0.5, min(7.389, 2)) = 2"),
        # The product is e^2.42 = 11.2459, the geometric mean e^1.21 = 3.35348.
        (weights("sequence"), 0, None, 1, "w = min(11.25, 2) = 2   (product of r = 11.25)"),
        (weights("geometric", math.inf), 1, None, 1, "w = 3.353   (geometric mean of r = 3.353)"),
        (weights("prefix", 20.0), 0, None, 1, "w = min(1.522, 20) = 1.522   (product of r up to here = 1.522)"),
        (MASK, 0, None, 1, "1.522, allowed 0.5 to 5: inside, so w = 1.522"),
        (MASK, 1, None, 1, "7.389, allowed 0.5 to 5: outside, so w = 0"),
        # Weights 1.52196 and 2 have the mean 1.76098.
        (weights("token", rollout_is_batch_normalize=True), 0, None, 1,
         "w = min(1.522, 2) = 1.522; w/mean of w = 1.522/1.761 = 0.8643"),
        (CorrectionConfig(), 0, None, 1, "w = 1   (no importance weights)"),
        (rules("token_k1_negative", 2.0), 1, 0.5, 2,
         "token_k1_negative = 7.389, allowed at most 2: outside, but the rule skips this token"),
        (rules("token_k1_negative", 2.0), 1, -0.5, 2, "token_k1_negative = 7.389, allowed at most 2: outside"),
        (rules("token_k1_negative", 2.0), 1, -0.5, 3, "c = 0   (rejected)"),
        (rules("seq_max_k1", 100.0, 0.1), 0, None, 2, "seq_max_k1 = 7.389, allowed 0.1 to 100: inside"),
        (rules("token_k1", lower=2.0), 0, None, 2, "token_k1 = 1.522, allowed at least 2: outside"),
        # Bypassing, r = e² lies beyond 1.2: ppo_clip takes the gradient of a token with A > 0, not of one with A < 0.
        (CorrectionConfig(bypass_mode=True), 1, 0.5, 2, "c = 0   (the clip of ppo_clip removes the gradient)"),
        (CorrectionConfig(bypass_mode=True), 1, -2.0, 2, "c = r·A/N = 7.389·(−2)/2 = −7.389"),
    ],
)  # fmt: skip
def test_lines_by_hand(config: CorrectionConfig, column: int, advantage: float | None, index: int, line: str) -> None:
    assert lines_of(*PAIRS, config, column=column, advantage=advantage)[index] == line


def lines_of(
    old: list[float], rollout: list[float], config: CorrectionConfig, *, column: int = 0, advantage: float | None = None
) -> list[str]:
    """Of one token of a batch of one response."""
    pair = {"old_log_probs": torch.tensor([old]), "rollout_log_probs": torch.tensor([rollout])}
    batch = TokenBatch(torch.ones(1, len(old), dtype=torch.bool), **pair)
    if advantage is not None:
        batch = batch.replace(advantages=torch.full_like(batch.rollout_log_probs, advantage))
    return formulas(token_story(batch, correct(batch, config), config, 0, column), config)


def test_a_log_ratio_beyond_the_clamp_and_numbers_that_are_not_finite() -> None:
    """e²⁰ = 485 165 195."""
    assert lines_of([-0.5], [-30.0], weights("token", math.inf)) == [
        "r = exp(−0.5 − (−30)) = exp(20) = 4.852e8", "w = 4.852e8"
    ]  # fmt: skip
    lines = lines_of([-math.inf, -1.0], [-1.0, math.nan], rules("seq_sum_k1", upper=2.0))
    assert lines[0] == "r = exp(−∞ − (−1)) = exp(−20) = 2.061e−9"
    assert lines[2] == "seq_sum_k1 = nan, allowed at most 2: outside"


def test_the_two_parts_of_the_gap() -> None:
    """d = 0.42 = 0.2 of the engine + 0.22 of the age; e^0.2 = 1.2214, e^0.22 = 1.2461."""
    batch = TokenBatch.from_log_probs(torch.tensor([[-0.51]]), torch.tensor([[-0.93]]), torch.ones(1, 1))
    batch = batch.replace(sampled_log_probs=torch.tensor([[-0.73]]))
    config = CorrectionConfig()
    line = formulas(token_story(batch, correct(batch, config), config, 0, 0), config)[0]
    assert line == "r = exp(−0.51 − (−0.93)) = 1.522   (1.221 of the engine · 1.246 of the age)"
