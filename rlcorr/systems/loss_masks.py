"""Columns in the dumps of other systems, besides the response mask, that tell which tokens and which rewards count.

Sources: TRL 1.16.0 (trainer/grpo_trainer.py), NeMo RL 7ea279ab (algorithms/grpo.py), verl 0.9.1
(trainer/ppo/rollout_corr_helper.py), prime-rl 559b4477 and 004274ec (trainer/rl/token_export.py, trainer/rl/loss.py),
slime 624b824a (observability/train_data_utils.py).
"""

import re

MASKS = {
    "tool_mask": "TRL: 0 at the answer of a tool, which the policy did not sample; its loss runs over "
    "completion_mask × tool_mask",
    "rl_weights": "prime-rl: 0 for a token that the RL loss leaves out, null if there is no such stream and all "
    "of loss_mask counts",
}
"""Column (B, T) of 0 and 1 → its system and meaning. It is multiplied into the response mask."""

LOSSES = "losses"
"""Column of newer versions of prime-rl: the losses that use a token, with the mask of each loss. Its loss_mask is the
union of these masks, so it includes distilled tokens."""
RL = "rl"
"""Name of the RL loss in that column."""

REWARDS = {"filtered_rewards": "rewards", "raw_reward": "rewards"}
"""Column of rewards → the column that it replaces.

NeMo RL with dynamic sampling: filtered_rewards has the samples that it trains on; its `rewards` has all samples, in
another order. slime: the mean of the group is already subtracted from the `rewards` of its samples."""

TOKEN_SCORES = "token_level_scores"
"""Column (B, T) of verl that is 0 except at one token of each response, which has its score."""

PLACED = {"raw_reward": "rollout_position"}
"""Key of a list next to slime's samples → the key of a sample that contains its index in this list."""

REFUSED = {
    "rollout_is_weights": "verl's correction has acted on this batch, and with rollout_rs the tokens that it rejected "
    "are no longer in response_mask. Save the batch before the correction; if rollout_rs is null, leave the column out",
}
"""Column → why a file with this column is refused."""

COUNTED = frozenset({*MASKS, LOSSES, *REWARDS, *PLACED.values()})
"""All columns of this module that are read."""

_MASK_NAMES = re.compile(r"(?:.*_|^)(?:masks?|weights?)", re.IGNORECASE)
_OTHER_NAMES = re.compile(r".*(?:attention|prompt)_mask|ce_weights|ref_kl_weights|.*_is_masks?")


def may_count(name: str) -> bool:
    """Check whether an unknown column with this name may be a loss mask.

    >>> [name for name in ("sample_mask", "loss_weights", "attention_mask", "weight_version") if may_count(name)]
    ['sample_mask', 'loss_weights']
    """
    return bool(_MASK_NAMES.fullmatch(name)) and not _OTHER_NAMES.fullmatch(name)
