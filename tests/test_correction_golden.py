"""Weights and masks against verl's own, case by case."""

from typing import Any

import pytest
import torch
from reference import GOLDEN, VERL, batch, tensor

from rlcorr import CorrectionConfig, correct, from_verl, preset

ALL_MASKED_IN = {"zero_length_2x0"}  # verl raises on it; ours is a normal value
FRACTIONAL = {"fractional_mask"}  # a mask that is also a weight: our mask is bool
CASES = sorted(set(VERL["inputs"]) - ALL_MASKED_IN - FRACTIONAL)


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
        # verl multiplies exp(NaN) on padding by the mask; ours selects first, as the oracle does.
        want, name = torch.where(given.response_mask, tensor(golden["weights"], torch.float64), 0), f"{setting}, {case}"
        torch.testing.assert_close(
            result.weights.double(), want, rtol=tolerance, atol=1e-6, equal_nan=True, msg=lambda text: f"{name}: {text}"
        )


PR6800 = GOLDEN["verl-pr6800"]
RUNS: dict[str, dict[str, tuple[CorrectionConfig, dict[str, Any]]]] = {
    "presets": {name: (preset(name), cases) for name, cases in VERL["pipeline"].items()},
    "weights": {name: (from_verl(run["config"]), run["cases"]) for name, run in VERL["is"].items()},
    "rejection": {name: (from_verl(run["config"]), run["cases"]) for name, run in VERL["rs"].items()},
    "binary_kl": {name: (from_verl(run["config"]), run["cases"]) for name, run in PR6800["rs"].items()}
    | {name: (from_verl(PR6800["presets"][name]), cases) for name, cases in PR6800["pipeline"].items()},
}


@pytest.mark.parametrize("group", RUNS)
def test_like_verl(group: str) -> None:
    for name, (settings, cases) in RUNS[group].items():
        for case in CASES:
            assert_same(cases[case], settings, case, name)
