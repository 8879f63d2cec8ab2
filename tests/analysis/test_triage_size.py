"""The size of a gap among measured gaps: the verdict and its sentence, and what decides nothing."""

import math

import pytest
import torch
from causes import TOKENS, batch_of, patterns
from torch import Tensor

from rlcorr import TokenBatch
from rlcorr.analysis.triage import triage

ENGINE = torch.linspace(-8, -0.02, TOKENS).double()[torch.randperm(TOKENS, generator=torch.Generator().manual_seed(4))]


def k3_of(d: Tensor) -> float:
    return float((d.exp() - 1 - d).mean())


def uncertain(target: float) -> TokenBatch:
    """Return a batch with d = σ(1 − p)·noise and a k3 of `target`: rounding has this shape, and so do old weights.

    No log-prob may exceed 0. σ is found by bisection; it is √(2·target) divided by the root of the mean of (1 − p)², as
    long as d is small.
    """
    noise = torch.randn(TOKENS, generator=torch.Generator().manual_seed(3), dtype=torch.float64)

    def differences(sigma: float) -> Tensor:
        return torch.minimum(sigma * (1 - ENGINE.exp()) * noise, -ENGINE - 1e-4)

    low, high = 0.0, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if k3_of(differences(middle)) < target else (low, middle)
    return batch_of(ENGINE + differences(low), ENGINE)


SAID = {
    5e-4: ("precision", ["rounding to bfloat16 (5.4e-6 to 0.0029), for example 2e-4 to 5e-4 on Qwen3-30B-A3B"]),
    1.3e-3: ("precision", ["rounding to bfloat16 (5.4e-6 to 0.0029), for example 6.3e-4 to 0.0014 on Qwen3-1.7B"]),
    2.2e-3: (
        "precision",
        ["rounding to bfloat16 (5.4e-6 to 0.0029), for example 0.0013 to 0.0022 on SmolLM2-135M"],
    ),
    5e-3: ("undecided", ["weights in int8 (0.0049), a KV cache in fp8", "and weights a few updates old"]),
    3e-2: (
        "undecided",
        [
            "a KV cache in fp8 (8e-4 to 0.038), weights in fp8 (0.0014 to 0.06), a KV cache in e5m2 (0.0064 to 0.2), "
            "weights a few updates old (0.0027 to 0.5) and updates of a float32 trainer that an engine in bfloat16 "
            "rounds away (0.028 to 0.41); on another model each of them may be larger or smaller, and the log-probs do "
            "not show which one",
            "Rounding to 16 bits made at most 0.0029 on the models that were measured. Fewer bits make more, and so do",
            "Measure again right after a weight sync: a gap from old weights disappears.",
            "Measure with the engine in float32: a gap from its rounding disappears.",
        ],
    ),
    0.35: (
        "undecided",
        [
            "were measured with weights a few updates old (0.0027 to 0.5) and updates of a float32 trainer that an "
            "engine in bfloat16 rounds away (0.028 to 0.41); on another model"
        ],
    ),
    0.7: ("undecided", ["weights in int4 (0.62 to 0.81) and weights a few updates old (0.0027 to 0.5)"]),
    3.0: (
        "beyond rounding",
        [
            "makes at most 0.81 (weights in int4)",
            "another prompt or chat template, much older weights, a bug, or a coarser format or a model that was not",
        ],
    ),
}


@pytest.mark.parametrize("size", SAID)
def test_a_gap_is_placed_among_measured_gaps(size: float) -> None:
    (symptom,) = triage(uncertain(size))
    pattern, parts = SAID[size]
    assert symptom.numbers["k3"] == pytest.approx(size, rel=1e-3)
    assert symptom.pattern == pattern, symptom.sentence
    for part in (f"k3 is {size:.2g}".replace("0.0005", "5e-4"), *parts):
        assert part in symptom.sentence


def test_both_16_bit_formats_are_named_where_both_make_such_gaps() -> None:
    """float16 has been measured up to 4e-5."""
    (symptom,) = triage(uncertain(3e-5))
    assert "rounding to float16 (1e-6 to 4e-5) and rounding to bfloat16 (5.4e-6 to 0.0029)" in symptom.sentence
    (symptom,) = triage(uncertain(5e-5))
    assert "float16 (1e-6" not in symptom.sentence


def test_the_border_of_16_bits_is_not_sharp_on_another_model() -> None:
    """Measured: float16 up to 4e-5, bfloat16 up to 0.0029; a batch may exceed a range by a factor of 1.5: 0.0043."""
    said = {size: triage(uncertain(size))[0].sentence for size in (3e-5, 5e-5, 4e-3, 5e-3)}
    assert ["On another model 8 bits may make as little." in said[size] for size in said] == [False, True, False, False]
    assert ["and may be this on another one" in said[size] for size in said] == [False, False, True, False]


def test_only_what_no_measured_rounding_makes_is_called_beyond_rounding() -> None:
    """d = ±a in turns, so k3 = (e^a + e^−a)/2 − 1. Measured: bfloat16 up to 0.0029, int4 up to 0.81."""
    expected = {
        9e-8: "clean", 1.1e-7: "precision", 2.8e-3: "precision", 3.0e-3: "undecided", 0.80: "undecided",
        0.82: "beyond rounding",
    }  # fmt: skip
    rollout = torch.linspace(-6, -2, TOKENS).double()
    for size, pattern in expected.items():
        d = math.acosh(1 + size) * (1 - 2 * (torch.arange(TOKENS) % 2))
        assert patterns(batch_of(rollout + d, rollout)) == [pattern], size


def test_strength_is_how_far_k3_is_from_its_bound() -> None:
    for size, strength in {1.45e-3: 1 - 0.5, 2.9e-2: 1 - 0.1, 2.9: 1 - 0.001}.items():
        (symptom,) = triage(uncertain(size))
        assert symptom.strength == pytest.approx(strength, rel=1e-3), size


def test_a_heavy_tail_is_mentioned_and_a_light_one_is_not() -> None:
    """Two hundred of 20,000 tokens with d = ±0.4: k3 there is cosh(0.4) − 1 = 0.081, and on the others 5e-7."""
    rollout = torch.full((20_000,), -0.5).double()
    d = torch.full((20_000,), 0.001).double()
    d[:200] = 0.4 * (1 - 2 * (torch.arange(200) % 2))
    (symptom,) = triage(batch_of(rollout + d, rollout))
    assert symptom.pattern == "precision"
    assert symptom.sentence.endswith("1 % of the tokens cause 100 % of k3.")
    (symptom,) = triage(uncertain(1.3e-3))
    assert "1 % of the tokens" not in symptom.sentence
