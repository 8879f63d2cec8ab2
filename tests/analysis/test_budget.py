import math
from dataclasses import replace

import pytest
import torch
from ratio_batches import effective_share, of_ratios

from rlcorr import correct
from rlcorr.analysis.budget import (
    CLIPPED_LIMIT,
    ESS_LIMIT,
    Kept,
    ess_at_least,
    keep_at_least,
    kept,
    kept_by_length,
    with_budget,
)
from rlcorr.bounds import BoundId, at_threshold
from rlcorr.config import CorrectionConfig
from rlcorr.errors import UsageError
from rlcorr.presets import preset
from rlcorr.records import runs
from rlcorr.rules import RejectionRule
from rlcorr.teaching.glossary import define
from rlcorr.types import TokenBatch

RATIOS = (0.5, 0.99, 1.02, 2.0, 8.0)
BATCH = of_ratios(RATIOS)
CAPPED, BAND = preset("decoupled_token_is"), preset("decoupled_token_icepop")
GRID = 1.005  # neighbouring thresholds: the distances log t of 0.01 … 2.1 in 2,000 steps are 0.27 % apart
NARROW = RejectionRule.named("token_k1", lower=0.9, upper=1.1)  # keeps 0.99 and 1.02
WIDE = RejectionRule.named("token_k3", upper=1.0)  # rejects 8, whose k3 is 4.9


def ess(cap: float) -> float:
    return effective_share([min(r, cap) for r in RATIOS])


@pytest.mark.parametrize("share", [0.8, 0.6])
def test_the_loosest_cap_of_an_effective_sample_size(share: float) -> None:
    """ESS falls as the cap rises; bisected with the loop above. Without a cap it is 12.51²/(5 · 70.27) = 0.4454, so 0.4
    allows the largest ratio."""
    low, high = 1.0, 8.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if ess(middle) >= share else (low, middle)
    cap = ess_at_least(BATCH, CAPPED, share)
    assert cap <= low * (1 + 1e-9)
    assert cap == pytest.approx(low, rel=GRID - 1)
    assert ess_at_least(BATCH, CAPPED, 0.4) >= 8


def test_a_mask_has_a_best_band() -> None:
    """Kept ratios 0.99 and 1.02 make an ESS of 0.4; with ½ and 2 it is 4.51²/(5·6.27) = 0.6488; with 8 it is 0.4454."""
    assert ess_at_least(BATCH, BAND, 0.6) == pytest.approx(8, rel=GRID - 1)
    assert ess_at_least(BATCH, BAND, 0.43) >= 8


MASKED = replace(BAND, rollout_is_threshold_lower=0.4, rollout_rs=(NARROW,))  # up to 5


@pytest.mark.parametrize(
    ("correction", "bound", "share", "expected"),
    [
        # Of ratios 0.99 and 1.02, then ½ and 2, then 8 lie inside [1/t, t].
        *(
            (CorrectionConfig(rollout_rs=(NARROW,)), BoundId(0), *pair)
            for pair in ((0.4, 1.02), (0.8, 2.0), (1.0, 8.0))
        ),
        (CAPPED, BoundId(), 0.8, 2.0),  # four of five weights stay as they are from 2 on
        (replace(CAPPED, rollout_rs=(NARROW,)), BoundId(), 0.4, 1.02),  # the others are rejected anyway
        (CorrectionConfig(rollout_rs=(NARROW, WIDE)), BoundId(), 0.8, 2.0),
        (MASKED, BoundId(0), 0.8, 2.0),
    ],
)
def test_the_tightest_threshold_at_which_the_whole_correction_keeps_a_share(
    correction: CorrectionConfig, bound: BoundId, share: float, expected: float
) -> None:
    assert expected <= keep_at_least(BATCH, correction, share, bound) <= expected * GRID


def test_the_effective_sample_size_of_a_rule_is_what_it_keeps() -> None:
    correction = preset("decoupled_k3_rs")
    assert ess_at_least(BATCH, correction, 0.8) == keep_at_least(BATCH, correction, 0.8)
    assert keep_at_least(BATCH, correction, 0.8) == pytest.approx(1 - math.log(2), rel=0.01)  # k3 of r = 2


@pytest.mark.parametrize("share", [0.75, 0.88])
def test_a_cap_below_the_five_percent_closest_items(share: float) -> None:
    """Ratios ½ and 2 in equal parts: a cap of 1 ≤ C ≤ 2 has an ESS of (½ + C)²/(2(¼ + C²)), from 0.9 down to 0.735. It
    is s at C = (1 + √(1 − (2s − 1)²))/(2(2s − 1)). No ratio is closer to 1 than 2 is."""
    middle = 2 * share - 1
    cap = (1 + math.sqrt(1 - middle**2)) / (2 * middle)
    assert ess_at_least(of_ratios([0.5, 2.0] * 20), CAPPED, share) == pytest.approx(cap, rel=0.02)


def test_the_sample_size_of_what_every_bound_keeps() -> None:
    """Weights 0.5, 0.99, 1.02 and min(2, C) of five tokens; without a cap 4.51²/(5 · 6.2705) = 0.6488, with a cap of 1
    3.49²/(5 · 3.2301) = 0.7542."""
    capped = replace(CAPPED, rollout_rs=(WIDE,))
    assert ess_at_least(BATCH, capped, 0.64) >= 2
    cap = ess_at_least(BATCH, capped, 0.7)
    kept = [0.5, 0.99, 1.02, cap]
    assert sum(kept) ** 2 / (5 * sum(w * w for w in kept)) == pytest.approx(0.7, abs=1e-3)


@pytest.mark.parametrize(
    ("solve", "correction", "share", "words"),
    [
        (ess_at_least, CAPPED, 1.0, r"no threshold has an effective sample size of 1; the tightest has 0\.9"),
        (ess_at_least, BAND, 0.7, r"no threshold has an effective sample size of 0\.7; at most 0\.649"),
        (ess_at_least, replace(CAPPED, rollout_rs=(WIDE,)), 0.79, r"the tightest has 0\.75\d\."),
        (keep_at_least, replace(CAPPED, rollout_rs=(NARROW,)), 0.5, r"tokens inside; the loosest leaves 0\.4\."),
        (keep_at_least, preset("disabled"), 0.9, "neither weights nor rejection rules"),
    ],
)  # fmt: skip
def test_a_budget_that_nothing_meets(solve, correction: CorrectionConfig, share: float, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        solve(BATCH, correction, share)


def test_a_budget_on_a_recorded_run_leaves_what_it_says() -> None:
    """With a coarse cache the geometric rule keeps 7 % of the tokens, wherever the cap of the weights is: setting that
    for a budget of 95 % left 6.98 %. The rule itself can be loosened until 95 % are kept."""
    run = runs.ROOT / "kv_fp8_e5m2"
    recorded = runs.read_step(run, runs.list_steps(run)[-1]).batch
    correction = preset("decoupled_geo_rs_token_tis")
    with pytest.raises(UsageError, match=r"leaves 0\.0698261\. The other bounds"):
        keep_at_least(recorded, correction, 0.95)
    moved = at_threshold(correction, keep_at_least(recorded, correction, 0.95, BoundId(0)), BoundId(0))
    kept = correct(recorded, moved).keep_mask[recorded.response_mask].double().mean()
    assert 0.95 <= float(kept) < 0.96


def test_a_product_that_no_float_bounds() -> None:
    """Of two answers of 60 tokens one has a ratio of e^-20 in each, together e^-1200: half the tokens are kept by any
    band, four fifths by none that can be written down. But if another rule keeps too few, that is no reason to go
    without."""
    d = torch.zeros(2, 60)
    d[0], d[1, 0] = -20, 0.1
    batch = TokenBatch.from_log_probs(d - 30, torch.full_like(d, -30), torch.ones_like(d))
    half = with_budget(batch, CorrectionConfig(), "seq_sum_k1", 0.5)
    assert [rule.name for rule in half.rollout_rs] == ["seq_sum_k1"]
    assert with_budget(batch, CorrectionConfig(), "seq_sum_k1", 0.8) == CorrectionConfig()
    with pytest.raises(UsageError, match="no threshold leaves"):
        with_budget(batch, CorrectionConfig(rollout_rs=(NARROW,)), "seq_sum_k1", 0.8)


# --- what a correction keeps: a token that teaches something; the limits, which are the glossary's; and cut answers ---

TEN = [0.2, 0.9, 1.0, 1.1, 3.0, 6.0, 1.0, 1.0, 1.0, 1.0]


def of_ten() -> TokenBatch:
    old = torch.tensor([TEN]).log() - 3
    return TokenBatch.from_log_probs(old, torch.full((1, 10), -3.0), torch.ones(1, 10))


MASK_BAND = CorrectionConfig(
    rollout_is="token", rollout_is_threshold=5.0, rollout_is_threshold_lower=0.5, rollout_is_mode="mask"
)
CAP = CorrectionConfig(rollout_is="token", rollout_is_threshold=2.0)
RULE = CorrectionConfig(rollout_rs=(RejectionRule.named("token_k1", lower=0.5, upper=2.0),))


@pytest.mark.parametrize(
    ("config", "share", "cut", "clipped"),
    [
        (MASK_BAND, 0.8, None, 0.2),  # 0.2 and 6 get weight 0
        (CAP, 1.0, 0.2, 0.2),  # 3 and 6 become 2
        (RULE, 0.7, None, 0.0),  # 0.2, 3 and 6 are rejected
        (CorrectionConfig(), 1.0, None, 0.0),
    ],
)
def test_a_kept_token_has_a_weight_and_is_not_rejected(
    config: CorrectionConfig, share: float, cut: float | None, clipped: float
) -> None:
    result = kept(of_ten(), config)
    assert (result.share, result.cut, result.clipped) == (
        pytest.approx(share), cut if cut is None else pytest.approx(cut), pytest.approx(clipped)
    )  # fmt: skip


def test_bad_is_what_the_glossary_calls_bad() -> None:
    assert f"above {CLIPPED_LIMIT:g}: the bounds decide" in define("clipped mass")
    assert f"below {ESS_LIMIT:g}: half of the batch is paid for nothing" in define("effective sample size")
    at_limits = Kept(1.0, ESS_LIMIT, CLIPPED_LIMIT, CLIPPED_LIMIT)
    assert not at_limits.has_high_clipped
    assert not at_limits.has_low_ess
    assert Kept(1.0, ESS_LIMIT - 0.01, 0.0, 0.0).has_low_ess
    assert Kept(1.0, 1.0, None, CLIPPED_LIMIT + 0.001).has_high_clipped


# --- answers that are cut, against products and means worked out by hand ---


def of_log_ratios_on(d: torch.Tensor, mask: torch.Tensor) -> TokenBatch:
    rollout = torch.full(d.shape, -1.0, dtype=torch.float64)
    return TokenBatch(mask, rollout, rollout + d)


def test_a_product_crosses_its_bound_at_the_token_worked_out_by_hand() -> None:
    """Every ratio is 1.1 in one answer and 1 in the other; each has 30 tokens. The product passes 2 at token 8, because
    1.1^7 = 1.95 and 1.1^8 = 2.14. Its geometric mean is the same at any length."""
    d = torch.stack([torch.full((30,), math.log(1.1)), torch.zeros(30)]).double()
    mask = torch.ones(2, 30, dtype=torch.bool)
    product = preset("skyrl_product_mask")
    assert product.rollout_rs[0].upper == 2
    parts = kept_by_length(of_log_ratios_on(d, mask), product)
    assert {n: part.share for n, part in parts.items()} == {5: 1.0, 10: 0.5, 20: 0.5, 30: 0.5}
    mean = preset("decoupled_geo_rs")
    assert [part.share for part in kept_by_length(of_log_ratios_on(d, mask), mean).values()] == [0.5] * 4


def test_tool_tokens_do_not_count_and_short_answers_stay_whole() -> None:
    """The first answer has 12 real tokens behind 20 of a tool; the second has 3. Cut to 5, 8 tokens are left; to 10,
    13; whole, 15."""
    mask = torch.zeros(2, 32, dtype=torch.bool)
    mask[0, 20:] = True
    mask[1, :3] = True
    d = torch.zeros(2, 32, dtype=torch.float64)
    d[0, 20] = 1.0  # the only token that a band on tokens rejects: 1 of 8, 13 and 15
    band = CorrectionConfig(rollout_rs=(RejectionRule("token", "k1", upper=2.0, lower=0.5),))
    parts = [(n, part.share) for n, part in kept_by_length(of_log_ratios_on(d, mask), band).items()]
    assert parts == [(5, pytest.approx(7 / 8)), (10, pytest.approx(12 / 13)), (12, pytest.approx(14 / 15))]
