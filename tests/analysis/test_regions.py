"""The boundaries of every method, against its formula written out, and against what `correct` really does."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from rlcorr import PRESETS, CorrectionConfig, RejectionRule, TokenBatch, correct, preset
from rlcorr.analysis.regions import SEQUENCE_METHODS, TOKEN_METHODS, has_region, region, sequence_bounds
from rlcorr.errors import UsageError

Q = [0.001, 0.02, 0.1, 0.3, 0.5, 0.8, 0.97]


def edges(config: CorrectionConfig, probabilities: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper bound on π_old."""
    bounds = region(config, torch.tensor(probabilities, dtype=torch.float64).log())
    return bounds.lower.exp().numpy(), bounds.upper.exp().numpy()


def below_one(values: list[float]) -> list[float]:
    return [v if v < 1 else math.nan for v in values]


def rule(name: str, **bounds: float) -> CorrectionConfig:
    return CorrectionConfig(rollout_rs=(RejectionRule.named(name, **bounds),))


def root_of_k3(start: float) -> float:
    """Where r − 1 − log r = 0.01, by Newton's method."""
    r = start
    for _ in range(20):
        r -= (r - 1 - math.log(r) - 0.01) / (1 - 1 / r)
    return r


LOW, HIGH = root_of_k3(0.87), root_of_k3(1.15)
SHAPES: dict[str, tuple[list[float], list[float]]] = {
    "TIS": ([math.nan] * len(Q), [2 * q for q in Q]),  # a ray
    "IcePop": ([0.5 * q for q in Q], [5 * q for q in Q]),  # two rays
    "DPPO": ([q - 0.2 if q > 0.2 else math.nan for q in Q], [q + 0.2 for q in Q]),  # a strip
    "k3": ([LOW * q for q in Q], [HIGH * q for q in Q]),
}


@pytest.mark.parametrize("name", SHAPES)
def test_bounds_on_a_ratio_are_rays_and_on_a_difference_a_strip(name: str) -> None:
    lower, upper = edges(TOKEN_METHODS[name], Q)
    assert pytest.approx((0.8652, 1.1482), abs=1e-4) == (LOW, HIGH)
    assert lower == pytest.approx(SHAPES[name][0], nan_ok=True)
    assert upper == pytest.approx(below_one(SHAPES[name][1]), nan_ok=True)


def coin_kl(p: float, q: float) -> float:
    return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))


@pytest.mark.parametrize(
    ("name", "divergence", "bound"),
    [("KPop", lambda p, q: max(coin_kl(p, q), coin_kl(q, p)), 2), ("signed KL", lambda p, q: coin_kl(q, p), 0.05)],
)
def test_a_bound_on_a_kl_is_a_lens(name: str, divergence: Callable[[float, float], float], bound: float) -> None:
    lower, upper = edges(TOKEN_METHODS[name], Q)
    points = [(p, q) for p, q in zip([*lower, *upper], [*Q, *Q], strict=True) if not math.isnan(p)]
    assert len(points) >= 8
    for p, q in points:
        assert divergence(p, q) == pytest.approx(bound, rel=5e-5)


def test_regions_of_presets_agree_with_what_is_done_to_tokens() -> None:
    """On a grid of both probabilities a token is untouched if it is kept and its weight is its ratio. Rules over
    sequences, and the common factor of normalised weights, are taken away; advantages have the sign that makes every
    token concern a rule."""
    names = [name for name, entry in PRESETS.items() if has_region(entry.config)]
    assert len(names) > len(PRESETS) / 3
    for name in names[::2]:
        assert_region_is_what_is_untouched(name)


def assert_region_is_what_is_untouched(name: str) -> None:
    rules = tuple(r for r in PRESETS[name].config.rollout_rs if r.level == "token")
    config = replace(PRESETS[name].config, rollout_rs=rules, rollout_is_batch_normalize=False)
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
