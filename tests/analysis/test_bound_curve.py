"""A curve over a bound: hand-computed numbers, and what `correct` gives at each threshold, summed token by token."""

import math

import pytest
import torch
from ratio_batches import of_log_ratios, of_ratios

from rlcorr import PRESETS, CorrectionConfig, RejectionRule, TokenBatch, correct, evaluate
from rlcorr.analysis.bound_curve import bound_curve
from rlcorr.bounds import BoundId, at_threshold
from rlcorr.errors import UsageError
from rlcorr.measuring.metric_definitions import PREFIX

LOG2 = math.log(2)
TOKEN, MASK = CorrectionConfig(rollout_is="token"), CorrectionConfig(rollout_is="token", rollout_is_mode="mask")
TIGHT_TO_LOOSE = {True: (1.05, 1.2, 1.7, 3.0), False: (0.01, 0.05, 0.3, 2.0)}


def rule(name: str, upper: float) -> CorrectionConfig:
    return CorrectionConfig(rollout_rs=(RejectionRule.named(name, upper=upper),))


def test_truncated_weights_by_hand() -> None:
    """r = 4, 2, 1, ½ at upper 2: w = 2, 2, 1, ½, mean 11/8, Σw² = 37/4. The bound changes the first weight only; k3 of
    a ratio is r − 1 − log r: 3 − log 4, 1 − log 2, 0 and log 2 − ½, together 7/2 − 2 log 2."""
    curve = bound_curve(of_ratios([4.0, 2.0, 1.0, 0.5]), TOKEN, [2.0])
    assert curve.mean_weight.tolist() == pytest.approx([11 / 8], rel=1e-6)
    assert curve.kept_chi2.tolist() == pytest.approx([37 / 16 - 1], rel=1e-6)
    assert curve.unchanged.tolist() == [0.75]
    assert curve.kept_k3.tolist() == pytest.approx([(7 / 2 - 2 * LOG2) / 4])
    assert curve.numbers["trained_eff_sample_size"].tolist() == pytest.approx([5.5**2 / 37])


def test_masked_weights_keep_what_a_rule_on_the_same_ratio_keeps() -> None:
    """Upper 2 drops r = 4 and keeps 2, 1, ½: Σw² = 21/4 over three tokens, mean weight 3.5/4."""
    batch = of_ratios([4.0, 2.0, 1.0, 0.5])
    masked, ruled = bound_curve(batch, MASK, [2.0]), bound_curve(batch, rule("token_k1", 3.0), [2.0])
    for curve in (masked, ruled):
        assert curve.unchanged.tolist() == [0.75]
        assert curve.kept_chi2.tolist() == pytest.approx([21 / 4 / 3 - 1], rel=1e-6)
        assert curve.kept_k3.tolist() == pytest.approx([0.5 / 3], rel=1e-6)  # 1 − log 2 + 0 + log 2 − ½ over three
    assert masked.mean_weight.tolist() == pytest.approx([3.5 / 4])
    assert ruled.mean_weight.tolist() == [0.75]  # a rule alone gives every kept token a weight of 1


def test_a_rule_that_concerns_some_tokens_keeps_the_others_of_a_rejected_row() -> None:
    """seq_max_k2 = 2 > 1 drops the row, but of its tokens only those with A < 0: one of three."""
    batch = of_log_ratios(torch.tensor([[2.0, 0.0, 0.0]])).replace(advantages=torch.tensor([[1.0, -1.0, 0.0]]))
    curve = bound_curve(batch, rule("seq_max_k2_negative", 3.0), [1.0, 2.5])
    assert curve.unchanged.tolist() == pytest.approx([2 / 3, 1.0])
    assert curve.numbers["rollout_rs_seq_masked_fraction"].tolist() == [1.0, 0.0]


def test_an_outlier_outside_of_the_bounds_costs_no_digits() -> None:
    """The first row's largest r² is e⁴⁰ = 2e17; χ² of the second row is (e^2d + e^−2d)/2 − 1 with d = 2⁻²⁰."""
    d = 2.0**-20
    batch = of_log_ratios(torch.tensor([[20.0, -31.0], [d, -d]], dtype=torch.float64))
    curve = bound_curve(batch, rule("seq_max_k2", 1.0), [0.1])
    assert curve.unchanged.tolist() == [0.5]
    assert curve.kept_chi2.tolist() == pytest.approx([(math.expm1(2 * d) + math.expm1(-2 * d)) / 2], rel=1e-3)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (2, 3)])
def test_no_token(shape: tuple[int, int]) -> None:
    batch = TokenBatch.from_log_probs(torch.full(shape, math.nan), torch.full(shape, math.nan), torch.zeros(shape))
    for config in (TOKEN, MASK, rule("token_k3", 1.0)):
        curve = bound_curve(batch, config, [1.5, 2.0])
        for values in (curve.unchanged, curve.mean_weight, curve.kept_k3, curve.kept_chi2, *curve.numbers.values()):
            assert values.tolist() == [0.0, 0.0]


def noisy() -> TokenBatch:
    generator = torch.Generator().manual_seed(0)
    d = 0.4 * torch.randn(40, 12, generator=generator)
    mask = torch.rand(40, 12, generator=generator) < 0.8
    advantages = torch.randn(40, 12, generator=generator)
    rollout = -0.5 - 2 * torch.rand(40, 12, generator=generator)
    return TokenBatch.from_log_probs((rollout + d).clamp(max=0), rollout, mask).replace(advantages=advantages)


def expected(batch: TokenBatch, config: CorrectionConfig, of_weights: bool) -> dict[str, float]:
    """Each number from its formula, Σ by Σ, with the weights and the mask of `correct`."""
    result, before = correct(batch, config), batch.response_mask
    tokens = []
    for row, column in before.nonzero().tolist():
        d, weight = float(result.log_ratio[row, column]), float(result.weights[row, column])
        factor = 1.0 if result.norm_factor is None else float(result.norm_factor)
        tokens.append((d, weight * factor, bool(result.keep_mask[row, column])))
    masks = config.rollout_is is not None and config.rollout_is_mode == "mask"
    kept = [(d, w) for d, w, keep in tokens if keep and not (masks and w == 0)]
    squares = sum(w * w if of_weights else math.exp(2 * d) for d, w in kept)
    return {
        "mean_weight": sum(w for _, w in kept) / len(tokens),
        "kept_k3": sum(math.expm1(d) - d for d, _ in kept) / len(kept) if kept else 0.0,
        "kept_chi2": squares / len(kept) - 1 if kept else 0.0,
    }


WITH_A_RULE = (RejectionRule.named("seq_max_k2", upper=0.3),)
CONFIGS = {
    **{
        name: PRESETS[name].config
        for name in (
            "decoupled_token_is", "decoupled_token_icepop", "decoupled_seq_is", "decoupled_geo_rs_token_tis",
            "decoupled_k3_rs_token_tis", "prime_rl_dppo", "skyrl_product_mask", "decoupled_token_kpop",
        )
    },
    "normalised sequences": CorrectionConfig(
        rollout_is="sequence", rollout_is_batch_normalize=True, rollout_rs=WITH_A_RULE
    ),
    "prefix": CorrectionConfig(rollout_is="prefix"),
    "prefix, masked": CorrectionConfig(rollout_is="prefix", rollout_is_mode="mask"),
    "prefix, normalised": CorrectionConfig(rollout_is="prefix", rollout_is_batch_normalize=True),
}  # fmt: skip
"""Every kind of weights and rules; `tests/strips` compares the metrics of every preset's bound."""


@pytest.mark.parametrize("name", CONFIGS)
def test_a_curve_is_what_correct_gives_at_each_threshold(name: str) -> None:
    config, batch = CONFIGS[name], noisy()
    ids = [BoundId()] if config.rollout_is else []
    for bound in [*ids, *map(BoundId, range(len(config.rollout_rs)))]:
        of_weights = bound.rule_index is None
        of_ratio = of_weights or config.rollout_rs[bound.rule_index or 0].divergence in ("k1", "mult_error")
        thresholds = TIGHT_TO_LOOSE[of_ratio]
        curve = bound_curve(batch, config, thresholds, bound)
        for k, threshold in enumerate(thresholds):
            moved = at_threshold(config, threshold, bound)
            metrics = evaluate(batch, moved)[1]
            want = expected(batch, moved, of_weights) | {key: metrics[PREFIX + key] for key in curve.numbers}
            columns = {key: curve.numbers[key] if key in curve.numbers else getattr(curve, key) for key in want}
            got = {key: float(column[k]) for key, column in columns.items()}
            assert got == pytest.approx(want, rel=1e-4, abs=1e-6), (name, bound, threshold)


def test_thresholds_in_another_order_are_refused() -> None:
    with pytest.raises(UsageError, match="from the tightest bound to the loosest"):
        bound_curve(of_ratios([1.0, 2.0]), TOKEN, [3.0, 2.0])
