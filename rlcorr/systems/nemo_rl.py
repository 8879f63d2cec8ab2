"""NeMo RL's loss_fn as ours and back, and its dump.

Source: v0.7.0, commit 7ea279ab, nemo_rl/algorithms/loss/loss_functions.py:111-165, 292-325, 566-690, and
nemo_rl/algorithms/grpo.py, seq_logprob_error_threshold.

train_data_step{N}.jsonl has arrays over prompt and response, and two masks.
"""

import math
from collections.abc import Mapping
from typing import Any

from rlcorr.config import CorrectionConfig
from rlcorr.errors import UsageError
from rlcorr.rules import RejectionRule
from rlcorr.systems.mapping.dumps import Dump
from rlcorr.systems.mapping.keys import choice, known_keys, number, optional, options, refuse_ignored, switch
from rlcorr.systems.mapping.refusals import bounds, is_unbounded, no_rule, ratio_rule, require_plain
from rlcorr.systems.mapping.serialize import as_yaml, commented

DUMP = Dump(
    columns=frozenset({"generation_logprobs", "prev_logprobs"}),
    renamed={"content": "responses"},  # the text of prompt and response
    mask_over_dummy="token_loss_mask",
    row_mask="sample_loss_mask",
)

_TIS = "truncated_importance_sampling"
FIELDS: dict[str, Any] = {
    "use_importance_sampling_correction": False,
    f"{_TIS}_type": None,
    f"{_TIS}_ratio": None,
    f"{_TIS}_ratio_min": None,
    "sequence_level_importance_ratios": False,
}
"""Fields of `loss_fn`, with NeMo RL's defaults."""
RATIOS = (f"{_TIS}_ratio", f"{_TIS}_ratio_min")
ERROR = "seq_logprob_error_threshold"


def from_nemo_rl(source: Mapping[str, Any]) -> CorrectionConfig:
    """Return the configuration of NeMo RL's `loss_fn` and of seq_logprob_error_threshold, which is under `grpo`.

    `source` is a mapping {"loss_fn": …, "grpo": …}, or only the keys of `loss_fn`. tis clamps r, icepop sets r to 0
    outside the bounds, seq-mask-tis rejects by the geometric mean and keeps the raw r. Without a type, r stays raw.

    Raises `UsageError` for unknown keys and types, for what NeMo RL refuses, for GSPO's sequence ratios, and for a
    ratio without a type: NeMo RL ignores it, while an earlier version (pull request 1348) clamped at it.
    """
    source = options("NeMo RL's configuration", source)
    if isinstance(source, Mapping) and source and not source.keys() & {"loss_fn", "grpo"}:
        source = {"loss_fn": source}
    known_keys("NeMo RL's configuration", source, ("loss_fn", "grpo"))
    known_keys("NeMo RL's grpo", source.get("grpo", {}), (ERROR,))
    known_keys("NeMo RL's loss_fn", source.get("loss_fn", {}), FIELDS)
    values = FIELDS | dict(source.get("loss_fn", {}))
    error = optional(ERROR, source.get("grpo", {}).get(ERROR))
    rules = () if error is None else (RejectionRule.named("seq_mean_mult_error", upper=error),)
    kind = values[f"{_TIS}_type"]
    if switch("sequence_level_importance_ratios", values["sequence_level_importance_ratios"]):
        raise UsageError("sequence_level_importance_ratios is GSPO's ratio, unbounded; nearest: rollout_is='sequence'.")
    if not switch("use_importance_sampling_correction", values["use_importance_sampling_correction"]):
        if kind is not None:
            raise UsageError(f"NeMo RL refuses {_TIS}_type without use_importance_sampling_correction: true.")
        refuse_ignored("NeMo RL", values, FIELDS, RATIOS, "without use_importance_sampling_correction: true")
        return CorrectionConfig(rollout_rs=rules)
    return _weights(kind, values, rules)


def _weights(kind: Any, values: dict[str, Any], rules: tuple[RejectionRule, ...]) -> CorrectionConfig:
    weights: dict[str, Any] = {"rollout_is": "token", "rollout_is_threshold": math.inf}
    if kind is None:
        refuse_ignored("NeMo RL", values, FIELDS, RATIOS, f"without {_TIS}_type (tis clamps at it)")
        return CorrectionConfig(**weights, rollout_rs=rules)
    choice(f"{_TIS}_type", kind, ("tis", "icepop", "seq-mask-tis"))
    upper, lower = number(f"{_TIS}_ratio", values[f"{_TIS}_ratio"]), values[f"{_TIS}_ratio_min"]
    if kind != "tis":
        lower = number(f"{_TIS}_ratio_min", lower)
    lower = optional(f"{_TIS}_ratio_min", lower)
    if kind == "seq-mask-tis":
        return CorrectionConfig(**weights, rollout_rs=(ratio_rule("seq_mean_k1", lower, upper), *rules))
    return CorrectionConfig(
        rollout_is="token",
        rollout_is_threshold=upper,
        rollout_is_threshold_lower=lower or None,
        rollout_is_mode="truncate" if kind == "tis" else "mask",
        rollout_rs=rules,
    )


def to_nemo_rl(config: CorrectionConfig) -> dict[str, Any]:
    """Return `loss_fn` and, if needed, `grpo`. Raises `UsageError` for what NeMo RL cannot do."""
    require_plain(
        "NeMo RL",
        config,
        bypass="force_on_policy_ratio, which leaves the clip out",
        loss="loss_fn.use_cispo and the like",
    )
    rules = {rule.name: rule for rule in config.rollout_rs}
    error, geometric = rules.pop("seq_mean_mult_error", None), rules.pop("seq_mean_k1", None)
    if rules:
        raise no_rule("NeMo RL", next(iter(rules.values())), "seq_mean_k1 with raw weights, or seq_mean_mult_error")
    loss_fn: dict[str, Any] = {"loss_fn": FIELDS | _loss_fields(config, geometric)}
    return loss_fn | ({} if error is None else {"grpo": {ERROR: float(error.upper)}})


def _loss_fields(config: CorrectionConfig, geometric: RejectionRule | None) -> dict[str, Any]:
    on = {"use_importance_sampling_correction": True}
    if geometric is not None:
        if not is_unbounded(config):
            raise UsageError(
                "NeMo RL's seq-mask-tis weighs kept tokens with raw ratios; nearest: token, rollout_is_threshold=inf."
            )
        low, high = bounds(geometric)
        if high == math.inf:
            raise no_rule("NeMo RL", geometric, "an upper bound of 1e9")
        return on | {f"{_TIS}_type": "seq-mask-tis", f"{_TIS}_ratio": high, f"{_TIS}_ratio_min": low}
    if config.rollout_is is None:
        return {}
    if config.rollout_is != "token":
        raise UsageError(f"NeMo RL's weights are token ratios; nearest: rollout_is='token'; got {config.rollout_is!r}.")
    if is_unbounded(config):
        return on
    low, high = config.rollout_is_threshold_lower, float(config.rollout_is_threshold)
    if config.rollout_is_mode == "truncate":
        return on | {f"{_TIS}_type": "tis", f"{_TIS}_ratio": high, f"{_TIS}_ratio_min": low}
    return on | {f"{_TIS}_type": "icepop", f"{_TIS}_ratio": high, f"{_TIS}_ratio_min": low or 0.0}


def nemo_rl_text(config: CorrectionConfig) -> str:
    """Return YAML. Raises `UsageError` as `to_nemo_rl` does."""
    return commented(as_yaml("", to_nemo_rl(config)), ["NeMo RL v0.7.0"])
