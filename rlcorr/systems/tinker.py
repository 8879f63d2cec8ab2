"""Tinker's losses as ours and back (tinker-cookbook 0.6.1: Config and AsyncConfig of tinker_cookbook/rl/train.py).

Its losses compare π_θ with π_rollout, whose log-probs come with each token: bypass mode. The formulas are on the server
and documented (tinker-docs.thinkingmachines.ai/tinker/losses): importance_sampling is −r A with r = π_θ/π_rollout, ppo
clips r, cispo is −sg(clamp(r)) A log π_θ. The bounds are ratios, 0.8 and 1.2 by default.

stable_reinforce, the default of asynchronous runs and of several recipes, has a formula that is not published, so
nothing can be said about it. A run is asynchronous if it has an async_config.
"""

import math
from collections.abc import Mapping
from typing import Any

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.errors import UsageError, unknown
from rlcorr.systems.mapping.keys import known_keys, number, options, settings
from rlcorr.systems.mapping.refusals import is_unbounded, no_rule, refuse_centering, refuse_normalised
from rlcorr.systems.mapping.serialize import as_call, commented

FIELDS: dict[str, Any] = {"loss_fn": "importance_sampling", "loss_fn_config": None, "async_config": None}
"""The fields of Config that act on the correction, with their defaults."""
ASYNC_FIELDS = ("max_steps_off_policy", "groups_per_batch", "loss_fn")
LOW, HIGH = "clip_low_threshold", "clip_high_threshold"
BOUNDS = {LOW: 0.8, HIGH: 1.2}
"""Keys of loss_fn_config, for ppo and cispo."""
LOSSES = ("importance_sampling", "ppo", "cispo")
UNREAD = {
    "stable_reinforce": "its formula is not published",
    "cross_entropy": "it is no loss of reinforcement learning",
    "gspo": "its formula was not read",
    "dro": "its formula was not read",
}
"""Loss → why it is not read."""


def from_tinker(source: Any) -> tuple[CorrectionConfig, LossConfig]:
    """Return the correction and the loss's numbers of tinker-cookbook's Config.

    `source` is a mapping of its fields, or a Config. The fields of async_config that are not about the loss are
    accepted: `staleness` reads max_steps_off_policy.

    Raises `UsageError` for unknown keys, for losses that cannot be read, and for two different losses.

    >>> config, loss = from_tinker({"loss_fn": "ppo", "loss_fn_config": {"clip_high_threshold": 1.28}})
    >>> config.bypass_mode, config.loss_type, loss.clip_ratio_high
    (True, 'ppo_clip', 0.28)
    """
    values = settings("tinker-cookbook's Config", options("tinker-cookbook's Config", source), FIELDS)
    kind = _loss_of(values)
    bounds = {} if values["loss_fn_config"] is None else values["loss_fn_config"]
    known_keys(f"loss_fn_config of {kind}", bounds, () if kind == "importance_sampling" else BOUNDS)
    low, high = (number(name, bounds.get(name, default)) for name, default in BOUNDS.items())
    if kind == "ppo":
        clip = LossConfig(clip_ratio_low=float(f"{1 - low:.12g}"), clip_ratio_high=float(f"{high - 1:.12g}"))
        return CorrectionConfig(bypass_mode=True), clip
    weights: dict[str, Any] = {"rollout_is": "token", "bypass_mode": True, "loss_type": "reinforce"}
    if kind == "importance_sampling":
        return CorrectionConfig(rollout_is_threshold=math.inf, **weights), LossConfig()
    bounded = CorrectionConfig(rollout_is_threshold=high, rollout_is_threshold_lower=low or None, **weights)
    return bounded, LossConfig()


def _loss_of(values: dict[str, Any]) -> str:
    """Return the loss that the run trains with: the one of async_config, if there is an async_config."""
    asynchronous, kind = _async_of(values), values["loss_fn"]
    if asynchronous:
        kind = asynchronous.get("loss_fn", "stable_reinforce")
        if values["loss_fn"] not in (FIELDS["loss_fn"], kind):
            raise UsageError(f"tinker-cookbook refuses loss_fn {values['loss_fn']!r} next to {kind!r} in async_config.")
    if kind in UNREAD:
        raise UsageError(
            f"Tinker's loss {kind!r} is not read: {UNREAD[kind]}; nearest: importance_sampling, ppo, cispo."
        )
    if kind not in LOSSES:
        raise unknown("loss_fn of tinker-cookbook", str(kind), LOSSES)
    return kind


def _async_of(values: dict[str, Any]) -> dict[str, Any]:
    given = values["async_config"]
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        given = {name: getattr(given, name) for name in ASYNC_FIELDS}
    known_keys("tinker-cookbook's async_config", given, ASYNC_FIELDS)
    return dict(given)


def staleness(source: Any) -> int:
    """Return rollout.staleness of our trainer for tinker-cookbook's Config, which calls it max_steps_off_policy.

    Without async_config it is 0. Raises `UsageError` for unknown keys, and for a number that is no count.

    >>> staleness({"async_config": {"max_steps_off_policy": 2, "groups_per_batch": 8}})
    2
    """
    values = settings("tinker-cookbook's Config", options("tinker-cookbook's Config", source), FIELDS)
    steps = _async_of(values).get("max_steps_off_policy", 0)
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 0:
        raise UsageError(f"max_steps_off_policy must be a whole number of at least 0; got {steps!r}.")
    return steps


def to_tinker(config: CorrectionConfig, loss: LossConfig | None = None) -> dict[str, Any]:
    """Return the fields of Config; `loss` has the bounds of ppo. Raises `UsageError` for what Tinker cannot do.

    >>> to_tinker(CorrectionConfig(bypass_mode=True))
    {'loss_fn': 'ppo', 'loss_fn_config': {'clip_low_threshold': 0.8, 'clip_high_threshold': 1.2}}
    """
    loss = loss or LossConfig()
    refuse_centering("Tinker", loss)
    refuse_normalised("Tinker", config)
    if not config.bypass_mode or config.loss_type not in ("reinforce", "ppo_clip"):
        raise UsageError(
            "Tinker's losses compare π_θ with π_rollout; nearest: bypass_mode=True with loss_type='reinforce' "
            "(importance_sampling, cispo) or 'ppo_clip'."
        )
    if config.denominator == "kept":
        raise UsageError("Tinker sums over all tokens; nearest: denominator='fixed'.")
    if config.rollout_rs:
        raise no_rule("Tinker", config.rollout_rs[0], "loss_type='reinforce' with truncated token weights, its cispo")
    if config.loss_type == "ppo_clip":
        return _with_bounds("ppo", 1 - loss.clip_ratio_low, 1 + loss.clip_ratio_high)
    if is_unbounded(config):
        return {"loss_fn": "importance_sampling"}
    upper = config.rollout_is_threshold
    if config.rollout_is != "token" or config.rollout_is_mode == "mask" or upper == math.inf:
        raise UsageError("Tinker's cispo clamps token ratios; nearest: rollout_is='token', truncate, upper bound 1e9.")
    return _with_bounds("cispo", config.rollout_is_threshold_lower or 0.0, upper)


def _with_bounds(kind: str, low: float, high: float) -> dict[str, Any]:
    return {"loss_fn": kind, "loss_fn_config": {LOW: float(f"{low:.12g}"), HIGH: float(f"{high:.12g}")}}


def tinker_text(config: CorrectionConfig, loss: LossConfig | None = None) -> str:
    """Return the call of Config. Raises `UsageError` as `to_tinker` does."""
    return commented(as_call("Config", to_tinker(config, loss)), ["Tinker, tinker-cookbook 0.6.1"])
