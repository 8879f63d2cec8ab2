"""What a correction keeps: a token that teaches something; and the limits, which are those of the glossary."""

import pytest
import torch

from rlcorr import CorrectionConfig, RejectionRule, TokenBatch
from rlcorr.analysis.choosing import CLIPPED_LIMIT, ESS_LIMIT, Kept, kept
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
    assert not Kept(1.0, ESS_LIMIT, CLIPPED_LIMIT, CLIPPED_LIMIT).is_bad
    assert Kept(1.0, ESS_LIMIT - 0.01, 0.0, 0.0).is_bad
    assert Kept(1.0, 1.0, None, CLIPPED_LIMIT + 0.001).is_bad
