"""What a correction keeps of answers that are cut, against products and means worked out by hand."""

import math

import pytest
import torch

from rlcorr import CorrectionConfig, TokenBatch
from rlcorr.analysis.by_length import kept_by_length
from rlcorr.presets import preset
from rlcorr.rules import RejectionRule


def batch(d: torch.Tensor, mask: torch.Tensor) -> TokenBatch:
    rollout = torch.full(d.shape, -1.0, dtype=torch.float64)
    return TokenBatch(mask, rollout, rollout + d)


def test_a_product_crosses_its_bound_at_the_token_worked_out_by_hand() -> None:
    """Every ratio is 1.1 in one answer and 1 in the other; each has 30 tokens. The product passes 2 at token 8, because
    1.1^7 = 1.95 and 1.1^8 = 2.14. Its geometric mean is the same at any length."""
    d = torch.stack([torch.full((30,), math.log(1.1)), torch.zeros(30)]).double()
    mask = torch.ones(2, 30, dtype=torch.bool)
    product = preset("skyrl_product_mask")
    assert product.rollout_rs[0].upper == 2
    parts = kept_by_length(batch(d, mask), product)
    assert [(part.length, part.kept.share) for part in parts] == [(5, 1.0), (10, 0.5), (20, 0.5), (30, 0.5)]
    mean = preset("decoupled_geo_rs")
    assert [part.kept.share for part in kept_by_length(batch(d, mask), mean)] == [0.5] * 4


def test_tool_tokens_do_not_count_and_short_answers_stay_whole() -> None:
    """The first answer has 12 real tokens behind 20 of a tool; the second has 3. Cut to 5, 8 tokens are left; to 10,
    13; whole, 15."""
    mask = torch.zeros(2, 32, dtype=torch.bool)
    mask[0, 20:] = True
    mask[1, :3] = True
    d = torch.zeros(2, 32, dtype=torch.float64)
    d[0, 20] = 1.0  # the only token that a band on tokens rejects: 1 of 8, 13 and 15
    band = CorrectionConfig(rollout_rs=(RejectionRule("token", "k1", upper=2.0, lower=0.5),))
    parts = [(part.length, part.kept.share) for part in kept_by_length(batch(d, mask), band)]
    assert parts == [(5, pytest.approx(7 / 8)), (10, pytest.approx(12 / 13)), (12, pytest.approx(14 / 15))]


def test_answers_shorter_than_every_cut_have_one_line() -> None:
    parts = kept_by_length(batch(torch.zeros(1, 4).double(), torch.ones(1, 4).bool()), CorrectionConfig())
    assert [(part.length, part.kept.share) for part in parts] == [(4, 1.0)]
