"""The band that grows with the entropy, against a loop over the tokens."""

import math

import numpy as np
import pytest
import torch

from rlcorr.analysis.entropy_band import within_entropy_band
from rlcorr.config import CorrectionConfig
from rlcorr.correction import correct
from rlcorr.errors import UsageError
from rlcorr.measuring.measure import evaluate
from rlcorr.rules import RejectionRule
from rlcorr.types import CorrectionResult, TokenBatch


def result_of(d: torch.Tensor, mask: torch.Tensor | None = None, *rules: RejectionRule) -> CorrectionResult:
    rollout = torch.full(d.shape, -2.0, dtype=d.dtype)
    batch = TokenBatch.from_log_probs(rollout + d, rollout, torch.ones(d.shape) if mask is None else mask)
    return correct(batch, CorrectionConfig(rollout_rs=rules))


@pytest.mark.parametrize("threshold", [0.05, 0.5, 4.0])
@pytest.mark.parametrize("floor", [0.01, 0.3])
def test_tokens_are_kept_as_in_a_loop(threshold: float, floor: float) -> None:
    random = np.random.default_rng(0)
    d, entropies = random.normal(0, 0.7, (5, 11)), random.exponential(1, (5, 11))
    mask = torch.arange(11) < torch.tensor([[11], [3], [7], [1], [9]])
    got = within_entropy_band(result_of(torch.from_numpy(d), mask), torch.from_numpy(entropies), threshold=threshold,
                              floor=floor)  # fmt: skip
    for b, t in np.ndindex(d.shape):
        inside = abs(d[b, t]) <= math.sqrt(threshold * (entropies[b, t] + floor))
        assert bool(got.keep_mask[b, t]) == (bool(mask[b, t]) and inside), (b, t)
    assert not got.only_by_rules


def test_with_one_entropy_it_is_a_rule_on_the_squared_log_ratio() -> None:
    """d² ≤ τ (H + ε) is k2 ≤ τ (H + ε)/2."""
    d = torch.linspace(-1.5, 1.5, 31, dtype=torch.float64)[None]
    same = within_entropy_band(result_of(d), torch.full((1, 31), 0.49), threshold=1.0)
    rule = RejectionRule.named("token_k2", upper=0.25 + 1e-9)
    assert same.keep_mask.tolist() == result_of(d, None, rule).keep_mask.tolist()


def test_it_rejects_besides_the_rules_and_reads_nothing_on_padding() -> None:
    rule = RejectionRule.named("token_k1", upper=1.5)
    mask = torch.tensor([[1, 1, 1, 0]])
    result = result_of(torch.tensor([[0.6, -0.6, 0.1, 0.0]]), mask, rule)
    got = within_entropy_band(result, torch.tensor([[5.0, 0.1, 0.1, math.nan]]), threshold=1.0)
    assert got.keep_mask.tolist() == [[False, False, True, False]]
    assert got.rejected_by.tolist() == [[1, 0, 0, 0]]


def test_a_result_with_a_band_is_measured_as_it_is() -> None:
    d = torch.tensor([[0.5, 0.5, 0.5, 0.5]])
    batch = TokenBatch.from_log_probs(d - 2, torch.full((1, 4), -2.0), torch.ones(1, 4))
    _, before = evaluate(batch, CorrectionConfig())
    assert before["rollout_corr/kept_fraction"] == 1
    got = within_entropy_band(correct(batch, CorrectionConfig()), torch.tensor([[0.0, 0.0, 1.0, 1.0]]), threshold=0.5)
    assert got.keep_mask.tolist() == [[False, False, True, True]]


@pytest.mark.parametrize(
    ("entropies", "numbers", "message"),
    [
        (torch.zeros(1, 3), {"threshold": 1.0}, r"entropies must have the shape of the batch, \(1, 2\); got \(1, 3\)"),
        (torch.tensor([[0.1, -0.1]]), {"threshold": 1.0}, "an entropy is ≥ 0; got -0.1"),
        (torch.zeros(1, 2), {"threshold": 0.0}, "threshold and floor must be > 0; got 0.0 and 0.01"),
        (torch.zeros(1, 2), {"threshold": 1.0, "floor": 0.0}, "threshold and floor must be > 0; got 1.0 and 0.0"),
    ],
)
def test_what_is_refused(entropies: torch.Tensor, numbers: dict[str, float], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        within_entropy_band(result_of(torch.zeros(1, 2)), entropies, **numbers)
