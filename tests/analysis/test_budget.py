import math

import pytest
from ratio_batches import effective_share, of_ratios

from rlcorr.analysis.budget import ess_at_least, keep_at_least
from rlcorr.config import CorrectionConfig
from rlcorr.errors import UsageError
from rlcorr.presets import preset
from rlcorr.rules import RejectionRule
from rlcorr.types import TokenBatch

RATIOS = (0.5, 0.99, 1.02, 2.0, 8.0)
CAPPED = preset("decoupled_token_is")
GRID = 1.005  # neighbouring thresholds: the distances log t of 0.01 … 2.1 in 2,000 steps are 0.27 % apart


def batch() -> TokenBatch:
    return of_ratios(RATIOS)


def ess(cap: float) -> float:
    return effective_share([min(r, cap) for r in RATIOS])


@pytest.mark.parametrize("share", [0.8, 0.7, 0.6])
def test_the_loosest_cap_of_an_effective_sample_size(share: float) -> None:
    """ESS falls as the cap rises; found by bisection of the loop above."""
    low, high = 1.0, 8.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if ess(middle) >= share else (low, middle)
    found = ess_at_least(batch(), CAPPED, share)
    assert found <= low * (1 + 1e-9)
    assert found == pytest.approx(low, rel=GRID - 1)


def test_a_budget_that_no_cap_breaks() -> None:
    """Without a cap the ESS is 12.51²/(5 · 70.27) = 0.4454, so 0.4 allows the largest ratio."""
    assert ess(8.0) == pytest.approx(12.51**2 / (5 * 70.2705), rel=1e-4)
    assert ess_at_least(batch(), CAPPED, 0.4) >= 8


def test_a_budget_that_nothing_meets() -> None:
    with pytest.raises(UsageError, match=r"no threshold has an effective sample size of 1; the tightest has 0.9"):
        ess_at_least(batch(), CAPPED, 1.0)


def test_a_mask_has_a_best_band() -> None:
    """Kept ratios 0.99 and 1.02 make an ESS of 0.4; with ½ and 2 it is 4.51²/(5·6.27) = 0.6488; with 8 it is 0.4454."""
    band = preset("decoupled_token_icepop")
    assert ess_at_least(batch(), band, 0.6) == pytest.approx(8, rel=GRID - 1)
    assert ess_at_least(batch(), band, 0.43) >= 8
    with pytest.raises(UsageError, match=r"no threshold has an effective sample size of 0.7; at most 0.649"):
        ess_at_least(batch(), band, 0.7)


@pytest.mark.parametrize(("share", "expected"), [(0.4, 1.02), (0.8, 2.0), (1.0, 8.0)])
def test_the_tightest_band_of_a_share(share: float, expected: float) -> None:
    """Of ratios 0.99 and 1.02, then ½ and 2, then 8 lie inside [1/t, t]."""
    rule = RejectionRule.named("token_k1", lower=0.9, upper=1.1)
    found = keep_at_least(batch(), CorrectionConfig(rollout_rs=(rule,)), share)
    assert expected <= found <= expected * GRID


def test_the_tightest_cap_that_leaves_a_share_alone() -> None:
    """A cap of t leaves four of five weights as they are from t = 2."""
    assert 2 <= keep_at_least(batch(), CAPPED, 0.8) <= 2 * GRID


def test_the_effective_sample_size_of_a_rule_is_what_it_keeps() -> None:
    correction = preset("decoupled_k3_rs")
    assert ess_at_least(batch(), correction, 0.8) == keep_at_least(batch(), correction, 0.8)
    assert keep_at_least(batch(), correction, 0.8) == pytest.approx(1 - math.log(2), rel=0.01)  # k3 of r = 2


def test_no_threshold_to_move() -> None:
    with pytest.raises(UsageError, match="neither weights nor rejection rules"):
        keep_at_least(batch(), preset("disabled"), 0.9)
