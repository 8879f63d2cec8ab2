"""What is measured of a batch, by name. The names are types, so that a metric can only read what exists."""

from typing import Literal

Quantity = Literal[
    # of every token; d = log π_old − log π_rollout, and an excess is a ratio minus 1
    "training_log_prob", "rollout_log_prob", "d", "abs_d", "k3", "ratio", "ratio_excess",
    # weights: after the bounds, before them (raw), outside the bounds, and what they were normalised by
    "weight", "weight_excess", "weight_low", "weight_high", "log_weight", "raw_weight", "raw_weight_excess", "outside",
    "extreme_weight",  # as verl has it: of tokens after the bounds, of sequences before them
    "norm_factor",
    # what the rules left: kept tokens, the weights on them, rejected tokens, rows beyond the veto's bounds
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
"""Of the whole batch."""

RuleQuantity = Literal[
    "statistic",  # what the rule compares with its bounds
    "clamped",  # the statistic, clamped to the bounds
    "low", "high",  # whether it is below, or above, the bounds
    "outside",  # whether it is either; NaN is
    "rejected",  # whether the rule alone rejects the token
    "extremes",  # the statistic of a token or of a row, whichever the rule compares
    "seq", "seq_deviation", "seq_low", "seq_high", "seq_rejected",  # the same per sequence
]  # fmt: skip
"""Of one rejection rule."""
