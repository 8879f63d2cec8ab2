"""Names of older versions of verl that people still paste, and what to write now."""

_CAP = "an older verl capped token ratios with it, in actor; now it is rollout_is: token with rollout_is_threshold: cap"
RETIRED = {
    "rollout_is_level": "an older verl had it with rollout_is: true; now write rollout_is: token, or sequence",
    "rollout_is_mode": "an older verl had truncate, which is now one number as rollout_is_threshold, and mask, now "
    "rollout_rs (token_k1, seq_sum_k1 or seq_mean_k1) with rollout_rs_threshold",
    "rollout_is_threshold_lower": "an older verl had it; now both bounds are one text, as in rollout_is_threshold: "
    '"0.5_5.0"',
    "rollout_rs_threshold_lower": "verl 0.7 had it; now both bounds are one text, on 1/r, as in "
    'rollout_rs_threshold: "0.5_2.0"',
    **dict.fromkeys(
        ("rollout_is_veto_threshold", "rollout_token_veto_threshold"),
        "an older verl had it; today's has no veto, nearest: rollout_rs: seq_max_k2",
    ),
    **dict.fromkeys(("tis_imp_ratio_cap", "imp_ratio_cap", "behav_imp_weight_cap"), _CAP),
    "bypass_old_logprob_for_rollout": "it is now bypass_mode",
    **dict.fromkeys(
        ("use_pure_rollout_correction", "use_policy_gradient"), "it is now bypass_mode: true with loss_type: reinforce"
    ),
}
"""Keys of older versions of verl → what to write now (pull requests 2953, 3694, 3915, 4070, 4511)."""
RETIRED_RULES = {"token": "token_k1", "sequence": "seq_sum_k1", "geometric": "seq_mean_k1"}
"""Values of rollout_rs in verl 0.7, with bounds on r → today's, with bounds on 1/r."""
