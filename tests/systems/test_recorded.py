"""Our corrections against the results of the systems' own functions on a small batch.

tests/support/golden/systems.json names file and commit. It has the systems whose packages are not on the index, or need
a GPU or a large part of the index to be imported.
"""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.correction import correct
from rlcorr.errors import UsageError
from rlcorr.rules import RejectionRule
from rlcorr.systems.art import from_art
from rlcorr.systems.axolotl import from_axolotl
from rlcorr.systems.miles import from_miles
from rlcorr.systems.nemo_rl import from_nemo_rl
from rlcorr.systems.open_instruct import from_open_instruct
from rlcorr.systems.prime_rl import from_prime_rl, to_prime_rl
from rlcorr.systems.roll import from_roll
from rlcorr.systems.slime import from_slime
from rlcorr.systems.unsloth import from_unsloth
from rlcorr.systems.xtuner import from_xtuner
from rlcorr.types import TokenBatch

RECORDED = json.loads((Path(__file__).parent.parent / "support" / "golden" / "systems.json").read_text())
READ: dict[str, Callable[[Any], CorrectionConfig]] = {
    "slime": from_slime,
    "ROLL": from_roll,
    "open-instruct": from_open_instruct,
    "xtuner": from_xtuner,
    "NeMo RL": from_nemo_rl,
    "miles": from_miles,
    "axolotl": from_axolotl,
    "Unsloth": from_unsloth,
    "ART": lambda given: from_art(given)[0],
}
BATCH = TokenBatch.from_log_probs(
    torch.tensor(RECORDED["old"]), torch.tensor(RECORDED["rollout"]), torch.tensor(RECORDED["mask"])
).replace(advantages=torch.tensor(RECORDED["advantages"]))


@pytest.mark.parametrize("case", RECORDED["cases"], ids=lambda c: f"{c['system']}-{RECORDED['cases'].index(c)}")
def test_weights_are_those_of_the_system(case: dict[str, Any]) -> None:
    """Return the factor of the loss of each token: its weight, or 0 if it is rejected."""
    result = correct(BATCH, READ[case["system"]](case["settings"]))
    got = torch.where(result.keep_mask, result.weights, 0)
    want = torch.tensor(case["weights"])
    assert (got == 0).tolist() == (want == 0).tolist(), case["settings"]
    torch.testing.assert_close(got, want, rtol=2e-5, atol=1e-7)


def test_every_system_is_recorded_in_several_settings() -> None:
    counts = {system: sum(c["system"] == system for c in RECORDED["cases"]) for system in READ}
    assert min(counts.values()) >= 5


# prime-rl: packages/prime-rl-configs/src/prime_rl/configs/trainer.py after pull request 3586, and at commit 559b4477.
PG: dict[str, Any] = {"bypass_mode": True, "loss_type": "reinforce", "rollout_is": "token"}
ALL = LossConfig(kl_loss_tokens="response")  # its KL terms act on every token of loss_mask
OLD_KL = replace(
    ALL, use_rollout_kl_loss=True, rollout_kl_loss_coef=2e-3, rollout_kl_estimator_type="k2",
    rollout_kl_loss_agg_mode="token-mean",
)  # fmt: skip
PRIME_RL = [
    ("2026-09", {}, (1e4, None, "truncate", ("token_prob_diff", -0.3, 0.3)), ALL),
    ("2026-09", {"type": "icepop"}, (5.0, 0.2, "mask", None), ALL),
    ("2026-09", {"type": "cispo"}, (5.0, None, "truncate", None), ALL),
    ("2026-08", {}, (math.inf, None, "truncate", ("token_prob_diff_outward", -0.2, 0.2)), OLD_KL),
    ("2026-08", {"type": "ipo"}, (math.inf, None, "truncate", ("token_prob_diff", -0.1, 0.1)), OLD_KL),
]


@pytest.mark.parametrize(("version", "table", "means", "loss"), PRIME_RL, ids=lambda x: str(x)[:40])
def test_prime_rls_defaults(version: str, table: dict[str, Any], means: Any, loss: LossConfig) -> None:
    upper, lower, mode, bounds = means
    rules = () if bounds is None else (RejectionRule.named(bounds[0], lower=bounds[1], upper=bounds[2]),)
    config = CorrectionConfig(
        rollout_is_threshold=upper, rollout_is_threshold_lower=lower, rollout_is_mode=mode, rollout_rs=rules, **PG
    )
    assert from_prime_rl(table, version=version) == (config, loss)


def test_prime_rls_ppo_is_a_clip_of_the_ratio_to_the_engine() -> None:
    config, loss = from_prime_rl({"type": "ppo", "ratio_low": 0.8, "ratio_high": 1.28})
    assert config == CorrectionConfig(bypass_mode=True)
    assert (loss.clip_ratio_low, loss.clip_ratio_high) == (0.2, 0.28)
    assert to_prime_rl(config, loss) == {"type": "ppo", "ratio_low": 0.8, "ratio_high": 1.28}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"type": "default"}, "type 'default' is a loss of prime-rl 2026-08: read it with version='2026-08'"),
        ({"type": "grpo"}, "unknown type of prime-rl's loss 'grpo'"),
        (
            {"type": "ipo", "ipo_threshold": 0.1},
            "ipo_threshold is not read: it is of prime-rl 2026-08: read it with version='2026-08'",
        ),
        ({"adv_tau": 2.0}, "adv_tau must be 1"),
    ],
)
def test_prime_rls_old_keys_are_not_read_as_new(table: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        from_prime_rl(table)
