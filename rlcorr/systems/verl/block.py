"""The keys next to verl's algorithm.rollout_correction without which verl ignores it (read at commit 1dda039b).

Without actor_rollout_ref.rollout.calculate_log_probs the batch has no rollout_log_probs, and verl skips the correction
without a message. In bypass mode the loss is made in the workers, which do not see algorithm.rollout_correction
(issues 4272 and 4912): without loss_mode: bypass_mode and a copy of the block they run PPO's clip.
"""

from collections.abc import Mapping
from typing import Any

from rlcorr.config import CorrectionConfig
from rlcorr.errors import UsageError
from rlcorr.systems.mapping.keys import known_keys, options

KEY, LOG_PROBS, LOSS_MODE = "actor_rollout_ref", "calculate_log_probs", "bypass_mode"
REFERENCE = "${algorithm.rollout_correction}"
"""How verl's files refer to the block, so that its numbers are written once."""


def block(correction: Mapping[str, Any], config: CorrectionConfig, version: str) -> dict[str, Any]:
    """Return `algorithm.rollout_correction` together with the keys that it needs."""
    needed: dict[str, Any] = {"rollout": {LOG_PROBS: True}}
    if config.bypass_mode and version != "0.7" and (config.rollout_rs or config.loss_type == "reinforce"):
        needed["actor"] = {"policy_loss": {"loss_mode": LOSS_MODE, "rollout_correction": REFERENCE}}
    return {"algorithm": {"rollout_correction": correction}, KEY: needed}


def split_block(source: Any, retired: Mapping[str, str] | None = None) -> tuple[Any, bool]:
    """Return the configuration without these keys, and whether they set the loss of bypass mode.

    `retired` are the names of older versions, as in `options`. Raises `UsageError` for values with which verl would
    ignore the correction, and for other keys below the same name.

    >>> split_block({"actor_rollout_ref.rollout.calculate_log_probs": True, "algorithm.rollout_correction": {}})
    ({'algorithm': {'rollout_correction': {}}}, False)
    """
    if not isinstance(source, Mapping) or not any(str(key).lstrip("+").startswith(KEY) for key in source):
        return source, False
    rest = options("verl's configuration", source, retired=retired)
    needed = rest.pop(KEY)
    known_keys(f"verl's {KEY}", needed, ("rollout", "actor"))
    rollout = needed.get("rollout", {LOG_PROBS: True})
    known_keys(f"verl's {KEY}.rollout", rollout, (LOG_PROBS,))
    if rollout.get(LOG_PROBS) is not True:
        raise UsageError(
            f"{LOG_PROBS} is {rollout.get(LOG_PROBS)!r}: verl then has no rollout_log_probs and skips the correction "
            f"without a message. Write true."
        )
    return rest, "actor" in needed and _is_bypass(needed["actor"])


def _is_bypass(actor: Any) -> bool:
    known_keys(f"verl's {KEY}.actor", actor, ("policy_loss",))
    policy_loss = actor["policy_loss"]
    known_keys("verl's policy_loss", policy_loss, ("loss_mode", "rollout_correction"))
    if policy_loss.get("loss_mode") != LOSS_MODE or policy_loss.get("rollout_correction") != REFERENCE:
        raise UsageError(
            f"policy_loss is read with loss_mode: {LOSS_MODE} and rollout_correction: {REFERENCE} only; got "
            f"{policy_loss!r}."
        )
    return True
