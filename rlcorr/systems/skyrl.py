"""SkyRL's off_policy_correction as ours and back (0.4.0, the same as commit a9564572), and its dump of a batch (0.3.0).

Whatever one side cannot express is refused, and the error names the nearest setting; nothing is approximated silently.

SkyRL takes score centering with the loss reinforce, −A log π_θ, and with rollout_is, whose weight is π_θ/π_rollout
inside a band and 0 outside; it refuses a weight of off_policy_correction next to it. The head is the sampler's top_k
likeliest tokens. Source: pull request 2244 by SkyRL's maintainers at commit f16f5eae (skyrl/train/config/config.py,
ScoreCenteringConfig, and skyrl/train/utils/utils.py, validate_score_centering_cfg), read on 27 November 2026. Of 0.5.0
only the release notes were read: it has dppo and score centering by default, perhaps under other names.

The dump is dumped_data/global_step_N_training_input.pkl (trainer.dump_data_batch=true): a TrainingInputBatch of arrays.
Its response_mask covers the whole response, including the answers of tools; the loss runs over loss_mask. Source: SkyRL
0.3.0, skyrl/backends/skyrl_train/training_batch.py and skyrl/train/dataset/preprocess.py.
"""

import math
from typing import Any

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.errors import UsageError
from rlcorr.losses.score_centering import check_centering
from rlcorr.rules import RejectionRule
from rlcorr.systems.mapping.facts import FACTS
from rlcorr.systems.mapping.keys import below, choice, number, read_keys, refuse_ignored, switch
from rlcorr.systems.mapping.refusals import plain, refuse

FIELDS = FACTS["SkyRL"].fields
"""SkyRL's fields and defaults (commit a9564572)."""
DEPRECATED = {"use_tis": False, "tis_imp_ratio_cap": -1.0}
ALGORITHM = {**DEPRECATED, "policy_loss_type": "regular"}
"""Other keys of `trainer.algorithm` that act on the correction; regular was SkyRL's default up to 0.4.0."""
PARENT = "off_policy_correction"
CENTERING, CENTERING_FIELDS = "score_centering", {"enabled": False, "top_k": 32, "tail_eps": 1e-6}
BAND = {"eps_clip_low": 0.2, "eps_clip_high": 0.2}
"""Keys of `trainer.algorithm` that are the band of the loss rollout_is, with their defaults."""
LOG_PROBS = "logprobs"
"""Key of generator.sampling_params. SkyRL sets it to 1, with a warning, for weights and sequence masks only."""
DPPO_TYPES = {"dppo_tv": "binary_tv", "dppo_kl": "binary_kl"}
"""Our losses → the values of SkyRL's dppo.dppo_type."""
OUTLIERS = (
    ("outlier_token_is_threshold_low", "seq_min_k1", "lower"),
    ("outlier_token_is_threshold_high", "seq_max_k1", "upper"),
)
"""SkyRL's field, our rule and its bound."""
TOKEN_MASK = ("token_mask_is_threshold_low", "token_mask_is_threshold_high")
SEQUENCE_MASKS = {"product": ("seq_sum_k1", "product_mask"), "geometric": ("seq_mean_k1", "geo_mask")}


def from_skyrl(source: Any) -> CorrectionConfig:
    """Return the configuration of SkyRL's `trainer.algorithm.off_policy_correction`.

    outlier → seq_min_k1 and seq_max_k1, token mask → token_k1, sequence mask → seq_sum_k1 (product) or seq_mean_k1
    (geometric). A lower bound of 0 means no bound. A missing key has SkyRL's default. One difference remains: SkyRL
    sums a sequence over the tokens that its token mask keeps, and we sum over all tokens. So sequence weights and
    masks differ if there is a token mask as well.

    Args:
        source: a mapping, with or without these names around it, or SkyRL's own OffPolicyCorrectionConfig. As in
            `trainer.algorithm`, the mapping may have three keys next to off_policy_correction: the deprecated use_tis
            and tis_imp_ratio_cap, and policy_loss_type. The last must be regular, PPO's clip, which is assumed if it is
            missing. It was SkyRL's default up to 0.4.0; with dppo, 0.5.0's, a weight would count the gap twice.

    Raises:
        UsageError: for unknown keys, for what SkyRL would ignore or invert silently, and for an enabled
            score_centering, which `from_skyrl_with_loss` reads.
    """
    config, loss = from_skyrl_with_loss(source)
    if loss.score_centering:
        raise UsageError("score_centering belongs to the loss: leave it out, and set LossConfig(score_centering=True).")
    return config


def from_skyrl_with_loss(source: Any) -> tuple[CorrectionConfig, LossConfig]:
    """Return the configuration and the loss, which has score centering if SkyRL's mapping enables it.

    Arguments and errors are those of `from_skyrl`. With score centering, policy_loss_type is reinforce or rollout_is,
    whose band may be next to it.

    >>> pasted = {"algorithm": {"policy_loss_type": "reinforce", "score_centering": {"enabled": True}}}
    >>> from_skyrl_with_loss(pasted)[1].score_centering
    True
    """
    keys, block = read_keys("SkyRL", source), FACTS["SkyRL"].block
    algorithm = block.rpartition(".")[0]
    values = FIELDS | ALGORITHM | BAND | below(keys, algorithm) | below(keys, block)
    log_probs = keys.get(f"generator.sampling_params.{LOG_PROBS}", 1)
    if log_probs not in (0, 1):
        raise UsageError(
            f"generator.sampling_params.{LOG_PROBS} must be 1; got {log_probs!r}: without it there are no "
            f"rollout_logprobs, and a token mask or an outlier mask alone does nothing."
        )
    if switch(f"{CENTERING}.enabled", below(keys, f"{algorithm}.{CENTERING}").get("enabled", False)):
        return _from_centered(values), LossConfig(score_centering=True)
    _check_loss(values)
    _check_switches(values)
    level, cap = _weights(values)
    return CorrectionConfig(rollout_is=level, rollout_is_threshold=cap, rollout_rs=_rules(values)), LossConfig()


def _from_centered(values: dict[str, Any]) -> CorrectionConfig:
    kind = values["policy_loss_type"]
    if kind not in ("reinforce", "rollout_is"):
        raise UsageError(f"SkyRL centers the scores of reinforce and rollout_is; got policy_loss_type: {kind}.")
    if any(values[name] != default for name, default in (FIELDS | DEPRECATED).items()):
        raise UsageError("SkyRL refuses a weight or a mask of off_policy_correction next to score_centering.")
    if kind == "reinforce":
        return CorrectionConfig(bypass_mode=True, loss_type="reinforce")
    low, high = (number(name, values[name]) for name in BAND)
    return CorrectionConfig(
        rollout_is="token",
        rollout_is_threshold=plain(1 + high),
        rollout_is_threshold_lower=plain(1 - low) or None,
        rollout_is_mode="mask",
        bypass_mode=True,
        loss_type="reinforce",
    )


def _check_loss(values: dict[str, Any]) -> None:
    loss = values["policy_loss_type"]
    if loss == "dppo" and (values["tis_ratio_type"] is not None or values["use_tis"] is True):
        raise UsageError(
            "policy_loss_type dppo compares π_θ with π_rollout, so a weight with it counts the gap twice; write "
            "policy_loss_type: regular, or leave the weight out."
        )
    if loss != "regular":
        raise UsageError(
            f"off_policy_correction is read with policy_loss_type: regular; got {loss!r}: leave it out, and set our "
            f"loss_type to what is meant."
        )


def _check_switches(values: dict[str, Any]) -> None:
    """Raise `UsageError` for a bound whose switch is off, which SkyRL ignores."""
    level, metric = values["tis_ratio_type"], values["sequence_mask_metric"]
    switched = {f"{name}_tis_ratio_clip_high": ("tis_ratio_type", name, level) for name in ("token", "sequence")} | {
        f"{prefix}_{side}": ("sequence_mask_metric", name, metric)
        for name, (_, prefix) in SEQUENCE_MASKS.items()
        for side in ("low", "high")
    }
    for bound, (key, required, got) in switched.items():
        if got != required:
            refuse_ignored("SkyRL", values, FIELDS, [bound], f"without {key}: {required}")
    if values["use_tis"] is False:
        refuse_ignored("SkyRL", values, ALGORITHM, ["tis_imp_ratio_cap"], "without the deprecated use_tis: true")


def _weights(values: dict[str, Any]) -> tuple[str | None, float]:
    level = values["tis_ratio_type"]
    if switch("use_tis", values["use_tis"]):
        if level is not None:
            raise UsageError(f"use_tis overrides tis_ratio_type={level!r} in SkyRL: leave out the deprecated use_tis.")
        return "token", _cap(values, "tis_imp_ratio_cap")
    if level is None:
        return None, CorrectionConfig.rollout_is_threshold
    choice("tis_ratio_type", level, ("token", "sequence"))
    return level, _cap(values, f"{level}_tis_ratio_clip_high")


def _cap(values: dict[str, Any], name: str) -> float:
    cap = number(name, values[name])
    if not cap > 0:
        raise UsageError(
            f"{name} must be > 0; got {cap:g}. SkyRL takes min(ρ, cap), so every weight would be {cap:g}: the "
            f"default of tis_imp_ratio_cap, -1, reverses the gradient."
        )
    return cap


def _rules(values: dict[str, Any]) -> tuple[RejectionRule, ...]:
    """Return the rules of the outlier veto, of the token mask and of the sequence mask, in this order."""
    rules = [
        RejectionRule.named(rule, **{side: number(name, values[name])})
        for name, rule, side in OUTLIERS
        if values[name] is not None
    ]
    missing = [name for name in TOKEN_MASK if values[name] is None]
    if len(missing) == 1:
        raise UsageError(
            f"{missing[0]} is missing: SkyRL then leaves its token mask off. Give both, 0.0 or inf for no bound."
        )
    if not missing:
        rules.append(_ratio_rule(values, "token_k1", "token_mask_is_threshold"))
    if values["sequence_mask_metric"] is not None:
        metric = choice("sequence_mask_metric", values["sequence_mask_metric"], SEQUENCE_MASKS)
        rules.append(_ratio_rule(values, *SEQUENCE_MASKS[metric]))
    return tuple(rules)


def _ratio_rule(values: dict[str, Any], rule: str, prefix: str) -> RejectionRule:
    low, high = (number(f"{prefix}_{side}", values[f"{prefix}_{side}"]) for side in ("low", "high"))
    return RejectionRule.named(rule, lower=None if low == 0 else low, upper=high)


def to_skyrl(config: CorrectionConfig) -> dict[str, Any]:
    """Return SkyRL's `off_policy_correction`, every field. Raises `UsageError` for what SkyRL cannot do.

    It requires policy_loss_type: regular, which `skyrl_settings` writes next to it. The default of 0.5.0, dppo,
    compares π_θ with π_rollout itself, so a weight would count the gap twice.
    """
    if config.bypass_mode and config.loss_type in DPPO_TYPES:
        raise UsageError(
            f"SkyRL's {config.loss_type} is no correction; nearest: policy_loss_type: dppo, with dppo.dppo_type: "
            f"{DPPO_TYPES[config.loss_type]} and delta_low and delta_high next to it."
        )
    refuse("SkyRL", config)
    fields = dict(FIELDS)
    if config.rollout_is is not None:
        fields["tis_ratio_type"] = config.rollout_is
        fields[f"{config.rollout_is}_tis_ratio_clip_high"] = float(config.rollout_is_threshold)
    for rule in config.rollout_rs:
        fields |= _rule(rule)
    if {"seq_sum_k1", "seq_mean_k1"} <= {rule.name for rule in config.rollout_rs}:
        raise UsageError(
            "SkyRL has one sequence mask; nearest: keep either seq_sum_k1 (product) or seq_mean_k1 (geometric)."
        )
    return fields


def skyrl_settings(config: CorrectionConfig, loss: LossConfig) -> dict[str, Any]:
    """Return off_policy_correction, the loss that it requires, and the key that records the engine's log-probs.

    If the loss has score centering, return its keys and its loss. Raises `UsageError` as `to_skyrl` does.
    """
    if loss.score_centering:
        return {"trainer": {"algorithm": _to_centered(config)}}
    fields = {"policy_loss_type": ALGORITHM["policy_loss_type"], PARENT: to_skyrl(config)}
    return {"trainer": {"algorithm": fields}, "generator": {"sampling_params": {LOG_PROBS: 1}}}


def _to_centered(config: CorrectionConfig) -> dict[str, Any]:
    """Return the keys of `trainer.algorithm` for a policy gradient with score centering."""
    check_centering(config)
    if not config.bypass_mode or config.loss_type != "reinforce":
        raise UsageError(
            "SkyRL centers the scores of its losses reinforce and rollout_is, next to which it refuses tis_ratio_type; "
            "nearest: bypass_mode=True with loss_type='reinforce'."
        )
    centering = {PARENT: {"tis_ratio_type": None}, CENTERING: CENTERING_FIELDS | {"enabled": True}}
    if config.rollout_is is None:
        return {"policy_loss_type": "reinforce"} | centering
    low, high = config.rollout_is_threshold_lower or 0.0, float(config.rollout_is_threshold)
    if config.rollout_is_mode != "mask" or not 0 <= low < 1 < high < math.inf:
        raise UsageError(
            "SkyRL's rollout_is sets token weights outside a band around 1 to 0; nearest: rollout_is_mode='mask' with "
            "a lower bound below 1 and a finite upper bound above 1, or rollout_is=None (reinforce)."
        )
    widths = (plain(1 - low), plain(high - 1))
    return {"policy_loss_type": "rollout_is"} | dict(zip(BAND, widths, strict=True)) | centering


def _rule(rule: RejectionRule) -> dict[str, Any]:
    low, high = 0.0 if rule.lower is None else float(rule.lower), float(rule.upper)
    if rule.name == "seq_min_k1" and rule.upper == math.inf:
        return {"outlier_token_is_threshold_low": low}
    if rule.name == "seq_max_k1" and rule.lower is None:
        return {"outlier_token_is_threshold_high": high}
    if rule.name in ("seq_min_k1", "seq_max_k1"):
        raise UsageError(
            f"SkyRL's outlier veto is a lower bound on seq_min_k1 and an upper one on seq_max_k1; got {rule}."
        )
    if rule.name == "token_k1":
        return {"token_mask_is_threshold_low": low, "token_mask_is_threshold_high": high}
    for metric, (name, prefix) in SEQUENCE_MASKS.items():
        if rule.name == name:
            return {"sequence_mask_metric": metric, f"{prefix}_low": low, f"{prefix}_high": high}
    nearest = f"{'token' if rule.level == 'token' else 'seq_mean'}_k1"
    raise UsageError(
        f"SkyRL's rules bound ratios, and the same for every token, so it has no {rule.name}; nearest: {nearest}."
    )
