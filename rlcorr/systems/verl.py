"""verl's RolloutCorrectionConfig as ours and back (verl main, commit 1dda039b; v0.7.0; binary_kl of PR 6800).

verl writes a bound as a number or as text. For weights, u truncates above u and "lower_upper" zeroes outside. For k2,
k3 and binary_kl, u is the upper bound. For k1, u means "1/u_u", and the bounds act on 1/r; in v0.7.0 they acted on r.
"""

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from rlcorr.config import CorrectionConfig
from rlcorr.errors import UsageError, unknown
from rlcorr.rules import RejectionRule
from rlcorr.systems.keys import known_keys, number

KEYS = (
    "rollout_is", "rollout_is_threshold", "rollout_is_batch_normalize", "rollout_rs", "rollout_rs_threshold",
    "bypass_mode", "loss_type",
)  # fmt: skip
V070_KEYS = ("rollout_rs_threshold_lower", "rollout_token_veto_threshold")
V070_RULES = {"token": "token_k1", "sequence": "seq_sum_k1", "geometric": "seq_mean_k1"}
_SAME_NAME = (
    "token_k1", "token_k2", "token_k3", "seq_sum_k1", "seq_sum_k2", "seq_sum_k3", "seq_mean_k1", "seq_mean_k2",
    "seq_mean_k3", "seq_max_k2", "seq_max_k3",
)  # fmt: skip
RULES = {name: name for name in _SAME_NAME} | {"binary_kl": "token_binary_kl"}
OPTIONS = {ours: theirs for theirs, ours in RULES.items()}
LOSSES = ("ppo_clip", "reinforce")


def from_verl(correction: Any, *, version: str | None = None) -> CorrectionConfig:
    """verl's `algorithm.rollout_correction`, as a mapping or as verl's own RolloutCorrectionConfig.

    A key that is left out has the default of verl's YAML; beside a `_target_`, by which Hydra would build verl's class,
    rollout_is must be there, because the class has another default for it.

    version: "main", "0.7.0", or None, which is 0.7.0 where one of its own keys is there and main elsewhere. A
    rollout_rs_threshold without rollout_rs is not read. Raises `UsageError` for unknown keys, for numbers that verl
    would misread, and for what it would ignore without a word. Two differences stay: weights are normalised after
    rejection, and verl's ppo_clip is our dual_clip with c = 3.

    One mistake cannot be seen: YAML takes an unquoted 0.5_2 for 0.52 and 1_2 for 12. Quote it, with dots: "0.5_2.0".
    """
    mapping = _fields_of(correction)
    if version not in (None, "main", "0.7.0"):
        raise unknown("version of verl", str(version), ("main", "0.7.0"))
    old = version == "0.7.0" or (version is None and _has_v070_keys(mapping))
    known_keys("verl's rollout correction", mapping, (*KEYS, *V070_KEYS) if old else KEYS)
    level, bypass = mapping.get("rollout_is"), mapping.get("bypass_mode", False)
    loss = mapping.get("loss_type", "ppo_clip")
    _check_names(level, bypass, loss)
    lower, upper = _weight_bounds(mapping, old)
    return CorrectionConfig(
        rollout_is=level,
        rollout_is_threshold=upper,
        rollout_is_threshold_lower=lower,
        rollout_is_mode="truncate" if lower is None else "mask",
        rollout_is_batch_normalize=mapping.get("rollout_is_batch_normalize", False),
        rollout_rs=_v070_rules(mapping) if old else _rules(mapping),
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


def _has_v070_keys(mapping: Any) -> bool:
    return isinstance(mapping, Mapping) and any(key in mapping for key in V070_KEYS)


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


def _weight_bounds(mapping: Mapping[str, Any], old: bool) -> tuple[float | None, float]:
    spec = mapping.get("rollout_is_threshold", 2.0)
    if spec is None and mapping.get("rollout_is") is None:
        spec = 2.0
    if spec is None:
        raise UsageError(
            f"rollout_is_threshold is null: verl then computes no weights, although rollout_is is "
            f'{mapping["rollout_is"]!r}. Give a number or "lower_upper".'
        )
    return (None, number("rollout_is_threshold", spec)) if old else _pair("rollout_is_threshold", spec)


def _rules(mapping: Mapping[str, Any]) -> tuple[RejectionRule, ...]:
    if mapping.get("rollout_rs") is None:
        return ()
    options = list(dict.fromkeys(_split("rollout_rs", mapping["rollout_rs"])))
    for option in options:
        if option in V070_RULES:
            raise UsageError(
                f"rollout_rs={option!r} is a name of verl v0.7.0: read it with version='0.7.0', or write "
                f"{V070_RULES[option]}, whose bounds verl puts on 1/r."
            )
        if option not in RULES:
            raise unknown("rollout_rs of verl", option, RULES)
    return tuple(_rule(option, spec) for option, spec in zip(options, _specs(mapping, options), strict=True))


def _specs(mapping: Mapping[str, Any], options: list[str]) -> list[Any]:
    """One threshold for each option; a single one is shared by all."""
    spec = mapping.get("rollout_rs_threshold")
    if spec is None:
        raise _no_threshold(mapping)
    specs = _split("rollout_rs_threshold", spec) if isinstance(spec, str) else [spec]
    specs = specs * len(options) if len(specs) == 1 else specs
    if len(specs) != len(options):
        raise UsageError(f"rollout_rs_threshold must hold 1 or {len(options)} thresholds; got {spec!r}.")
    return specs


def _no_threshold(mapping: Mapping[str, Any]) -> UsageError:
    return UsageError(f"rollout_rs={mapping['rollout_rs']!r} needs rollout_rs_threshold; got none.")


def _rule(option: str, spec: Any) -> RejectionRule:
    name = f"rollout_rs_threshold of {option}"
    lower, upper = _pair(name, spec)
    if not option.endswith("_k1"):
        if lower is not None:
            raise UsageError(f"{name} must be one upper bound, without '_'; got {spec!r}.")
        return RejectionRule.named(RULES[option], upper=upper)
    lower = _reciprocal(name, upper) if lower is None else lower
    if not 0 < lower <= upper:
        raise UsageError(f"{name} must be lower_upper with 0 < lower ≤ upper; got {spec!r}.")
    # verl compares −log r with the logarithms of its bounds, so it keeps 1/upper ≤ r ≤ 1/lower.
    return RejectionRule.named(option, lower=None if upper == math.inf else inverse(upper), upper=inverse(lower))


def _v070_rules(mapping: Mapping[str, Any]) -> tuple[RejectionRule, ...]:
    rules = []
    if mapping.get("rollout_rs") is not None:
        if mapping["rollout_rs"] not in tuple(V070_RULES):
            raise unknown("rollout_rs of verl v0.7.0", str(mapping["rollout_rs"]), V070_RULES)
        if mapping.get("rollout_rs_threshold") is None:
            raise _no_threshold(mapping)
        upper = number("rollout_rs_threshold", mapping["rollout_rs_threshold"])
        low = mapping.get("rollout_rs_threshold_lower")
        lower = _reciprocal("rollout_rs_threshold", upper) if low is None else number("rollout_rs_threshold_lower", low)
        rules.append(RejectionRule.named(V070_RULES[mapping["rollout_rs"]], lower=lower, upper=upper))
    veto = mapping.get("rollout_token_veto_threshold")
    if veto is not None:
        rules.append(RejectionRule.named("seq_min_k1", lower=number("rollout_token_veto_threshold", veto)))
    return tuple(rules)


def _reciprocal(name: str, upper: float) -> float:
    """The lower bound that verl takes where only an upper one is given."""
    if not 1 <= upper < math.inf:
        raise UsageError(f"{name}: one number u means 1/u to u, so it must be finite and ≥ 1; got {upper:g}.")
    return inverse(upper)


def _split(name: str, text: Any) -> list[str]:
    if not isinstance(text, str):
        raise UsageError(f"{name} must be text, comma-separated; got {text!r}.")
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise UsageError(f"{name} is empty; got {text!r}.")
    return parts


def _pair(name: str, spec: Any) -> tuple[float | None, float]:
    """A number, "upper" or "lower_upper" → (lower or None, upper)."""
    if not isinstance(spec, str):
        return None, number(name, spec)
    parts = spec.split("_")
    try:
        numbers = [float(part) for part in parts]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 2):
        raise UsageError(f'{name} must be a number or "lower_upper" with one "_", as in "0.5_2.0"; got {spec!r}.')
    return (numbers[0] if len(numbers) == 2 else None), numbers[-1]


def inverse(x: float) -> float:
    """1/x, as the shortest decimal whose own inverse is x again: there and back gives the same digits."""
    candidates = (float(f"{1 / x:.{digits}g}") for digits in range(1, 18))
    return next((y for y in candidates if y and 1 / y == x), 1 / x)


def to_verl(config: CorrectionConfig) -> dict[str, Any]:
    """verl's `algorithm.rollout_correction`, every field; binary_kl needs PR 6800.

    Pairs of bounds are text with dots, "0.5_5.0", which YAML leaves alone. Raises `UsageError` for what verl cannot do.
    """
    _refuse_loss(config)
    rules = config.rollout_rs
    specs = [_rule_text(rule) for rule in rules]
    alone = len(rules) == 1 and rules[0].divergence != "k1"
    return {
        "rollout_is": config.rollout_is,
        "rollout_is_threshold": _weight_text(config),
        "rollout_is_batch_normalize": config.rollout_is_batch_normalize,
        "rollout_rs": ",".join(OPTIONS[rule.name] for rule in rules) or None,
        "rollout_rs_threshold": float(rules[0].upper) if alone else ",".join(specs) or None,
        "bypass_mode": config.bypass_mode,
        "loss_type": config.loss_type,
    }


def _refuse_loss(config: CorrectionConfig) -> None:
    loss = config.loss_type
    if config.denominator == "kept":
        raise UsageError("verl has no key for denominator='kept'; nearest: 'fixed', as its default trainer divides.")
    if loss == "gpg" and config.bypass_mode:
        raise UsageError("verl's bypass mode does not know 'gpg'; nearest: loss_type='reinforce', the same loss.")
    if loss not in LOSSES:
        mode = "vanilla" if loss == "dual_clip" else loss
        raise UsageError(
            f"verl's rollout correction does not know the loss {loss!r}: translate with loss_type='ppo_clip' and set "
            f"actor.policy_loss.loss_mode={mode} there."
        )


def _weight_text(config: CorrectionConfig) -> float | str:
    lower, upper = config.rollout_is_threshold_lower, config.rollout_is_threshold
    if config.rollout_is is None:
        return 2.0  # verl's default, which nobody reads
    if config.rollout_is == "geometric":
        raise UsageError("verl has no geometric weights; nearest: rollout_is='sequence', or a seq_mean_k1 rule.")
    if config.rollout_is_mode == "mask":
        if lower is None:
            raise UsageError(
                "verl masks weights only between two bounds; nearest: rollout_is_threshold_lower=1e-9, below every "
                "weight, which verl clamps at e^-20."
            )
        return f"{dotted(lower)}_{dotted(upper)}"
    if lower is not None:
        raise UsageError(
            f"verl truncates weights above only; nearest: no rollout_is_threshold_lower (got {lower:g}), or "
            f"rollout_is_mode='mask'."
        )
    return "inf" if upper == math.inf else float(upper)


_NEAREST = {
    "prob_diff": "actor.policy_loss.loss_mode=dppo_tv, which bounds it inside the loss",
    "signed_kl": "token_binary_kl, or actor.policy_loss.loss_mode=dppo_kl",
    "tv": "the same rule with k2",
    "mult_error": "the same rule with k2, upper = (log bound)²/2",
    "binary_kl": "token_binary_kl",
    "k1": "seq_max_k2 with upper = (log bound)²/2, a veto on both sides",
}


def _rule_text(rule: RejectionRule) -> str:
    if rule.applies_to != "all":
        everywhere = rule.name.removesuffix(f"_{rule.applies_to}")
        raise UsageError(f"verl's rules do not look at advantages, so not {rule.name}; nearest: {everywhere}.")
    if rule.name not in OPTIONS:
        raise UsageError(f"verl has no rule {rule.name}; nearest: {_NEAREST[rule.divergence]}.")
    if rule.divergence != "k1":
        return dotted(rule.upper)
    if rule.upper == math.inf:
        raise UsageError(
            f"verl's {rule.name} always has an upper bound on r; nearest: upper=1e9, which only a sum can exceed."
        )
    return f"{dotted(inverse(rule.upper))}_{dotted(math.inf if rule.lower is None else inverse(rule.lower))}"


def dotted(x: float) -> str:
    """A number that has a dot also with an exponent, so that YAML takes no pair of them for one number."""
    text = repr(float(x))
    return text if "." in text else text.replace("e", ".0e")
