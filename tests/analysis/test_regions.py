"""The boundaries of every method, against what `correct` really does."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from rlcorr import PRESETS, CorrectionConfig, RejectionRule, TokenBatch, correct, preset
from rlcorr.analysis.regions import SEQUENCE_METHODS, TOKEN_METHODS, has_region, region, sequence_bounds
from rlcorr.errors import UsageError


def edges(config: CorrectionConfig, probabilities: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper bound on π_old."""
    bounds = region(config, torch.tensor(probabilities, dtype=torch.float64).log())
    return bounds.lower.exp().numpy(), bounds.upper.exp().numpy()


def rule(name: str, **bounds: float) -> CorrectionConfig:
    return CorrectionConfig(rollout_rs=(RejectionRule.named(name, **bounds),))


def test_regions_of_presets_agree_with_what_is_done_to_tokens() -> None:
    """On a grid of both probabilities a token is untouched if it is kept and its weight is its ratio. Rules over
    sequences, and the common factor of normalised weights, are taken away; advantages have the sign that makes every
    token concern a rule."""
    names = [name for name, entry in PRESETS.items() if has_region(entry.config)]
    assert len(names) > len(PRESETS) / 3
    for name, config in {**{name: PRESETS[name].config for name in names[::3]}, **TOKEN_METHODS}.items():
        assert_region_is_what_is_untouched(name, config)


def assert_region_is_what_is_untouched(name: str, config: CorrectionConfig) -> None:
    rules = tuple(r for r in config.rollout_rs if r.level == "token")
    config = replace(config, rollout_rs=rules, rollout_is_batch_normalize=False)
    p, q = np.meshgrid(np.linspace(0.003, 0.995, 70), np.linspace(0.002, 0.996, 60))
    old, rollout = torch.tensor(p).log(), torch.tensor(q).log()
    batch = TokenBatch.from_log_probs(old, rollout, torch.ones(p.shape)).replace(advantages=torch.sign(old - rollout))
    result = correct(batch, config)
    expected = result.keep_mask.numpy()
    if config.rollout_is == "token":
        expected = expected & np.isclose(result.weights.numpy(), np.exp(result.log_ratio.numpy()))
    lower, upper = edges(config, q[:, 0].tolist())
    inside = (p >= np.nan_to_num(lower, nan=0)[:, None]) & (p <= np.nan_to_num(upper, nan=1)[:, None])
    assert (inside == expected).all(), name
    assert 0 < expected.mean() < 1, name


def test_what_has_no_region_is_said() -> None:
    assert not has_region(preset("decoupled_seq_is"))
    assert not has_region(preset("ms_swift_sequence_mask"))  # token weights without a bound
    assert has_region(preset("prime_rl_dppo"))
    with pytest.raises(UsageError, match="has no region of tokens"):
        region(preset("decoupled_geo_rs"), torch.tensor([-1.0]))
    with pytest.raises(UsageError, match="rejects ratio 1"):
        region(rule("token_k1", lower=1.5, upper=2.0), torch.tensor([-1.0]))


LENGTHS = torch.tensor([1, 10, 100])


@pytest.mark.parametrize(
    ("config", "low", "high"),
    [
        (SEQUENCE_METHODS["product"], [math.log(0.5)] * 3, [math.log(2)] * 3),
        (
            SEQUENCE_METHODS["geometric mean"],
            [-n * math.log(1.001) for n in (1, 10, 100)],
            [-n * math.log(0.999) for n in (1, 10, 100)],
        ),
        (preset("decoupled_seq_is"), [-math.inf] * 3, [math.log(2)] * 3),
        (
            CorrectionConfig(rollout_is="geometric", rollout_is_threshold=1.1, rollout_is_threshold_lower=0.9),
            [n * math.log(0.9) for n in (1, 10, 100)],
            [n * math.log(1.1) for n in (1, 10, 100)],
        ),
    ],
)
def test_bounds_on_sequences(config: CorrectionConfig, low: list[float], high: list[float]) -> None:
    ((found_low, found_high),) = sequence_bounds(config, LENGTHS)
    assert found_low.tolist() == pytest.approx(low)
    assert found_high.tolist() == pytest.approx(high)
    assert len(sequence_bounds(preset("decoupled_seq_is_rs"), LENGTHS)) == 2
    assert sequence_bounds(preset("decoupled_k3_rs"), LENGTHS) == []
