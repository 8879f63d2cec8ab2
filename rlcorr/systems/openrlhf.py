"""OpenRLHF's is_correction flags as ours and back (0.11.2: openrlhf/models/loss.py:121-247, cli/train_ppo_ray.py).

0.11.2 has a level, a mode, a gate and a threshold; 0.11.0 (commit 3c3be623) had a switch and a type, and 0.9.9 the same
under other names. A gate drops tokens, or sequences by their mean; what stays keeps its own ratio, unbounded.
"""

import math
from typing import Any

from rlcorr.config import CorrectionConfig
from rlcorr.errors import UsageError
from rlcorr.rules import RejectionRule
from rlcorr.systems.mapping.keys import (
    choice,
    number,
    of_other_versions,
    options,
    pair,
    refuse_ignored,
    settings,
    switch,
    version_of,
)
from rlcorr.systems.mapping.refusals import alone, band, bounds, raw, refuse
from rlcorr.systems.mapping.serialize import as_flags, commented

VERSIONS = ("0.11.2", "0.11.0", "0.9.9")
FIELDS: dict[str, Any] = {
    "is_correction_level": "off",
    "is_correction_mode": "mask",
    "is_correction_gating": "ratio",
    "is_correction_threshold": (0.5, 5.0),
}
"""The flags of 0.11.2 under --algo.advantage, and their defaults."""
FIELDS_0_11_0: dict[str, Any] = {
    "is_correction_enable": False,
    "is_correction_type": "tis",
    "is_correction_threshold": (0.5, 5.0),
}
NAMES_0_9_9 = {
    "is_correction_enable": "enable_vllm_is_correction",
    "is_correction_type": "vllm_is_correction_type",
    "is_correction_threshold": "vllm_is_truncated_threshold",
}
NAMES = {"0.11.2": tuple(FIELDS), "0.11.0": tuple(FIELDS_0_11_0), "0.9.9": tuple(NAMES_0_9_9.values())}
RETIRED = {"use_icepop": "it is now is_correction_mode mask in 0.11.2, or the type icepop before"}
GATES = {"binary_kl": "forward_kl", "tv": "prob_gap"}
MEANT = {
    "binary_kl": "binary_kl is KL(π_rollout‖π_old) in OpenRLHF, and in verl, as here, the larger of both directions; "
    "nearest: forward_kl, which is OpenRLHF's.",
    "tv": "tv is |π_old − π_rollout| in OpenRLHF, and |r − 1| here; nearest: prob_gap, which is OpenRLHF's.",
}
"""Names that it gives to another divergence."""
"""OpenRLHF's gate → our divergence."""


def from_openrlhf(given: Any, *, version: str = "0.11.2") -> CorrectionConfig:
    """Return the configuration of the flags, a mapping {flag: value} with or without `--algo.advantage.`, or of
    OpenRLHF's own `args.algo.advantage`.

    token clip → weights truncated on both sides; token mask with the ratio → weights 0 outside; a sequence's geometric
    mean, or the mean of its binary KL(π_rollout‖π_old) or of |π_rollout − π_old|, → a rule beside raw token ratios.
    Raises `UsageError` for unknown keys, names and versions, and for what OpenRLHF refuses or ignores.
    """
    version_of("OpenRLHF", version, VERSIONS)
    retired = RETIRED | of_other_versions("OpenRLHF", version, NAMES)
    given = options("OpenRLHF's correction", given, ("algo", "advantage"), retired)
    if version == "0.9.9" and isinstance(given, dict):
        given = {{new: old for old, new in NAMES_0_9_9.items()}.get(key, key): value for key, value in given.items()}
    if version != "0.11.2":
        return _from_0_11_0(settings(f"OpenRLHF {version}'s correction", given, FIELDS_0_11_0))
    held = settings("OpenRLHF's correction", given, FIELDS)
    level = choice("is_correction_level", held["is_correction_level"], ("off", "token", "seq"))
    mode = choice("is_correction_mode", held["is_correction_mode"], ("mask", "clip"))
    gate = choice("is_correction_gating", held["is_correction_gating"], ("ratio", *GATES))
    if mode == "clip" and (level == "seq" or gate != "ratio"):
        raise UsageError("is_correction_mode clip goes with level token and gating ratio alone in OpenRLHF.")
    if level == "off":
        refuse_ignored("OpenRLHF", held, FIELDS, list(FIELDS)[1:], "with is_correction_level off")
        return CorrectionConfig()
    low, high = _threshold(held["is_correction_threshold"], one=gate != "ratio")
    if gate != "ratio":
        prefix = "token" if level == "token" else "seq_mean"
        return _gated(RejectionRule.named(f"{prefix}_{GATES[gate]}", upper=high))
    return _gated(band("seq_mean_k1", low, high)) if level == "seq" else _weights(low, high, mode)


def _threshold(given: Any, *, one: bool) -> tuple[float, float]:
    if isinstance(given, tuple | list) and len(given) == 1:
        given = (0.0, given[0])
    low, high = (
        pair("is_correction_threshold", given)
        if isinstance(given, tuple | list)
        else (0.0, number("is_correction_threshold", given))
    )
    if one and low > 0:
        raise UsageError(f"a divergence has an upper bound only in OpenRLHF; is_correction_threshold is {given!r}.")
    return low, high


def _from_0_11_0(held: dict[str, Any]) -> CorrectionConfig:
    if not switch("is_correction_enable", held["is_correction_enable"]):
        refuse_ignored("OpenRLHF", held, FIELDS_0_11_0, list(FIELDS_0_11_0)[1:], "without is_correction_enable")
        return CorrectionConfig()
    # Before 0.9.5 one number bounded r above.
    low, high = _threshold(held["is_correction_threshold"], one=False)
    kind = choice("is_correction_type", held["is_correction_type"], ("tis", "icepop", "seq-mask-tis"))
    if kind == "seq-mask-tis":
        return _gated(band("seq_mean_k1", low, high))
    return _weights(low, high, "clip" if kind == "tis" else "mask")


def _weights(low: float, high: float, mode: str) -> CorrectionConfig:
    return CorrectionConfig(
        rollout_is="token",
        rollout_is_threshold=high,
        rollout_is_threshold_lower=low or None,
        rollout_is_mode="truncate" if mode == "clip" else "mask",
    )


def _gated(rule: RejectionRule) -> CorrectionConfig:
    return CorrectionConfig(rollout_is="token", rollout_is_threshold=math.inf, rollout_rs=(rule,))


def to_openrlhf(config: CorrectionConfig, *, version: str = "0.11.2") -> dict[str, Any]:
    """The flags without their prefix. Raises `UsageError` for what OpenRLHF cannot do."""
    version_of("OpenRLHF", version, VERSIONS)
    refuse("OpenRLHF", config, bypass="policy_loss_type gspo, whose ratio is π_θ/π_rollout", loss="policy_loss_type")
    level, mode, gate, threshold = _said(config)
    if version == "0.11.2":
        return dict(zip(FIELDS, (level, mode, gate, threshold), strict=True))
    if gate != "ratio":
        raise UsageError(f"OpenRLHF {version} gates by ratios only; nearest: version='0.11.2'.")
    kind = "seq-mask-tis" if level == "seq" else "tis" if mode == "clip" else "icepop"
    fields = dict(zip(FIELDS_0_11_0, (level != "off", kind, threshold), strict=True))
    return fields if version == "0.11.0" else {NAMES_0_9_9[name]: value for name, value in fields.items()}


def _said(config: CorrectionConfig) -> tuple[str, str, str, tuple[float, float]]:
    """Level, mode, gate and threshold."""
    gates = {f"{prefix}_{ours}": (level, theirs) for prefix, level in (("token", "token"), ("seq_mean", "seq"))
             for theirs, ours in GATES.items()} | {"seq_mean_k1": ("seq", "ratio")}  # fmt: skip
    for other in config.rollout_rs:
        if other.divergence in MEANT:
            raise UsageError(MEANT[other.divergence])
    rule = alone("OpenRLHF", config.rollout_rs, gates, "seq_mean_k1, or a mean of forward_kl or prob_gap")
    if config.rollout_is is None and rule is None:
        return "off", "mask", "ratio", (0.5, 5.0)
    if config.rollout_is != "token":
        raise UsageError(
            f"OpenRLHF's weights are token ratios; nearest: rollout_is='token'; got {config.rollout_is!r}."
        )
    if rule is None:
        lower, upper = config.rollout_is_threshold_lower or 0.0, float(config.rollout_is_threshold)
        return "token", "clip" if config.rollout_is_mode == "truncate" else "mask", "ratio", (lower, upper)
    if not raw(config):
        raise UsageError("what OpenRLHF's gate keeps has its raw ratio; nearest: rollout_is_threshold=inf beside it.")
    level, gate = gates[rule.name]
    return level, "mask", gate, bounds(rule)


def openrlhf_text(config: CorrectionConfig, *, version: str = "0.11.2") -> str:
    """The flags of `openrlhf.cli.train_ppo_ray`. Raises `UsageError` as `to_openrlhf` does."""
    prefix = "--" if version == "0.9.9" else "--algo.advantage."
    return commented(as_flags(to_openrlhf(config, version=version), prefix), [f"OpenRLHF {version}"])
