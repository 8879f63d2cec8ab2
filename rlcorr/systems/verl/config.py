"""verl's RolloutCorrectionConfig as ours and back: 0.7, 0.9.1 (as commit 1dda039b), main with pull request 6800.

verl writes a bound as a number or as text (`thresholds`); those of k1 act on 1/r, and acted on r in 0.7.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from rlcorr.config import CorrectionConfig
from rlcorr.errors import UsageError, unknown
from rlcorr.rules import RejectionRule
from rlcorr.systems.mapping.keys import known_keys, options, version_of
from rlcorr.systems.mapping.serialize import as_yaml, commented
from rlcorr.systems.verl import v0_7
from rlcorr.systems.verl.thresholds import OPTIONS, rule_text, rules, weight_bounds, weight_text

KEYS = (
    "rollout_is", "rollout_is_threshold", "rollout_is_batch_normalize", "rollout_rs", "rollout_rs_threshold",
    "bypass_mode", "loss_type",
)  # fmt: skip
VERSIONS = ("0.9.1", "main", "0.7")
"""main is that with pull request 6800 (KPop's binary_kl), open in October 2026."""
_CAP = "an older verl capped token ratios with it, in actor; now it is rollout_is: token with rollout_is_threshold: cap"
RETIRED = {
    "rollout_is_level": "an older verl had it beside rollout_is: true; now write rollout_is: token, or sequence",
    "rollout_is_mode": "an older verl had truncate, which is now one number as rollout_is_threshold, and mask, now "
    "rollout_rs (token_k1, seq_sum_k1 or seq_mean_k1) with rollout_rs_threshold",
    "rollout_is_threshold_lower": "an older verl had it; now both bounds are one text, as in rollout_is_threshold: "
    '"0.5_5.0"',
    "rollout_is_veto_threshold": "an older verl had it, and 0.7 calls it rollout_token_veto_threshold; today's "
    "has no veto, nearest: rollout_rs: seq_max_k2",
    **dict.fromkeys(("tis_imp_ratio_cap", "imp_ratio_cap", "behav_imp_weight_cap"), _CAP),
    "bypass_old_logprob_for_rollout": "it is now bypass_mode",
    **dict.fromkeys(
        ("use_pure_rollout_correction", "use_policy_gradient"), "it is now bypass_mode: true with loss_type: reinforce"
    ),
}
"""Keys of verl before its `rollout_correction` had today's (pull requests 2953, 3694, 3915, 4070, 4511)."""
LOSSES = ("ppo_clip", "reinforce")
NOWHERE_IN_VERL = {
    "drpo": "loss_type='ppo_clip' with actor.policy_loss.loss_mode=dppo_tv, which bounds what drpo penalises",
    **dict.fromkeys(("vespo", "fipo", "cppo"), "loss_type='ppo_clip'"),
}
"""What comes nearest in verl 0.9.1 to a loss that no setting of it has."""


def from_verl(correction: Any, *, version: str | None = None) -> CorrectionConfig:
    """Return the configuration of verl's `algorithm.rollout_correction`, a mapping with or without these names around
    it, or of verl's own RolloutCorrectionConfig.

    A key that is left out has the default of verl's YAML; beside a `_target_`, by which Hydra would build verl's class,
    rollout_is must be there, because the class has another default for it.

    version: "0.9.1", "main", "0.7", or None, which is 0.7 where one of its own keys is there and main elsewhere. Raises
    `UsageError` for unknown keys, for numbers that verl would misread, and for what it would ignore without a word or
    accept and raise later. Two differences stay: weights
    are normalised after rejection, and verl's ppo_clip is our dual_clip with c = 3.

    One mistake cannot be seen: YAML takes an unquoted 0.5_2 for 0.52 and 1_2 for 12. Quote it, with dots: "0.5_2.0".
    """
    mapping = _fields_of(options("verl's rollout correction", correction, ("algorithm", "rollout_correction"), RETIRED))
    version = _version(version) if version is not None else "0.7" if v0_7.speaks(mapping) else "main"
    old = version == "0.7"
    known_keys("verl's rollout correction", mapping, (*KEYS, *v0_7.KEYS) if old else KEYS)
    _check_switches(mapping)
    level, bypass = mapping.get("rollout_is"), mapping.get("bypass_mode", False)
    loss = mapping.get("loss_type", "ppo_clip")
    _check_names(level, bypass, loss)
    lower, upper = weight_bounds(mapping, old)
    return CorrectionConfig(
        rollout_is=level,
        rollout_is_threshold=upper,
        rollout_is_threshold_lower=lower,
        rollout_is_mode="truncate" if lower is None else "mask",
        rollout_is_batch_normalize=mapping.get("rollout_is_batch_normalize", False),
        rollout_rs=v0_7.rules(mapping) if old else _checked(rules(mapping), version),
        bypass_mode=bypass,
        loss_type=loss,
    )


def _fields_of(correction: Any) -> Any:
    """The keys of verl's class without its `_target_`; anything else as it is, to be checked by who reads it."""
    if is_dataclass(correction) and not isinstance(correction, type):
        correction = {f.name: getattr(correction, f.name) for f in fields(correction)}
    if not isinstance(correction, Mapping) or "_target_" not in correction:
        return correction
    target = correction["_target_"]
    if target != "" and str(target).rpartition(".")[2] != "RolloutCorrectionConfig":
        raise UsageError(f"_target_ must be empty or name verl's RolloutCorrectionConfig; got {target!r}.")
    if "rollout_is" not in correction:
        raise UsageError(
            "rollout_is is missing beside _target_: verl's class takes 'sequence' then, and its YAML null. Write it."
        )
    return {key: correction[key] for key in correction if key != "_target_"}


def _version(version: str) -> str:
    return version_of("verl", "0.7" if version == "0.7.0" else version, VERSIONS)


def _checked(rules: tuple[RejectionRule, ...], version: str) -> tuple[RejectionRule, ...]:
    if version == "0.9.1" and any(rule.name == "token_binary_kl" for rule in rules):
        raise UsageError(
            "verl 0.9.1 takes rollout_rs='binary_kl' and raises when it first runs; nearest: version='main', with pull "
            "request 6800, or seq_mean_k3."
        )
    return rules


def _check_switches(mapping: Mapping[str, Any]) -> None:
    """Raise `UsageError` for thresholds without what they are the thresholds of; verl does not look at them."""
    level, threshold = mapping.get("rollout_is"), mapping.get("rollout_is_threshold")
    if isinstance(level, bool):
        raise UsageError(f"rollout_is={level!r} is an older verl's; now it is token, sequence, or null for no weights.")
    if level is None and threshold not in (None, 2.0):  # 2.0 is in verl's YAML, beside rollout_is: null
        raise UsageError(
            f"verl ignores rollout_is_threshold={threshold!r} without rollout_is: leave it out, or give both."
        )
    for name in ("rollout_rs_threshold", "rollout_rs_threshold_lower"):
        if mapping.get("rollout_rs") is None and mapping.get(name) is not None:
            raise UsageError(f"verl ignores {name}={mapping[name]!r} without rollout_rs: leave it out, or give both.")


def _check_names(level: Any, bypass: Any, loss: Any) -> None:
    if level not in (None, "token", "sequence"):
        raise unknown("rollout_is of verl", str(level), ("token", "sequence"))
    if loss not in LOSSES:
        raise unknown("loss_type of verl's rollout correction", str(loss), LOSSES)
    if bypass is True and level is not None and loss == "ppo_clip":
        raise UsageError(
            f"in bypass mode with ppo_clip verl computes the weights of rollout_is={level!r} for its metrics only: "
            f"applied, they would correct twice, since the clip already contains π_θ/π_rollout. Set rollout_is to "
            f"null, or loss_type to reinforce."
        )


def to_verl(config: CorrectionConfig, *, version: str = "0.9.1") -> dict[str, Any]:
    """verl's `algorithm.rollout_correction`, every field.

    Pairs of bounds are text with dots, "0.5_5.0", which YAML leaves alone. Raises `UsageError` for what verl cannot do.
    """
    version = _version(version)
    _refuse_loss(config)
    if version == "0.7":
        return v0_7.written(config)
    chosen = _checked(config.rollout_rs, version)
    specs = [rule_text(rule) for rule in chosen]
    alone = len(chosen) == 1 and chosen[0].divergence != "k1"
    return {
        "rollout_is": config.rollout_is,
        "rollout_is_threshold": weight_text(config),
        "rollout_is_batch_normalize": config.rollout_is_batch_normalize,
        "rollout_rs": ",".join(OPTIONS[rule.name] for rule in chosen) or None,
        "rollout_rs_threshold": float(chosen[0].upper) if alone else ",".join(specs) or None,
        "bypass_mode": config.bypass_mode,
        "loss_type": config.loss_type,
    }


def verl_text(config: CorrectionConfig, *, version: str = "0.9.1") -> str:
    """YAML under `algorithm.rollout_correction`. Raises `UsageError` as `to_verl` does."""
    text = as_yaml("algorithm.rollout_correction", to_verl(config, version=version))
    return commented(text, [f"verl {_version(version)}"])


def _refuse_loss(config: CorrectionConfig) -> None:
    loss = config.loss_type
    if config.denominator == "kept":
        raise UsageError("verl has no key for denominator='kept'; nearest: 'fixed', as its default trainer divides.")
    if loss == "gpg" and config.bypass_mode:
        raise UsageError("verl's bypass mode does not know 'gpg'; nearest: loss_type='reinforce', the same loss.")
    if loss in NOWHERE_IN_VERL:
        raise UsageError(f"verl 0.9.1 has no loss {loss!r}; nearest: {NOWHERE_IN_VERL[loss]}.")
    if loss not in LOSSES:
        mode = "vanilla" if loss == "dual_clip" else loss
        raise UsageError(
            f"verl's rollout correction does not know the loss {loss!r}; nearest: translate with loss_type='ppo_clip', "
            f"set actor.policy_loss.loss_mode={mode} there."
        )
