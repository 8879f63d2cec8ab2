"""Presets of OpenRLHF, AReaL and prime-rl. Older defaults of prime-rl have presets of their own, with their version."""

from dataclasses import replace
from typing import Any

from rlcorr.config import CorrectionConfig
from rlcorr.presets.notes import DPPO, FAILURES, ICEPOP, MIS, TIS
from rlcorr.presets.parts import ON_EVERY_TOKEN, Preset, masked, rules, truncated, unbounded

OPENRLHF = "OpenRLHF 0.11.2, --algo.advantage.is_correction_"
OLD_OPENRLHF = "in v0.11.0 (commit 3c3be623) --algo.advantage.is_correction_type"
AREAL = "AReaL (commit cbff54d6), actor.rejection_sampling"
PRIME_RL = "prime-rl of 2026-09 (pull requests 3418, 3526, 3586), [trainer.loss]"
OLD_PRIME_RL = "prime-rl of 2026-08 (commit 559b4477), [trainer.loss]"

_PG: dict[str, Any] = {"bypass_mode": True, "loss_type": "reinforce"}

OPENRLHF_PRESETS = {
    "openrlhf_tis": Preset(
        "OpenRLHF",
        truncated(upper=5.0, rollout_is_threshold_lower=0.5),
        f"{OPENRLHF}level token, mode clip, both sides; {OLD_OPENRLHF} tis; {TIS}",
        FAILURES["token_cap"],
    ),
    "openrlhf_icepop": Preset(
        "OpenRLHF",
        masked(0.5, 5.0),
        f"{OPENRLHF}level token with its other defaults; {OLD_OPENRLHF} icepop; {ICEPOP}",
        FAILURES["token_band"],
    ),
    "openrlhf_seq_mask_tis": Preset(
        "OpenRLHF",
        unbounded(rollout_rs=rules(seq_mean_k1=(0.999, 1.002))),
        f"{OPENRLHF}level seq; {OLD_OPENRLHF} seq-mask-tis; with the bounds meant for it, 0.999 1.002, which are not "
        f"its default: that is 0.5 5.0 for all",
        FAILURES["tight_band_uncapped"],
        ON_EVERY_TOKEN,
    ),
    "openrlhf_flash_reinforce": Preset(
        "OpenRLHF",
        unbounded(rollout_rs=rules(seq_mean_forward_kl=(None, 5e-3))),
        f"{OPENRLHF}level seq, gating binary_kl, threshold 5e-3 as in its script for FlashREINFORCE (pull request "
        f"1339), which has no default",
        FAILURES["mean_divergence_uncapped"],
        ON_EVERY_TOKEN,
    ),
    "openrlhf_tv": Preset(
        "OpenRLHF",
        unbounded(rollout_rs=rules(token_binary_tv=(None, 0.05))),
        f"{OPENRLHF}level token, gating tv, threshold 0.05 as in its tests, which has no default",
        FAILURES["probability_difference"],
        ON_EVERY_TOKEN,
    ),
}

AREAL_PRESETS = {
    "areal_token_clamp": Preset(
        "AReaL", truncated(upper=5.0), f"{AREAL}: level token, action clamp; {TIS}", FAILURES["token_cap"]
    ),
    "areal_token_mask": Preset(
        "AReaL",
        unbounded(rollout_rs=rules(token_k1=(None, 5.0))),
        f"{AREAL}: level token, action mask, its defaults, without a lower bound; {MIS}",
        FAILURES["token_band"],
    ),
    "areal_token_icepop": Preset(
        "AReaL",
        unbounded(rollout_rs=rules(token_k1=(0.5, 5.0))),
        f"{AREAL}: level token, action mask, with the lower bound 0.5 of its guide, which is not its default; {ICEPOP}",
        FAILURES["token_band"],
    ),
    "areal_sequence_mask": Preset(
        "AReaL",
        unbounded("geometric", rollout_rs=rules(seq_mean_k1=(None, 5.0))),
        f"{AREAL}: level sequence, agg mean, its default, which tests the geometric mean and weighs with it",
        FAILURES["geometric_mean_weight"],
    ),
    "areal_sequence_mask_sum": Preset(
        "AReaL",
        unbounded("geometric", rollout_rs=rules(seq_sum_k1=(None, 5.0))),
        f"{AREAL}: level sequence, agg sum, not its default: it tests the product and weighs with the geometric mean",
        FAILURES["product_upper_bound"],
    ),
}

# prime-rl's loss is −A·r with a gradient through r. −A·r·log π_θ with constant r has the same gradient.
_OLD_KL = replace(
    ON_EVERY_TOKEN,
    use_rollout_kl_loss=True,
    rollout_kl_loss_coef=2e-3,
    rollout_kl_estimator_type="k2",
    rollout_kl_loss_agg_mode="token-mean",
)
_OLD_TERM = "it adds 1e-3·(log π_θ/π_rollout)², twice k2, on masked tokens too, divided by the tokens of the batch"
PRIME_RL_PRESETS = {
    "prime_rl_ipo": Preset(
        "prime-rl",
        truncated(upper=1e4, rollout_rs=rules(token_prob_diff=(-0.3, 0.3)), **_PG),
        f"{PRIME_RL} type ipo, its default, eps 0.3, max_importance_ratio 1e4",
        FAILURES["probability_difference"],
        ON_EVERY_TOKEN,
    ),
    "prime_rl_icepop": Preset(
        "prime-rl",
        masked(0.2, 5.0, **_PG),
        f"{PRIME_RL} type icepop, with its default bounds; {ICEPOP}",
        FAILURES["token_band"],
    ),
    "prime_rl_cispo": Preset(
        "prime-rl", truncated(upper=5.0, **_PG), f"{PRIME_RL} type cispo, 0 to 5; {TIS}", FAILURES["token_cap"]
    ),
    "prime_rl_ppo": Preset(
        "prime-rl", CorrectionConfig(bypass_mode=True), f"{PRIME_RL} type ppo, 0.8 to 1.2", FAILURES["ppo_clip"]
    ),
    "prime_rl_dppo": Preset(
        "prime-rl",
        unbounded(rollout_rs=rules(token_prob_diff_outward=(-0.2, 0.2)), **_PG),
        f"{OLD_PRIME_RL} type default, removed since (pull request 3418); {_OLD_TERM}; {DPPO}",
        FAILURES["probability_difference"],
        _OLD_KL,
    ),
    "prime_rl_ipo_2026_08": Preset(
        "prime-rl",
        unbounded(rollout_rs=rules(token_prob_diff=(-0.1, 0.1)), **_PG),
        f"{OLD_PRIME_RL} type ipo, ipo_threshold 0.1; {_OLD_TERM}",
        FAILURES["probability_difference"],
        _OLD_KL,
    ),
    "prime_rl_legacy_masks": Preset(
        "prime-rl",
        unbounded(rollout_rs=rules(token_k1=(0.125, 8.0), seq_mean_k1=(0.1, 10.0), seq_max_k1=(None, 100.0)), **_PG),
        "prime-rl before pull request 1930 (2026-03), ratio_type token",
        FAILURES["veto"],
        ON_EVERY_TOKEN,
    ),
}
