"""Our corrections against the results of the systems' own functions on a small batch.

tests/support/golden/systems.json names file and commit. It has the systems whose packages are not on the index, or need
a GPU or a large part of the index to be imported.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.correction import correct
from rlcorr.rules import RejectionRule
from rlcorr.systems import miles, slime
from rlcorr.systems.art import to_art
from rlcorr.systems.axolotl import to_axolotl
from rlcorr.systems.nemo_rl import to_nemo_rl
from rlcorr.systems.open_instruct import to_open_instruct
from rlcorr.systems.prime_rl import to_prime_rl
from rlcorr.systems.roll import to_roll
from rlcorr.systems.unsloth import to_unsloth
from rlcorr.systems.xtuner import to_xtuner
from rlcorr.types import TokenBatch

RECORDED = json.loads((Path(__file__).parent.parent / "support" / "golden" / "systems.json").read_text())
WRITE: dict[str, Callable[[CorrectionConfig], dict[str, Any]]] = {
    "slime": slime.to_slime,
    "ROLL": to_roll,
    "open-instruct": to_open_instruct,
    "xtuner": to_xtuner,
    "NeMo RL": to_nemo_rl,
    "miles": miles.to_miles,
    "axolotl": to_axolotl,
    "Unsloth": to_unsloth,
    "ART": to_art,
}
BATCH = TokenBatch.from_log_probs(
    torch.tensor(RECORDED["old"]), torch.tensor(RECORDED["rollout"]), torch.tensor(RECORDED["mask"])
).replace(advantages=torch.tensor(RECORDED["advantages"]))


def correction(case: dict[str, Any]) -> CorrectionConfig:
    """Return our configuration of the settings, which a person has read in the system's own code."""
    fields: dict[str, Any] = {name: math.inf if value == "inf" else value for name, value in case["correction"].items()}
    rules = tuple(RejectionRule.named(**rule) for rule in fields.pop("rollout_rs", ()))
    return CorrectionConfig(rollout_rs=rules, **fields)


@pytest.mark.parametrize("case", RECORDED["cases"], ids=lambda c: f"{c['system']}-{RECORDED['cases'].index(c)}")
def test_weights_are_those_of_the_system(case: dict[str, Any]) -> None:
    """Compare the factor of the loss of each token: its weight, or 0 if it is rejected."""
    result = correct(BATCH, correction(case))
    got = torch.where(result.keep_mask, result.weights, 0)
    want = torch.tensor(case["weights"])
    assert (got == 0).tolist() == (want == 0).tolist(), case["settings"]
    torch.testing.assert_close(got, want, rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize("case", [case for case in RECORDED["cases"] if case["is_written"]], ids=lambda c: c["system"])
def test_we_write_the_settings_that_gave_these_weights(case: dict[str, Any]) -> None:
    """Check the cases in which the settings have one way to be written; `is_written` is false for the others."""
    written = leaves(WRITE[case["system"]](correction(case)))
    assert written == written | leaves(case["settings"])


def leaves(value: Any, name: str = "") -> dict[str, Any]:
    """Return {dotted name: value}; numbers have twelve digits."""
    if isinstance(value, dict):
        return {key: leaf for k, v in value.items() for key, leaf in leaves(v, f"{name}.{k}").items()}
    if isinstance(value, list | tuple):
        return {key: leaf for i, v in enumerate(value) for key, leaf in leaves(v, f"{name}.{i}").items()}
    return {name: float(f"{value:.12g}") if type(value) in (int, float) else value}


def test_every_system_is_recorded_in_several_settings() -> None:
    for system in WRITE:
        cases = [case for case in RECORDED["cases"] if case["system"] == system]
        assert len(cases) >= 5
        assert any(case["is_written"] for case in cases) or system == "axolotl"  # its asynchronous trainer was recorded


def test_prime_rls_ppo_is_a_clip_of_the_ratio_to_the_engine() -> None:
    config, loss = CorrectionConfig(bypass_mode=True), LossConfig(clip_ratio_low=0.2, clip_ratio_high=0.28)
    assert to_prime_rl(config, loss) == {"type": "ppo", "ratio_low": 0.8, "ratio_high": 1.28}
