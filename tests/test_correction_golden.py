"""Weights and masks against verl's own, case by case."""

from typing import Any

import pytest
import torch
from reference import VERL, batch, config, tensor

from rlcorr import CorrectionConfig, correct, preset

ALL_MASKED_IN = {"zero_length_2x0"}  # verl raises on it; ours is a normal value
FRACTIONAL = {"fractional_mask"}  # a mask that is also a weight: our mask is bool
NAN_PADDING = {"nan_in_padding_old"}  # verl multiplies exp(NaN) by the mask; ours selects first, as the oracle does
CASES = sorted(set(VERL["inputs"]) - ALL_MASKED_IN - FRACTIONAL - NAN_PADDING)


def assert_same(golden: Any, config: CorrectionConfig, case: str, setting: str) -> None:
    """float64 vectors are stored with 12 digits, float32 with 8."""
    given = batch(case)
    result = correct(given, config)
    if golden.get("error") == "ZeroDivisionError":  # verl divides by the ESS: every weight was 0
        assert not result.weights.any(), (setting, case)
        return
    if golden.get("mask") is not None:
        assert result.keep_mask.int().tolist() == golden["mask"], (setting, case)
    if golden.get("weights") is not None:
        tolerance = 1e-2 if given.rollout_log_probs.dtype == torch.bfloat16 else 2e-5
        want, name = tensor(golden["weights"], torch.float64), f"{setting}, {case}"
        torch.testing.assert_close(
            result.weights.double(), want, rtol=tolerance, atol=1e-6, equal_nan=True, msg=lambda text: f"{name}: {text}"
        )


@pytest.mark.parametrize("group", ["presets", "weights", "rejection"])
def test_like_verl(group: str) -> None:
    if group == "presets":
        runs = {name: (preset(name), cases) for name, cases in VERL["pipeline"].items()}
    else:
        options = VERL["is" if group == "weights" else "rs"]
        runs = {name: (config(run["config"]), run["cases"]) for name, run in options.items()}
    for name, (settings, cases) in runs.items():
        for case in CASES:
            assert_same(cases[case], settings, case, name)
