"""TRL's GRPOConfig as ours and back (1.16.0: trl/trainer/grpo_config.py, grpo_trainer.py:2660-2706); its completions.

Of 1.17.0 only the release's summary was read: it computes the trainer's log-probs on the support that top-k, top-p and
min-p leave (issue 6789), by itself. Its package was not on the index, and no renamed field is known.
"""

import math
from typing import Any

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.errors import UsageError
from rlcorr.rules import RejectionRule
from rlcorr.systems.mapping.facts import FACTS
from rlcorr.systems.mapping.keys import choice, number, optional, read_keys, refuse_ignored, switch
from rlcorr.systems.mapping.refusals import minus_log, no_rule, refuse

_IS = "vllm_importance_sampling"
FIELDS = FACTS["TRL"].fields
"""TRL's fields and defaults; `use_vllm` is on."""
PPO_CLIPS = ("dapo", "grpo", "bnpo", "dr_grpo")
"""Losses that are PPO's clip. They differ in the divisor of the sum, which is not a part of the correction."""

VESPO = {"loss_type": "vespo", f"{_IS}_correction": True, f"{_IS}_mode": "token_mask", f"{_IS}_clip_max": None,
         f"{_IS}_clip_min": None}  # fmt: skip
"""Settings with which TRL's product is one of π_θ/π_rollout: a mask without bounds admits every π_old/π_rollout."""
VESPO_NUMBERS = ("vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg")


def from_trl(source: Any) -> CorrectionConfig:
    """Return the configuration of TRL's fields.

    `source` is a mapping of the arguments of GRPOConfig, or a GRPOConfig.

    - token_* weighs with r, sequence_* with the product of a sequence's r.
    - *_truncate clamps, *_mask sets weights outside the bounds to 0; None means no bound.
    - off_policy_mask_threshold δ rejects sequences with A < 0 and mean −log r > δ.
    - PPO's clips and VESPO are the only losses that are read. VESPO compares with the engine; its numbers have the same
      names in our `LossConfig`.

    Unsloth has another default for one field: write vllm_importance_sampling_correction=False. Raises `UsageError` for
    unknown keys and modes, for other losses, and for bounds that TRL ignores.
    """
    return from_trl_with_loss(source)[0]


def from_trl_with_loss(source: Any) -> tuple[CorrectionConfig, LossConfig]:
    """Return the configuration and the loss, which has VESPO's numbers if TRL's loss is VESPO.

    Arguments and errors are those of `from_trl`.
    """
    values = FIELDS | read_keys("TRL", source)
    if values["loss_type"] == "vespo":
        numbers = {name: number(name, values[name]) for name in VESPO_NUMBERS if name in values}
        return _from_vespo(values), LossConfig(numbers=numbers)
    if values["loss_type"] not in PPO_CLIPS:
        raise UsageError(
            f"TRL's loss_type {values['loss_type']!r} is not read, only {', '.join(PPO_CLIPS)} and vespo: leave it "
            f"out, and set our loss_type instead."
        )
    rules = _opsm(values)
    if not (switch("use_vllm", values["use_vllm"]) and switch(f"{_IS}_correction", values[f"{_IS}_correction"])):
        bounds = [name for name in FIELDS if name.startswith(_IS) and name != f"{_IS}_correction"]
        refuse_ignored("TRL", values, FIELDS, bounds, f"without use_vllm and {_IS}_correction")
        return CorrectionConfig(rollout_rs=rules), LossConfig()
    return _weights(values, rules), LossConfig()


def _weights(values: dict[str, Any], rules: tuple[RejectionRule, ...]) -> CorrectionConfig:
    names = [f"{level}_{mode}" for level in ("token", "sequence") for mode in ("truncate", "mask")]
    level, mode = choice(f"{_IS}_mode", values[f"{_IS}_mode"], names).split("_")
    upper, lower = (optional(f"{_IS}_clip_{side}", values[f"{_IS}_clip_{side}"]) for side in ("max", "min"))
    if upper is None and lower is None:
        if mode == "truncate":
            raise UsageError(f"TRL cannot clamp without a bound; nearest: {level}_mask, which then keeps every ratio.")
        return CorrectionConfig(rollout_is=level, rollout_is_threshold=math.inf, rollout_rs=rules)
    return CorrectionConfig(
        rollout_is=level,
        rollout_is_mode=mode,
        rollout_is_threshold=math.inf if upper is None else upper,
        rollout_is_threshold_lower=lower,
        rollout_rs=rules,
    )


def _opsm(values: dict[str, Any]) -> tuple[RejectionRule, ...]:
    threshold = values["off_policy_mask_threshold"]
    if threshold is None:
        return ()
    if not switch("use_vllm", values["use_vllm"]):
        raise UsageError(
            "without use_vllm TRL's off_policy_mask_threshold compares π_θ with π_old, which is no mismatch."
        )
    delta = number("off_policy_mask_threshold", threshold)
    return (RejectionRule.named("seq_mean_k1_negative", lower=math.exp(-delta)),)


def _from_vespo(values: dict[str, Any]) -> CorrectionConfig:
    required = {"use_vllm": True, **VESPO}
    if values["off_policy_mask_threshold"] is not None or any(
        values[name] != value for name, value in required.items()
    ):
        nearest = ", ".join(f"{name}={value!r}" for name, value in required.items())
        raise UsageError(f"TRL's VESPO with a bounded π_old/π_rollout is not known here; nearest: {nearest}.")
    return CorrectionConfig(bypass_mode=True, loss_type="vespo")


def to_trl(config: CorrectionConfig, loss: LossConfig | None = None) -> dict[str, Any]:
    """Return the arguments of GRPOConfig; `loss` has the numbers of VESPO. Raises `UsageError` for the rest."""
    if config.loss_type == "vespo":
        return _to_vespo(config, loss or LossConfig())
    refuse("TRL", config)
    fields: dict[str, Any] = {"use_vllm": True, f"{_IS}_correction": config.rollout_is is not None}
    lower, upper = config.rollout_is_threshold_lower, config.rollout_is_threshold
    if config.rollout_is is not None:
        # torch.clamp refuses two bounds of None; a mask with them keeps every ratio.
        mode = "mask" if upper == math.inf and lower is None else config.rollout_is_mode
        fields |= {
            f"{_IS}_mode": f"{config.rollout_is}_{mode}",
            f"{_IS}_clip_max": None if upper == math.inf else upper,
            f"{_IS}_clip_min": lower,
        }
    for rule in config.rollout_rs:
        if rule.name != "seq_mean_k1_negative" or rule.lower is None or rule.upper != math.inf:
            raise no_rule("TRL", rule, "rollout_is_mode='mask', or seq_mean_k1_negative with a lower bound")
        fields["off_policy_mask_threshold"] = minus_log(rule.lower)
    return fields


def _to_vespo(config: CorrectionConfig, loss: LossConfig) -> dict[str, Any]:
    if not config.bypass_mode or config.rollout_rs:
        raise UsageError(
            "TRL's VESPO includes π_old/π_rollout in its product, and has no other weights or rules; nearest: "
            "bypass_mode=True without rollout_rs."
        )
    return {"use_vllm": True, **VESPO, **{name: loss.number(name) for name in VESPO_NUMBERS}}
