"""Our corrections against the results of the systems' own functions on a small batch.

tests/support/golden/systems.json names file and commit, or version. `make peers` runs the code of verl, SkyRL and TRL.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rlcorr.bounds import m2po
from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.correction import correct
from rlcorr.losses.policy_losses import LOSSES, Inputs
from rlcorr.rules import RejectionRule
from rlcorr.systems import miles, slime
from rlcorr.systems.areal import to_areal
from rlcorr.systems.art import to_art
from rlcorr.systems.axolotl import to_axolotl
from rlcorr.systems.ms_swift import to_ms_swift
from rlcorr.systems.nemo_rl import to_nemo_rl
from rlcorr.systems.open_instruct import to_open_instruct
from rlcorr.systems.openrlhf import to_openrlhf
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
    "OpenRLHF": to_openrlhf,
    "AReaL": to_areal,
    "ms-swift": to_ms_swift,
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
    return {name: float(f"{float(value):.12g}") if type(value) in (int, float) or value == "inf" else value}


def test_prime_rls_ppo_is_a_clip_of_the_ratio_to_the_engine() -> None:
    config, loss = CorrectionConfig(bypass_mode=True), LossConfig(clip_ratio_low=0.2, clip_ratio_high=0.28)
    assert to_prime_rl(config, loss) == {"type": "ppo", "ratio_low": 0.8, "ratio_high": 1.28}


@pytest.mark.parametrize("case", RECORDED["losses"], ids=lambda case: case["loss_type"])
def test_losses_of_whole_answers_are_those_of_the_system(case: dict[str, Any]) -> None:
    """VESPO by TRL, with some π_old between π_θ and π_rollout, and FIPO by ms-swift."""
    wide = {name: x.double() for name, x in BATCH.tensors().items() if x.is_floating_point()}
    inputs = Inputs(wide["old_log_probs"], wide["rollout_log_probs"], wide["advantages"], BATCH.response_mask)
    losses = LOSSES[case["loss_type"]].of(inputs, LossConfig(), None)
    want = torch.tensor(case["loss"], dtype=torch.float64)
    torch.testing.assert_close(torch.where(BATCH.response_mask, losses, 0), want, rtol=1e-9, atol=1e-12)


def test_m2po_keeps_the_tokens_that_areals_own_function_keeps() -> None:
    for case in RECORDED["m2po"]:
        kept = correct(BATCH, CorrectionConfig(rollout_rs=(m2po(BATCH, case["threshold"]),))).keep_mask
        assert kept.int().tolist() == case["kept"], case["threshold"]
