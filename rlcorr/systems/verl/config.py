"""verl's RolloutCorrectionConfig as ours and back: 0.9.1 (as commit 1dda039b), and main's score centering.

Score centering is from pull request 8010, read at commit c6236f51. KPop's binary_kl, of the open pull request 6800, is
read, too. verl writes a bound as a number or as text (see `thresholds`). The bounds of k1 act on 1/r.

verl ignores algorithm.rollout_correction without the keys next to it. Without calculate_log_probs the batch has no
rollout_log_probs, and verl skips the correction without a message. In bypass mode the workers make the loss, and they
do not see the block (issues 4272 and 4912): without loss_mode: bypass_mode and a copy of it they run PPO's clip. Score
centering also needs topk_log_probs, the size of the sampler's head.
"""

from collections.abc import Mapping
from typing import Any

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.errors import UsageError, unknown
from rlcorr.losses.score_centering import check_centering
from rlcorr.systems.mapping.facts import FACTS
from rlcorr.systems.mapping.keys import below, read_keys, switch
from rlcorr.systems.mapping.refusals import refuse
from rlcorr.systems.mapping.serialize import as_yaml, commented, five_digits, short_number
from rlcorr.systems.verl.thresholds import OPTIONS, of_weights, parse_bounds, parse_rules, rule_text, weight_text

CENTERING, HEAD, LOG_PROBS, LOSS_MODE = "score_centering", "topk_log_probs", "calculate_log_probs", "bypass_mode"
CENTERING_NEEDS = "score_centering needs the vLLM rollout with top_p 1 and top_k -1, and FSDP without fused kernels"
HEAD_SIZE = 128
"""The size of the head in verl's example; its default, 0, records none."""
REFERENCE = "${algorithm.rollout_correction}"
"""How verl's files refer to the block, so that its numbers are written once."""
LOSSES = ("ppo_clip", "reinforce")
DEFAULTS = FACTS["verl"].fields
"""verl's keys and the defaults of its YAML."""


def from_verl(correction: Any) -> CorrectionConfig:
    """Return the configuration of verl's `algorithm.rollout_correction`.

    Two differences remain: we normalise weights after rejection, and verl's ppo_clip is our dual_clip with c = 3.
    One mistake cannot be detected: YAML reads an unquoted 0.5_2 as 0.52. Quote it and write dots: "0.5_2.0".

    Args:
        correction: a mapping, with or without these two names around it, or verl's own RolloutCorrectionConfig. It may
            have the keys next to it that it needs. A key that is missing has the default of verl's YAML. Next to a
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
    bypass_mode and reinforce, and with weights of sequences or divided by their mean.

    >>> pasted = {"bypass_mode": True, "loss_type": "reinforce", "score_centering": True}
    >>> from_verl_with_loss(pasted)[1].score_centering
    True
    """
    keys = read_keys("verl", correction)
    written = below(keys, FACTS["verl"].block)
    if written.pop("_target_", None) is not None and "rollout_is" not in written:
        raise UsageError(
            "rollout_is is missing next to _target_: verl's class then has 'sequence', and its YAML null. Write it."
        )
    settings = DEFAULTS | written
    _check_settings(settings)
    _check_needed(keys, is_bypass=settings["bypass_mode"] is True)
    threshold = settings["rollout_is_threshold"]
    bounds = parse_bounds("rollout_is_threshold", DEFAULTS["rollout_is_threshold"] if threshold is None else threshold)
    rules = settings["rollout_rs"]
    config = CorrectionConfig(
        rollout_is=settings["rollout_is"],
        **of_weights(bounds),
        rollout_is_batch_normalize=settings["rollout_is_batch_normalize"],
        rollout_rs=() if rules is None else parse_rules(rules, settings["rollout_rs_threshold"]),
        bypass_mode=settings["bypass_mode"],
        loss_type=settings["loss_type"],
    )
    centered = switch(CENTERING, settings[CENTERING])
    if centered:
        _check_centering(config)
    return config, LossConfig(score_centering=centered)


def _check_settings(settings: Mapping[str, Any]) -> None:
    """Raise `UsageError` for a name that verl does not have, and for a setting that it ignores."""
    level, threshold, loss = settings["rollout_is"], settings["rollout_is_threshold"], settings["loss_type"]
    rule_threshold = settings["rollout_rs_threshold"]
    if isinstance(level, bool):
        raise UsageError(f"rollout_is={level!r} is an older verl's; now it is token, sequence, or null for no weights.")
    if level is None and threshold not in (None, 2.0):  # 2.0 is in verl's YAML, next to rollout_is: null
        raise UsageError(
            f"verl ignores rollout_is_threshold={threshold!r} without rollout_is: leave it out, or give both."
        )
    if settings["rollout_rs"] is None and rule_threshold is not None:
        raise UsageError(
            f"verl ignores rollout_rs_threshold={rule_threshold!r} without rollout_rs: leave it out, or give both."
        )
    if level not in (None, "token", "sequence"):
        raise unknown("rollout_is of verl", str(level), ("token", "sequence"))
    if loss not in LOSSES:
        raise unknown("loss_type of verl's rollout correction", str(loss), LOSSES)
    if level is not None and threshold is None:
        raise UsageError(
            f"rollout_is_threshold is null: verl then computes no weights, although rollout_is is {level!r}. Give a "
            f'number or "lower_upper".'
        )
    if settings["bypass_mode"] is True and level is not None and loss == "ppo_clip":
        raise UsageError(
            f"in bypass mode with ppo_clip verl computes the weights of rollout_is={level!r} for its metrics only: "
            f"applied, they would correct twice, since the clip already contains π_θ/π_rollout. Set rollout_is to "
            f"null, or loss_type to reinforce."
        )


def _check_needed(keys: Mapping[str, Any], *, is_bypass: bool) -> None:
    """Raise `UsageError` if the keys next to the block have values with which verl would ignore the correction."""
    rollout = below(keys, "actor_rollout_ref.rollout")
    loss = below(keys, "actor_rollout_ref.actor.policy_loss")
    if rollout.get(LOG_PROBS, True) is not True:
        raise UsageError(
            f"{LOG_PROBS} is {rollout[LOG_PROBS]!r}: verl then has no rollout_log_probs and skips the correction "
            f"without a message. Write true."
        )
    if loss and not is_bypass:
        raise UsageError(f"loss_mode: {LOSS_MODE} needs bypass_mode: true in the rollout correction.")
    if loss and loss.get("rollout_correction") != REFERENCE:
        raise UsageError(
            f"policy_loss is read with loss_mode: {LOSS_MODE} and rollout_correction: {REFERENCE} only; got {loss!r}."
        )


def _check_centering(config: CorrectionConfig) -> None:
    """Raise `UsageError` for a correction with which verl refuses score centering."""
    if not config.bypass_mode or config.loss_type != "reinforce":
        raise UsageError(
            "verl centers the scores of its policy gradient only; nearest: bypass_mode=True, loss_type='reinforce'."
        )
    check_centering(config)


def to_verl(config: CorrectionConfig, loss: LossConfig | None = None) -> dict[str, Any]:
    """Return verl's `algorithm.rollout_correction`, every field. Raises `UsageError` for what verl cannot do.

    Pairs of bounds are text with dots, "0.5_5.0", which YAML does not read as a number. From `loss` comes
    score_centering, which only main has.
    """
    refuse("verl", config)
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
    """Return YAML: `algorithm.rollout_correction` and the keys that it needs. Raises `UsageError` as `to_verl` does.

    A comment is written for each rule whose bounds verl puts on 1/r.
    """
    correction, facts = to_verl(config, loss), FACTS["verl"]
    notes = [facts.centering or "", CENTERING_NEEDS] if CENTERING in correction else [facts.comment]
    notes += [
        f"verl bounds 1/r: {five_digits(rule_text(rule))} of {rule.name} keeps r from {short_number(rule.lower or 0)} "
        f"to {short_number(rule.upper)}"
        for rule in config.rollout_rs
        if rule.divergence == "k1"
    ]
    needed: dict[str, Any] = {"rollout": {LOG_PROBS: True} | ({HEAD: HEAD_SIZE} if CENTERING in correction else {})}
    if config.bypass_mode and (config.rollout_rs or config.loss_type == "reinforce"):
        needed["actor"] = {"policy_loss": {"loss_mode": LOSS_MODE, "rollout_correction": REFERENCE}}
    block = {"algorithm": {"rollout_correction": correction}, "actor_rollout_ref": needed}
    return commented(as_yaml("", block), notes)


def _refuse_loss(config: CorrectionConfig) -> None:
    loss = config.loss_type
    if loss == "gpg" and config.bypass_mode:
        raise UsageError("verl's bypass mode does not know 'gpg'; nearest: loss_type='reinforce', the same loss.")
    if loss in (nearest := FACTS["verl"].nearest):
        raise UsageError(f"verl 0.9.1 has no loss {loss!r}; nearest: {nearest[loss]}.")
    if loss not in LOSSES:
        mode = "vanilla" if loss == "dual_clip" else loss
        raise UsageError(
            f"verl's rollout correction does not know the loss {loss!r}; nearest: translate with loss_type='ppo_clip', "
            f"set actor.policy_loss.loss_mode={mode} there."
        )
