"""Names of the measured quantities. They are types, so that a metric can only read a quantity that exists."""

from typing import Literal

Quantity = Literal[
    # per token; d = log π_old − log π_rollout, and an excess is a ratio minus 1
    "d", "abs_d", "k3", "ratio", "ratio_excess",
    # weights: after the bounds, before them (raw), outside the bounds, and the divisor of batch normalisation
    "weight", "weight_excess", "weight_low", "weight_high", "raw_weight", "raw_weight_excess", "outside",
    "extreme_weight",  # as in verl: token weights after the bounds, sequence weights before them
    "norm_factor",
    # rejection: kept tokens, the weights on them, rejected tokens, rows outside the veto's bounds
    "kept", "trained", "rejected", "veto",
    # one number per sequence
    "seq_rejected", "seq_training_log_ppl", "seq_rollout_log_ppl", "seq_training_ppl", "seq_rollout_ppl",
    "seq_log_ppl_diff", "seq_log_ppl_abs_diff", "seq_ppl_ratio", "seq_excess", "seq_weight", "seq_weight_deviation",
    "seq_raw_low", "seq_raw_high",
    # probabilities: p of π_old, q of π_rollout
    "probs_diff", "p", "q", "p_plus_q",
    # of the loss
    "actor/pg_loss", "actor/ppo_kl", "actor/pg_clipfrac", "actor/pg_clipfrac_lower", "actor/kl_loss", "rollout_kl",
    "kl_left_out", "lr_factor",
]  # fmt: skip
"""Quantities of the whole batch."""

RuleQuantity = Literal[
    "statistic",  # the value that the rule compares with its bounds
    "clamped",  # the statistic, clamped to the bounds
    "low", "high",  # whether the statistic is below, or above, the bounds
    "rejected",  # whether the rule alone rejects the token
    "extremes",  # the statistic of a token or of a row, depending on the level of the rule
    "seq", "seq_deviation", "seq_low", "seq_high", "seq_rejected",  # the same per sequence
]  # fmt: skip
"""Quantities of one rejection rule."""
