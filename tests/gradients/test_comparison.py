"""Paired differences of two gradients against loops over sequences in numpy, in float64."""

import math

import numpy as np
import pytest
from two_corrections import BLOCKS, DIRECTIONS, ICEPOP, LOG_RATIO, MASK, POSITIVE, ROWS, RULE, SKETCH, TIS, by_loops

from rlcorr import CorrectionConfig
from rlcorr.gradients.bootstrap import resampled
from rlcorr.gradients.report import compare_gradients

SIZE = 256
"""Answers in a batch."""


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


def exact_sums() -> np.ndarray:
    """With the whole answer's ratio, unbounded, on every token: what the others are compared with."""
    advantages, scores = POSITIVE.tensors()["advantages"].double().numpy(), SKETCH.scores.double().numpy()
    sums = np.zeros((ROWS, DIRECTIONS))
    for token, (row, column) in enumerate(zip(*MASK.nonzero(), strict=True)):
        sums[row] += math.exp(LOG_RATIO[row].sum()) * advantages[row, column] * scores[token]
    return sums


def numbers_by_loops(a: CorrectionConfig, b: CorrectionConfig, replicates: int) -> dict[str, list[float]]:
    """What a report says of each bootstrap sample, written down once more: E[g] is the reference and the difference to
    exact weights on the same answers; from all squares their noise is taken, twice in a sample of the sample. Each
    sample draws directions, too."""
    lengths = MASK.sum(1).astype(float)
    draws, of_blocks, of_directions = (
        resampled(count, replicates, seed).double().numpy() for count, seed in ((ROWS, 0), (BLOCKS, 1), (DIRECTIONS, 2))
    )
    assert SKETCH.reference is not None
    blocks, per_block = SKETCH.reference.by_token.double().numpy(), 15 * lengths.mean()
    noise_r = ((blocks / per_block - blocks.mean(0) / per_block) ** 2).sum(0) / (BLOCKS - 1) / BLOCKS
    sums = {"a": sums_of(a), "b": sums_of(b), "exact": exact_sums()}
    moved = {name: u - lengths[:, None] * u.sum(0) / lengths.sum() for name, u in sums.items()}
    share = ROWS / (ROWS - 1) / lengths.sum() ** 2
    of_samples: dict[str, list[float]] = {}
    for number, (drawn, of_block, times_k) in enumerate(zip(draws, of_blocks, of_directions, strict=True)):
        times, r = (1 if number == 0 else 2), of_block @ blocks / of_block.sum() / per_block
        g = {name: drawn @ u / (drawn @ lengths) for name, u in sums.items()}
        length_r2 = max(times_k @ (r**2 - times * noise_r), 0)
        sample: dict[str, float] = {}
        for name in ("a", "b"):
            apart, apart_noise = g[name] - g["exact"], share * ((moved[name] - moved["exact"]) ** 2).sum(0)
            whole = r + apart
            length2 = times_k @ (whole**2 - times * (noise_r + apart_noise))
            inner = times_k @ (whole * r - times * noise_r)
            along2 = max(inner, 0) ** 2 / length_r2
            squares = np.zeros(DIRECTIONS)
            for u, size, count in zip(sums[name], lengths, drawn, strict=True):
                squares += count * (u - size * g[name]) ** 2
            variance = times_k @ squares * ROWS / (drawn @ lengths) ** 2 * ROWS / (ROWS - 1)
            sample |= {
                f"bias {name}": math.sqrt(max(times_k @ (apart**2 - times * apart_noise), 0) / length_r2),
                f"noise {name}": math.sqrt(variance / SIZE / length_r2),
                f"cosine {name}": cosine_of(inner, math.sqrt(max(length2, 0) * length_r2), number),
                f"progress {name}": along2 / (max(length2, along2) + variance / SIZE),
            }
        lengths2 = {name: times_k @ g[name] ** 2 for name in ("a", "b")}
        alone = {name: max(lengths2[name] - times * share * times_k @ (moved[name] ** 2).sum(0), 0) for name in "ab"}
        without_noise = times_k @ (g["a"] * g["b"] - times * share * (moved["a"] * moved["b"]).sum(0))
        sample["between"] = times_k @ (g["a"] * g["b"]) / math.sqrt(lengths2["a"] * lengths2["b"])
        sample["expected"] = cosine_of(without_noise, math.sqrt(alone["a"] * alone["b"]), number)
        for name in ("bias", "noise", "cosine", "progress"):
            sample[name] = sample[f"{name} b"] - sample[f"{name} a"]
        for name, value in sample.items():
            of_samples.setdefault(name, []).append(float(value))
    return of_samples


@pytest.mark.parametrize(("a", "b"), [(TIS, RULE), (RULE, ICEPOP)])
def test_paired_differences_against_loops(a: CorrectionConfig, b: CorrectionConfig) -> None:
    expected = numbers_by_loops(a, b, 60)
    compared = compare_gradients(POSITIVE, SKETCH, a, b, batch_sizes=(SIZE,), replicates=60)
    intervals = {name: getattr(compared, name) for name in ("bias", "cosine", "between", "expected")}
    intervals |= {"noise": compared.noise[0], "progress": compared.progress[0]}
    for name, interval in intervals.items():
        assert interval.value == pytest.approx(expected[name][0], rel=2e-3, abs=2e-4), name
        ends = np.nanquantile(expected[name][1:], [0.025, 0.975])
        assert (interval.low, interval.high) == pytest.approx(tuple(ends), rel=2e-3, abs=2e-4), name
    better = np.mean(0.5 + np.sign(expected["progress"][1:]) / 2)
    assert compared.b_is_better[0] == pytest.approx(better, abs=0.5 / 60)
    assert compared.a.progress[0].value == pytest.approx(expected["progress a"][0], rel=1e-3)
    assert compared.b.noise[0].value == pytest.approx(expected["noise b"][0], rel=1e-3)


def test_one_against_itself_is_no_difference() -> None:
    compared = compare_gradients(POSITIVE, SKETCH, ICEPOP, ICEPOP)
    for interval in (compared.bias, *compared.noise, *compared.progress, compared.cosine):
        assert (interval.value, interval.low, interval.high) == (0, 0, 0)
    assert compared.between.low == pytest.approx(1, abs=1e-6)
    assert compared.expected.value == pytest.approx(1, abs=1e-5)
    assert compared.b_is_better == (0.5, 0.5)
