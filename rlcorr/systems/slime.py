"""slime's flags and its mis.yaml from ours, and its dumps.

Source: v0.3.2, slime/utils/arguments.py (add_algo_arguments) and slime/utils/score_centering.py (commit 2e5cd7cd);
v0.3.1, commit 624b824a, slime/backends/megatron_utils/loss.py:884-931, and
examples/train_infer_mismatch_helper/mis.py:119-307.

With --pg-loss-type reinforce, which --use-score-centering also sets, --use-tis weights by π_θ/π_rollout. With PPO's
clip, the default, it weights by π_old/π_rollout.

A converted train_data/{id}.pt has lists over the response, under "samples". Its log_probs are those of π_old.
"""

import math
from typing import Any

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.errors import UsageError
from rlcorr.systems.mapping.facts import FACTS
from rlcorr.systems.mapping.refusals import bounds, minus_log, no_rule, refuse
from rlcorr.systems.mapping.serialize import as_flags, as_yaml, commented

PG_LOSS, CENTERING, HEAD = "pg_loss_type", "use_score_centering", "score_centering_top_k"
CENTERING_NEEDS = "score centering needs Megatron, --rollout-top-p 1 --rollout-top-k -1 and a temperature above 0"
ICEPOP = "slime.backends.megatron_utils.loss.icepop_function"
MIS_PATH = "examples.train_infer_mismatch_helper.mis.compute_mis_weights_with_cp"
LEVELS = {"token": "token_k1", "sequence": "seq_sum_k1", "geometric": "seq_mean_k1"}
NORMALISES = "{system} divides by the mean weight over all tokens, including the rejected ones"


def to_slime(config: CorrectionConfig, loss: LossConfig | None = None) -> dict[str, Any]:
    """Return slime's flags, or, if needed, the keys of mis.yaml. From `loss` comes score centering.

    Raises `UsageError` for what slime cannot do.
    """
    centered = loss is not None and loss.score_centering
    if centered or (config.bypass_mode and config.loss_type == "reinforce"):
        return _gradient(config, centered)
    return plain_flags(config)


def plain_flags(config: CorrectionConfig) -> dict[str, Any]:
    """Return the flags for PPO's clip, which slime's dialect miles has, too, or the keys of mis.yaml."""
    if config.bypass_mode:
        return _bypass(config)
    if config.rollout_is_batch_normalize and config.rollout_is == "geometric":
        raise UsageError("slime does not normalise geometric weights; nearest: rollout_is_batch_normalize=False.")
    refuse("slime", config)
    if config.rollout_is is None:
        if not config.rollout_rs:
            return {"use_tis": False}
        raise UsageError(
            "slime rejects only together with weights; nearest: rollout_is='token' with a threshold of 1e9."
        )
    flags = config.rollout_is == "token" and not config.rollout_rs and not config.rollout_is_batch_normalize
    return _flags(config) if flags else _mis(config)


def _gradient(config: CorrectionConfig, centered: bool) -> dict[str, Any]:
    """Return the flags for REINFORCE, whose weights are π_θ/π_rollout."""
    if not config.bypass_mode or config.loss_type != "reinforce":
        raise UsageError(
            "slime centers the scores of REINFORCE only; nearest: bypass_mode=True with loss_type='reinforce'."
        )
    if config.rollout_is not in (None, "token") or config.rollout_rs or config.rollout_is_batch_normalize:
        raise UsageError("slime's REINFORCE has token weights without rules; nearest: rollout_is='token'.")
    if config.denominator != "fixed":
        raise UsageError("slime divides by all response tokens; nearest: denominator='fixed'.")
    if config.rollout_is is not None and config.rollout_is_threshold == math.inf:
        raise UsageError("slime's --tis-clip is finite; nearest: rollout_is_threshold=1e9.")
    centering = {CENTERING: True, HEAD: 128} if centered else {}  # slime's default
    return {PG_LOSS: "reinforce"} | centering | ({} if config.rollout_is is None else _flags(config))


def _bypass(config: CorrectionConfig) -> dict[str, Any]:
    rule = config.rollout_rs[0] if len(config.rollout_rs) == 1 else None
    if config.loss_type != "ppo_clip" or config.denominator != "fixed" or (config.rollout_rs and rule is None):
        raise UsageError(
            "in bypass mode slime has REINFORCE, PPO's clip and its OPSM; nearest: ppo_clip, seq_mean_k1_negative."
        )
    if rule is None:
        return {"use_rollout_logprobs": True}
    if rule.name != "seq_mean_k1_negative" or rule.lower is None or rule.upper != math.inf:
        raise no_rule("slime", rule, "seq_mean_k1_negative with a lower bound, its OPSM")
    return {"use_rollout_logprobs": True, "use_opsm": True, "opsm_delta": minus_log(rule.lower)}


def _flags(config: CorrectionConfig) -> dict[str, Any]:
    low, high = config.rollout_is_threshold_lower or 0.0, float(config.rollout_is_threshold)
    fields = {"use_tis": True, "tis_clip": high, "tis_clip_low": low}
    return fields | ({"custom_tis_function_path": ICEPOP} if config.rollout_is_mode == "mask" else {})


def _mis(config: CorrectionConfig) -> dict[str, Any]:
    if config.rollout_is_mode == "mask":
        raise UsageError("slime's mis.yaml rejects what it masks; nearest: rollout_is_threshold=inf and a rule of k1.")
    rules = {rule.name: rule for rule in config.rollout_rs}
    veto, unknown_rules = rules.pop("seq_min_k1", None), [r for r in rules.values() if r.name not in LEVELS.values()]
    if unknown_rules or len(rules) > 1 or (veto is not None and veto.upper != math.inf):
        refused = unknown_rules[0] if unknown_rules else veto or list(rules.values())[1]
        raise no_rule("slime", refused, "one of token_k1, seq_sum_k1, seq_mean_k1 on both sides, and seq_min_k1 below")
    level, lower = config.rollout_is or "token", config.rollout_is_threshold_lower
    low, high = lower or 0.0, float(config.rollout_is_threshold)
    fields = FACTS["slime"].fields | {
        "tis_level": level, "tis_mode": "truncate" if lower is None else "clip", "tis_lower_bound": low,
        "tis_upper_bound": high, "tis_batch_normalize": config.rollout_is_batch_normalize,
    }  # fmt: skip
    if not config.rollout_rs:
        return fields | {"use_rs": False, "rs_veto_threshold": None}
    named = {name: theirs for theirs, name in LEVELS.items()}
    name, (rs_low, rs_high) = next(((n, bounds(r)) for n, r in rules.items()), ("token_k1", (0.0, math.inf)))
    return fields | {"rs_level": named[name], "rs_lower_bound": rs_low, "rs_upper_bound": rs_high,
                     "rs_veto_threshold": None if veto is None else veto.lower}  # fmt: skip


def slime_text(config: CorrectionConfig, loss: LossConfig | None = None) -> str:
    """Return the flags, and mis.yaml if it is needed. Raises `UsageError` as `to_slime` does."""
    return flags_text(to_slime(config, loss), "slime", MIS_PATH)


def flags_text(fields: dict[str, Any], system: str, mis_path: str) -> str:
    """Return flags, or the keys of mis.yaml, as text below a comment with the version."""
    version = FACTS[system].comment
    if "tis_level" not in fields:
        return commented(as_flags("--", fields, hyphens=True), [version, *[CENTERING_NEEDS] * (CENTERING in fields)])
    notes = [f"--use-tis --custom-config-path mis.yaml --custom-tis-function-path {mis_path}"]
    notes += [NORMALISES.format(system=system)] if fields["tis_batch_normalize"] and fields["use_rs"] else []
    return commented(as_yaml("", fields), [f"{version}, mis.yaml; on the command line:", *notes])
