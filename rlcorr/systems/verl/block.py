"""The keys next to verl's algorithm.rollout_correction without which verl ignores it (read at commit 1dda039b).

Without actor_rollout_ref.rollout.calculate_log_probs the batch has no rollout_log_probs, and verl skips the correction
without a message. In bypass mode the loss is made in the workers, which do not see algorithm.rollout_correction
(issues 4272 and 4912): without loss_mode: bypass_mode and a copy of the block they run PPO's clip.

Score centering (pull request 8010, read at commit c6236f51) also needs topk_log_probs, the size of the sampler's head.
"""

from collections.abc import Mapping
from typing import Any

from rlcorr.config import CorrectionConfig
from rlcorr.errors import UsageError
from rlcorr.systems.mapping.keys import below, number

KEY, LOG_PROBS, LOSS_MODE = "actor_rollout_ref", "calculate_log_probs", "bypass_mode"
REFERENCE = "${algorithm.rollout_correction}"
"""How verl's files refer to the block, so that its numbers are written once."""
CENTERING, HEAD = "score_centering", "topk_log_probs"
HEAD_SIZE = 128
"""The size of the head in verl's example; its default, 0, records none."""
FULL_SUPPORT = {"name": "vllm", "top_p": 1.0, "top_k": -1, "logprobs_mode": "processed_logprobs"}
"""Keys next to topk_log_probs → the only value with which verl accepts it."""


def block(correction: Mapping[str, Any], config: CorrectionConfig) -> dict[str, Any]:
    """Return `algorithm.rollout_correction` together with the keys that it needs."""
    needed: dict[str, Any] = {"rollout": {LOG_PROBS: True}}
    if correction.get(CENTERING):
        needed["rollout"][HEAD] = HEAD_SIZE
    if config.bypass_mode and (config.rollout_rs or config.loss_type == "reinforce"):
        needed["actor"] = {"policy_loss": {"loss_mode": LOSS_MODE, "rollout_correction": REFERENCE}}
    return {"algorithm": {"rollout_correction": correction}, KEY: needed}


def check_needed(keys: Mapping[str, Any], *, is_bypass: bool) -> int | None:
    """Return topk_log_probs, None if it is missing.

    `keys` are full keys with their values. Raises `UsageError` for values with which verl would ignore the correction,
    or refuse it.
    """
    rollout, loss = below(keys, f"{KEY}.rollout"), below(keys, f"{KEY}.actor.policy_loss")
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
    size = int(number(HEAD, rollout[HEAD])) if HEAD in rollout else None
    if size is not None and size < 0:
        raise UsageError(f"{HEAD} must be ≥ 0; got {size}.")
    for name, required in FULL_SUPPORT.items():
        if rollout.get(name, required) != required:
            raise UsageError(f"verl refuses {HEAD} with {name}: {rollout[name]}; write {name}: {required}.")
    return size
