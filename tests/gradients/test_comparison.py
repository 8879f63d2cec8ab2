"""Paired differences of two gradients against loops over sequences in numpy, in float64."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from two_corrections import (
    BATCH,
    BLOCKS,
    DIRECTIONS,
    ICEPOP,
    MASK,
    POSITIVE,
    ROWS,
    RULE,
    SKETCH,
    TIS,
    by_loops,
)

from rlcorr import CorrectionConfig
from rlcorr.gradients.bootstrap import resampled
from rlcorr.gradients.comparison import compare_gradients


def sums_of(config: CorrectionConfig) -> np.ndarray:
    """Σ weight · advantage · score of each sequence: the policy gradient at π_θ = π_old, before the division."""
    sums, token = np.zeros((ROWS, DIRECTIONS)), 0
    advantages, scores = POSITIVE.tensors()["advantages"].double().numpy(), SKETCH.scores.double().numpy()
    for row, weights in enumerate(by_loops(config)):
        for column, weight in enumerate(weights):
            if weight is not None:
                sums[row] += weight * advantages[row, column] * scores[token]
                token += 1
    return sums


def cosine_of(inner: float, lengths: float, number: int) -> float:
    """Where one of the lengths is that of noise: unknown in the sample, number 0, and in the others the limit of the
    clamped quotient."""
    if lengths > 0:
        return min(max(inner / lengths, -1.0), 1.0)
    return math.copysign(1, inner) if number else math.nan


def numbers_by_loops(a: CorrectionConfig, b: CorrectionConfig, replicates: int) -> dict[str, list[float]]:
    """What a report says of each bootstrap sample, written down once more: the mean gradient Σu/Σn, its variance by the
    delta method, and squares of which their own noise is taken, twice in a sample of the sample."""
    lengths = MASK.sum(1).astype(float)
    draws = resampled(ROWS, replicates, 0).double().numpy()
    of_blocks = resampled(BLOCKS, replicates, 1).double().numpy()
    blocks, per_block = SKETCH.reference.by_token.double().numpy(), 15 * lengths.mean()
    mean_r = blocks.mean(0) / per_block
    noise_r = sum(((u / per_block - mean_r) ** 2).sum() for u in blocks) / (BLOCKS - 1) / BLOCKS
    unit = math.sqrt((mean_r**2).sum() - noise_r)
    sums = {"a": sums_of(a), "b": sums_of(b)}
    moved = {name: u - lengths[:, None] * u.sum(0) / lengths.sum() for name, u in sums.items()}
    share = ROWS / (ROWS - 1)
    noise = {name: share * (m**2).sum() / lengths.sum() ** 2 for name, m in moved.items()}
    common = share * (moved["a"] * moved["b"]).sum() / lengths.sum() ** 2
    of_samples: dict[str, list[float]] = {}
    for number, (drawn, of_block) in enumerate(zip(draws, of_blocks, strict=True)):
        times, r = (1 if number == 0 else 2), of_block @ blocks / of_block.sum() / per_block
        g = {name: drawn @ u / (drawn @ lengths) for name, u in sums.items()}
        sample: dict[str, float] = {}
        for name in ("a", "b"):
            squares = share * (moved[name] ** 2).sum(1)
            variance = drawn @ squares / (drawn @ lengths) ** 2
            bias2 = max(((g[name] - r) ** 2).sum() - times * (noise[name] + noise_r), 0)
            length = math.sqrt(max((g[name] ** 2).sum() - times * noise[name], 0))
            length_r = math.sqrt(max((r**2).sum() - times * noise_r, 0))
            sample |= {
                f"bias {name}": math.sqrt(bias2) / unit, f"noise {name}": math.sqrt(variance) / unit,
                f"error {name}": math.sqrt(bias2 + variance) / unit, f"length {name}": length,
                f"cosine {name}": cosine_of(g[name] @ r, length * length_r, number),
            }  # fmt: skip
        inner = g["a"] @ g["b"]
        sample["between"] = inner / math.sqrt((g["a"] ** 2).sum() * (g["b"] ** 2).sum())
        sample["expected"] = cosine_of(inner - times * common, sample["length a"] * sample["length b"], number)
        for name in ("bias", "noise", "error", "cosine"):
            sample[name] = sample[f"{name} b"] - sample[f"{name} a"]
        for name, value in sample.items():
            of_samples.setdefault(name, []).append(float(value))
    return of_samples


@pytest.mark.parametrize(("a", "b"), [(TIS, RULE), (ICEPOP, TIS), (RULE, ICEPOP)])
def test_paired_differences_against_loops(a: CorrectionConfig, b: CorrectionConfig) -> None:
    expected = numbers_by_loops(a, b, 60)
    compared = compare_gradients(POSITIVE, SKETCH, a, b, replicates=60)
    for name in ("bias", "noise", "error", "cosine", "between", "expected"):
        interval = getattr(compared, name)
        assert interval.value == pytest.approx(expected[name][0], rel=2e-3, abs=2e-4), name
        ends = np.nanquantile(expected[name][1:], [0.025, 0.975])
        assert (interval.low, interval.high) == pytest.approx(tuple(ends), rel=2e-3, abs=2e-4), name
    better = np.mean(np.array(expected["error b"][1:]) < np.array(expected["error a"][1:]))
    assert compared.b_is_better == pytest.approx(better)
    assert compared.a.error.value == pytest.approx(expected["error a"][0], rel=1e-3)
    assert compared.b.noise.value == pytest.approx(expected["noise b"][0], rel=1e-3)


def test_one_against_itself_is_no_difference() -> None:
    compared = compare_gradients(POSITIVE, SKETCH, ICEPOP, ICEPOP)
    for interval in (compared.bias, compared.noise, compared.error, compared.cosine):
        assert (interval.value, interval.low, interval.high) == (0, 0, 0)
    assert compared.between.low == pytest.approx(1, abs=1e-6)
    assert compared.expected.low == pytest.approx(1, abs=1e-5)
    assert compared.b_is_better == 0.5


def test_pairing_takes_out_the_noise_that_both_share() -> None:
    """Two caps that few tokens reach: both errors are known to 10 % or worse, their difference 100 times better."""
    near = replace(TIS, rollout_is_threshold=2.4), replace(TIS, rollout_is_threshold=2.6)
    compared = compare_gradients(POSITIVE, SKETCH, *near)
    alone, paired = compared.a.error.high - compared.a.error.low, compared.error.high - compared.error.low
    assert alone > 0.1 * compared.a.error.value
    assert paired < alone / 100


def test_twice_the_weight_is_twice_the_noise() -> None:
    """All ratios are 2: weights without a bound make the same gradient twice as long, and nothing else."""
    rollout = torch.where(BATCH.response_mask, BATCH.rollout_log_probs, -2.0)
    doubled = POSITIVE.replace(rollout_log_probs=rollout, old_log_probs=rollout + math.log(2))
    raw = CorrectionConfig(rollout_is="token", rollout_is_threshold=math.inf)
    compared = compare_gradients(doubled, SKETCH, CorrectionConfig(), raw)
    assert compared.noise.value == pytest.approx(compared.a.noise.value, rel=1e-4)
    assert compared.between.low == pytest.approx(1, abs=1e-5)
    assert compared.cosine.value == pytest.approx(0, abs=1e-5)


def test_where_noise_explains_a_gradient_its_direction_is_unknown() -> None:
    """Scores of random sign: what is left after the noise has length 0."""
    signs = torch.where(torch.arange(len(SKETCH.scores)) % 2 == 0, 1.0, -1.0)[:, None]
    noise = replace(SKETCH, scores=signs * torch.ones(DIRECTIONS))
    compared = compare_gradients(POSITIVE, noise, TIS, RULE)
    assert compared.a.length.value == 0
    assert math.isnan(compared.expected.value)
    assert math.isnan(compared.a.cosine.value)
    assert math.isfinite(compared.between.value)


def test_a_batch_in_float64_compares_as_one_in_float32() -> None:
    wide = POSITIVE.replace(**{name: x.double() for name, x in POSITIVE.tensors().items() if x.is_floating_point()})
    narrow, wider = (compare_gradients(batch, SKETCH, TIS, RULE, replicates=20) for batch in (POSITIVE, wide))
    for name in ("bias", "noise", "error", "cosine", "between", "expected"):
        assert getattr(wider, name).value == pytest.approx(getattr(narrow, name).value, rel=1e-3, abs=1e-4), name
