"""The keys next to verl's algorithm.rollout_correction without which verl ignores it (read at commit 1dda039b).

Without actor_rollout_ref.rollout.calculate_log_probs the batch has no rollout_log_probs, and verl skips the correction
without a message. In bypass mode the loss is made in the workers, which do not see algorithm.rollout_correction
(issues 4272 and 4912): without loss_mode: bypass_mode and a copy of the block they run PPO's clip.

Score centering (pull request 8010, read at commit c6236f51) also needs topk_log_probs, the size of the sampler's head.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from rlcorr.config import CorrectionConfig
from rlcorr.errors import UsageError
from rlcorr.systems.mapping.keys import known_keys, number, options

KEY, LOG_PROBS, LOSS_MODE = "actor_rollout_ref", "calculate_log_probs", "bypass_mode"
REFERENCE = "${algorithm.rollout_correction}"
"""How verl's files refer to the block, so that its numbers are written once."""
CENTERING, HEAD = "score_centering", "topk_log_probs"
HEAD_SIZE = 128
"""The size of the head in verl's example; its default, 0, records none."""
FULL_SUPPORT = {"name": "vllm", "top_p": 1.0, "top_k": -1, "logprobs_mode": "processed_logprobs"}
"""Keys next to topk_log_probs → the only value with which verl accepts it."""


class Pasted(NamedTuple):
    """What was pasted: the correction, whether the keys set the loss of bypass mode, and the size of the head."""

    correction: Any
    is_loss_set: bool = False
    head: int | None = None


def block(correction: Mapping[str, Any], config: CorrectionConfig) -> dict[str, Any]:
    """Return `algorithm.rollout_correction` together with the keys that it needs."""
    needed: dict[str, Any] = {"rollout": {LOG_PROBS: True}}
    if correction.get(CENTERING):
        needed["rollout"][HEAD] = HEAD_SIZE
    if config.bypass_mode and (config.rollout_rs or config.loss_type == "reinforce"):
        needed["actor"] = {"policy_loss": {"loss_mode": LOSS_MODE, "rollout_correction": REFERENCE}}
    return {"algorithm": {"rollout_correction": correction}, KEY: needed}


def split_block(source: Any, retired: Mapping[str, str] | None = None) -> Pasted:
    """Return the configuration without these keys, and what the keys say.

    `retired` are the names of older versions, as in `options`. Raises `UsageError` for values with which verl would
    ignore the correction, or refuse it, and for other keys below the same name.

    >>> split_block({"actor_rollout_ref.rollout.calculate_log_probs": True, "algorithm.rollout_correction": {}})
    Pasted(correction={'algorithm': {'rollout_correction': {}}}, is_loss_set=False, head=None)
    """
    if not isinstance(source, Mapping) or not any(str(key).lstrip("+").startswith(KEY) for key in source):
        return Pasted(source)
    rest = options("verl's configuration", source, retired=retired)
    needed = rest.pop(KEY)
    known_keys(f"verl's {KEY}", needed, ("rollout", "actor"))
    head = _head(needed.get("rollout", {LOG_PROBS: True}))
    return Pasted(rest, "actor" in needed and _is_bypass(needed["actor"]), head)


def _head(rollout: Mapping[str, Any]) -> int | None:
    """Return topk_log_probs. Raises `UsageError` for settings with which verl ignores or refuses the log-probs."""
    size = int(number(HEAD, rollout[HEAD])) if HEAD in rollout else None
    if size is not None and size < 0:
        raise UsageError(f"{HEAD} must be ≥ 0; got {size}.")
    known_keys(f"verl's {KEY}.rollout", rollout, (LOG_PROBS, HEAD, *(FULL_SUPPORT if size else ())))
    if rollout.get(LOG_PROBS) is not True:
        raise UsageError(
            f"{LOG_PROBS} is {rollout.get(LOG_PROBS)!r}: verl then has no rollout_log_probs and skips the correction "
            f"without a message. Write true."
        )
    for name, required in FULL_SUPPORT.items():
        if rollout.get(name, required) != required:
            raise UsageError(f"verl refuses {HEAD} with {name}: {rollout[name]}; write {name}: {required}.")
    return size


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
