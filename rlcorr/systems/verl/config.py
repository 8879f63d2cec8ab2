"""verl's RolloutCorrectionConfig as ours and back: 0.9.1 (as commit 1dda039b), and main's score centering.

Score centering is from pull request 8010, read at commit c6236f51. KPop's binary_kl, of the open pull request 6800, is
read, too. verl writes a bound as a number or as text (see `thresholds`). The bounds of k1 act on 1/r.
"""

from collections.abc import Mapping
from typing import Any

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.errors import UsageError, unknown
from rlcorr.losses.score_centering import check_centering
from rlcorr.rules import RejectionRule
from rlcorr.systems.mapping.facts import FACTS
from rlcorr.systems.mapping.keys import below, read_keys, switch
from rlcorr.systems.mapping.serialize import as_yaml, commented, five_digits, short_number
from rlcorr.systems.verl.block import CENTERING, HEAD, block, check_needed
from rlcorr.systems.verl.thresholds import (
    OPTIONS,
    RULES,
    Bounds,
    parse_bounds,
    parse_options,
    parse_rule_bounds,
    rule_text,
    weight_text,
)

CENTERING_NEEDS = "score_centering needs the vLLM rollout with top_p 1 and top_k -1, and FSDP without fused kernels"
LOSSES = ("ppo_clip", "reinforce")
NOWHERE_IN_VERL = {
    "drpo": "loss_type='ppo_clip' with actor.policy_loss.loss_mode=dppo_tv, which bounds the gap that drpo penalises",
    **dict.fromkeys(("vespo", "fipo", "cppo", "ctpo"), "loss_type='ppo_clip'"),
}
"""Losses that verl 0.9.1 does not have → the nearest setting."""


DEFAULTS: dict[str, Any] = {
    "rollout_is": None,
    "rollout_is_threshold": 2.0,
    "rollout_is_batch_normalize": False,
    "rollout_rs": None,
    "rollout_rs_threshold": None,
    "bypass_mode": False,
    "loss_type": "ppo_clip",
    CENTERING: False,
}
"""verl's keys and the defaults of its YAML."""
RETIRED_RULES = {"token": "token_k1", "sequence": "seq_sum_k1", "geometric": "seq_mean_k1"}
"""Values of rollout_rs in verl 0.7, with bounds on r → today's, with bounds on 1/r."""


def from_verl(correction: Any) -> CorrectionConfig:
    """Return the configuration of verl's `algorithm.rollout_correction`.

    Two differences remain: we normalise weights after rejection, and verl's ppo_clip is our dual_clip with c = 3.
    One mistake cannot be detected: YAML reads an unquoted 0.5_2 as 0.52. Quote it and write dots: "0.5_2.0".

    Args:
        correction: a mapping, with or without these two names around it, or verl's own RolloutCorrectionConfig. It may
            have the keys of `block` next to it. A key that is missing has the default of verl's YAML. Next to a
            `_target_`, with which Hydra builds verl's class, rollout_is is required, because the class has another
            default for it.

    Raises:
        UsageError: for unknown keys, for numbers that verl would misread, for settings that verl would ignore silently,
            or accept and then fail on, and for score_centering: true, which `from_verl_with_loss` reads.
    """
    config, loss = from_verl_with_loss(correction)
    if loss.score_centering:
        raise UsageError(
            "score_centering belongs to the loss: read both with from_verl_with_loss, or leave it out, and set "
            "LossConfig(score_centering=True)."
        )
    return config


def from_verl_with_loss(correction: Any) -> tuple[CorrectionConfig, LossConfig]:
    """Return the configuration and the loss, which has score centering if verl's mapping has it.

    Arguments and errors are those of `from_verl`. Raises `UsageError` also where verl refuses score centering: without
    bypass_mode and reinforce, with weights of sequences or divided by their mean, and without a head (topk_log_probs).

    >>> pasted = {"bypass_mode": True, "loss_type": "reinforce", "score_centering": True}
    >>> from_verl_with_loss(pasted)[1].score_centering
    True
    """
    keys = read_keys("verl", correction)
    settings = DEFAULTS | _without_target(below(keys, FACTS["verl"].block))
    level, bypass, loss = (settings[name] for name in ("rollout_is", "bypass_mode", "loss_type"))
    _check_switches(settings)
    _check_names(level, bypass, loss)
    head = check_needed(keys, is_bypass=bypass is True)
    bounds, rules = _weight_bounds(level, settings["rollout_is_threshold"]), _rules(settings)
    config = CorrectionConfig(
        rollout_is=level,
        **bounds.of_weights(),
        rollout_is_batch_normalize=settings["rollout_is_batch_normalize"],
        rollout_rs=rules,
        bypass_mode=bypass,
        loss_type=loss,
    )
    centered = switch(CENTERING, settings[CENTERING])
    if centered:
        _check_centering(config)
        if head == 0:
            raise UsageError(f"{CENTERING} needs {HEAD}, the size of the sampler's head; got 0, nearest: 128.")
    return config, LossConfig(score_centering=centered)


def _without_target(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings without the `_target_` of verl's class. Raises `UsageError` if it names another one."""
    if "_target_" not in settings:
        return settings
    target = settings.pop("_target_")
    if target != "" and str(target).rpartition(".")[2] != "RolloutCorrectionConfig":
        raise UsageError(f"_target_ must be empty or name verl's RolloutCorrectionConfig; got {target!r}.")
    if "rollout_is" not in settings:
        raise UsageError(
            "rollout_is is missing next to _target_: verl's class then has 'sequence', and its YAML null. Write it."
        )
    return settings


def _check_centering(config: CorrectionConfig) -> None:
    """Raise `UsageError` for a correction with which verl refuses score centering."""
    if not config.bypass_mode or config.loss_type != "reinforce":
        raise UsageError(
            "verl centers the scores of its policy gradient only; nearest: bypass_mode=True, loss_type='reinforce'."
        )
    check_centering(config)


def _weight_bounds(level: Any, threshold: Any) -> Bounds:
    if threshold is None and level is not None:
        raise UsageError(
            f"rollout_is_threshold is null: verl then computes no weights, although rollout_is is {level!r}. Give a "
            f'number or "lower_upper".'
        )
    threshold = DEFAULTS["rollout_is_threshold"] if threshold is None else threshold
    _refuse_second_underscore("rollout_is_threshold", threshold)
    return parse_bounds("rollout_is_threshold", threshold)


def _rules(settings: Mapping[str, Any]) -> tuple[RejectionRule, ...]:
    rollout_rs, threshold = settings["rollout_rs"], settings["rollout_rs_threshold"]
    if rollout_rs is None:
        return ()
    names = parse_options(rollout_rs)
    for name in names:
        if name in RETIRED_RULES:
            raise UsageError(
                f"rollout_rs={name!r} is a name of verl 0.7, with bounds on r; now write {RETIRED_RULES[name]}, whose "
                f"bounds are on 1/r."
            )
        if name not in RULES:
            raise unknown("rollout_rs of verl", name, RULES)
    _refuse_second_underscore("rollout_rs_threshold", threshold)
    parsed = parse_rule_bounds(rollout_rs, names, threshold)
    return tuple(RejectionRule.named(rule, lower=bounds.lower, upper=bounds.upper) for rule, bounds in parsed)


def _refuse_second_underscore(name: str, threshold: Any) -> None:
    """Raise `UsageError` for "0.5_2_0", which verl reads as 0.5 to 20."""
    for part in threshold.split(",") if isinstance(threshold, str) else ():
        if part.count("_") > 1:
            raise UsageError(
                f'{name} must be a number or "lower_upper" with one "_", as in "0.5_2.0"; got {part.strip()!r}.'
            )


def _check_switches(settings: Mapping[str, Any]) -> None:
    """Raise `UsageError` for a threshold whose switch is off, which verl ignores."""
    level, threshold = settings["rollout_is"], settings["rollout_is_threshold"]
    if isinstance(level, bool):
        raise UsageError(f"rollout_is={level!r} is an older verl's; now it is token, sequence, or null for no weights.")
    if level is None and threshold not in (None, 2.0):  # 2.0 is in verl's YAML, next to rollout_is: null
        raise UsageError(
            f"verl ignores rollout_is_threshold={threshold!r} without rollout_is: leave it out, or give both."
        )
    value = settings["rollout_rs_threshold"]
    if settings["rollout_rs"] is None and value is not None:
        raise UsageError(f"verl ignores rollout_rs_threshold={value!r} without rollout_rs: leave it out, or give both.")


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


def to_verl(config: CorrectionConfig, loss: LossConfig | None = None) -> dict[str, Any]:
    """Return verl's `algorithm.rollout_correction`, every field. Raises `UsageError` for what verl cannot do.

    Pairs of bounds are text with dots, "0.5_5.0", which YAML does not read as a number. From `loss` comes
    score_centering, which only main has.
    """
    _refuse_loss(config)
    centered = loss is not None and loss.score_centering
    if centered:
        _check_centering(config)
    rules = config.rollout_rs
    if any(rule.name == "token_binary_kl" for rule in rules):
        raise UsageError(
            "verl takes rollout_rs='binary_kl' and raises when it first runs, because no release has it: it is KPop's "
            "rule, from the open pull request 6800; nearest: seq_mean_k3."
        )
    thresholds = [rule_text(rule) for rule in rules]
    one_number = len(rules) == 1 and rules[0].divergence != "k1"
    return {
        "rollout_is": config.rollout_is,
        "rollout_is_threshold": weight_text(config),
        "rollout_is_batch_normalize": config.rollout_is_batch_normalize,
        "rollout_rs": ",".join(OPTIONS[rule.name] for rule in rules) or None,
        "rollout_rs_threshold": float(rules[0].upper) if one_number else ",".join(thresholds) or None,
        "bypass_mode": config.bypass_mode,
        "loss_type": config.loss_type,
    } | ({CENTERING: True} if centered else {})


def verl_text(config: CorrectionConfig, loss: LossConfig | None = None) -> str:
    """Return YAML: `algorithm.rollout_correction` and the keys that it needs. Raises `UsageError` as `to_verl` does."""
    correction, facts = to_verl(config, loss), FACTS["verl"]
    notes = [facts.centering or "", CENTERING_NEEDS] if CENTERING in correction else [facts.comment]
    return commented(as_yaml("", block(correction, config)), [*notes, *inverted_notes(config)])


def inverted_notes(config: CorrectionConfig) -> list[str]:
    """Return a sentence for each rule whose bounds verl puts on 1/r.

    >>> inverted_notes(CorrectionConfig(rollout_rs=(RejectionRule.named("seq_mean_k1", lower=0.97, upper=1.05),)))
    ['verl bounds 1/r: 0.95238_1.0309 of seq_mean_k1 keeps r from 0.97 to 1.05']
    """
    return [
        f"verl bounds 1/r: {five_digits(rule_text(rule))} of {rule.name} keeps r from {short_number(rule.lower or 0)} "
        f"to {short_number(rule.upper)}"
        for rule in config.rollout_rs
        if rule.divergence == "k1"
    ]


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
