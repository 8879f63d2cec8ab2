"""What beside the mask says, in the dumps of other systems, which tokens and which rewards count.

Read at: TRL 1.16.0 (trainer/grpo_trainer.py), NeMo RL 7ea279ab (algorithms/grpo.py), verl 0.9.1
(trainer/ppo/rollout_corr_helper.py), prime-rl 559b4477 and 004274ec (trainer/rl/token_export.py, trainer/rl/loss.py),
slime 624b824a (observability/train_data_utils.py).
"""

import re

MASKS = {
    "tool_mask": "TRL: 0 at what a tool answered, which the policy did not sample; its loss runs over "
    "completion_mask × tool_mask",
    "rl_weights": "prime-rl: 0 where the RL loss leaves a token out, null where there is no such stream and all of "
    "loss_mask counts",
}
"""Column (B, T) of 0 and 1 → whose it is. It is multiplied into the response mask."""

LOSSES = "losses"
"""prime-rl, newer: for each token the losses that it takes part in, with the mask of each. Its loss_mask is the union
of these, so distilled tokens are in it."""
RL = "rl"

REWARDS = {"filtered_rewards": "rewards", "raw_reward": "rewards"}
"""Column of rewards → the one that it replaces. NeMo RL with dynamic sampling: those of the samples that it trains on;
its `rewards` are those of all that it sampled, in another order. slime: the `rewards` of its samples are already those
of the group less their mean."""

PLACED = {"raw_reward": "rollout_position"}
"""Key of a list beside slime's samples → the key of a sample that says its place in the list."""

REFUSED = {
    "rollout_is_weights": "verl's correction has acted on this batch, and with rollout_rs the tokens that it rejected "
    "are no longer in response_mask. Save the batch before the correction; where rollout_rs is null, leave the column "
    "out",
}
"""Column → why a file that has it is not read."""

COUNTED = frozenset({*MASKS, LOSSES, *REWARDS, *PLACED.values()})

_SAYS_WHAT_COUNTS = re.compile(r"(?:.*_|^)(?:masks?|weights?)", re.IGNORECASE)
_ABOUT_OTHER_THINGS = re.compile(r".*(?:attention|prompt)_mask|ce_weights|ref_kl_weights|.*_is_masks?")


def may_count(name: str) -> bool:
    """Whether a column of this name, of which nothing else is known, may say which tokens count.

    >>> [name for name in ("sample_mask", "loss_weights", "attention_mask", "weight_version") if may_count(name)]
    ['sample_mask', 'loss_weights']
    """
    return bool(_SAYS_WHAT_COUNTS.fullmatch(name)) and not _ABOUT_OTHER_THINGS.fullmatch(name)
