"""What a correction keeps: a token that teaches something; the limits, which are the glossary's; and cut answers."""

import math

import pytest
import torch

from rlcorr import CorrectionConfig, RejectionRule, TokenBatch
from rlcorr.analysis.choosing import CLIPPED_LIMIT, ESS_LIMIT, Kept, kept, kept_by_length
from rlcorr.presets import preset
from rlcorr.teaching.glossary import define

RATIOS = [0.2, 0.9, 1.0, 1.1, 3.0, 6.0, 1.0, 1.0, 1.0, 1.0]


def batch() -> TokenBatch:
    old = torch.tensor([RATIOS]).log() - 3
    return TokenBatch.from_log_probs(old, torch.full((1, 10), -3.0), torch.ones(1, 10))


BAND = CorrectionConfig(
    rollout_is="token", rollout_is_threshold=5.0, rollout_is_threshold_lower=0.5, rollout_is_mode="mask"
)
CAP = CorrectionConfig(rollout_is="token", rollout_is_threshold=2.0)
RULE = CorrectionConfig(rollout_rs=(RejectionRule.named("token_k1", lower=0.5, upper=2.0),))


@pytest.mark.parametrize(
    ("config", "share", "cut", "clipped"),
    [
        (BAND, 0.8, None, 0.2),  # 0.2 and 6 get weight 0
        (CAP, 1.0, 0.2, 0.2),  # 3 and 6 become 2
        (RULE, 0.7, None, 0.0),  # 0.2, 3 and 6 are rejected
        (CorrectionConfig(), 1.0, None, 0.0),
    ],
)
def test_a_kept_token_has_a_weight_and_is_not_rejected(
    config: CorrectionConfig, share: float, cut: float | None, clipped: float
) -> None:
    result = kept(batch(), config)
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
