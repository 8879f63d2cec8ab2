"""Presets of verl, under verl's names, and of SkyRL."""

import math
from dataclasses import replace
from typing import Any

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.presets.notes import DPPO, FAILURES, ICEPOP, KPOP, MIS, SCORE_CENTERING, TIS, TRM
from rlcorr.presets.parts import ON_EVERY_TOKEN, Preset, masked, rules, symmetric_clip, truncated

VERL = "verl, RolloutCorrectionConfig (commit 1dda039b)"
VERL_DPPO = "verl (commit 1dda039b), actor.policy_loss.loss_mode"
VERL_PR6800 = "verl, pull request 6800 (commit b26dfa5c, not merged)"
VERL_MAIN = "verl main (pull request 8010, commit c6236f51), RolloutCorrectionConfig; no release has it"
SKYRL = "SkyRL (commit a9564572), trainer.algorithm.off_policy_correction"
SKYRL_DPPO = "SkyRL 0.4.0, trainer.algorithm.policy_loss_type dppo, its default from 0.5.0; dppo.dppo_type"


def _verl(config: CorrectionConfig, fails_when: str, *papers: str) -> Preset:
    """Return a preset of verl with the right tokens for its KL loss.

    In bypass mode verl rejects inside the policy loss, so its KL loss acts on all tokens. Decoupled, it rewrites the
    response mask before the update, so its KL loss acts on the kept tokens only.
    """
    loss = ON_EVERY_TOKEN if config.bypass_mode and config.rollout_rs else LossConfig()
    return Preset("verl", config, "; ".join([VERL, *papers]), fails_when, loss)


def _centered(config: CorrectionConfig, fails_when: str, *papers: str) -> Preset:
    """Return a preset of verl's policy gradient with score centering."""
    source = "; ".join([VERL_MAIN, *papers, SCORE_CENTERING])
    return Preset("verl", config, source, fails_when, LossConfig(score_centering=True))


def _dppo(delta: float) -> LossConfig:
    """Return the loss of SkyRL's DPPO: one threshold on both sides, and no cap on the ratio.

    SkyRL clamps only the log-ratio, to ±20.
    """
    return replace(symmetric_clip(delta), numbers={"dppo_ratio_cap": math.inf})


_PRODUCT = rules(seq_sum_k1=(0.5, 2.0))
# verl writes 0.999_1.001, and its bounds act on 1/r.
_GEOMETRIC = rules(seq_mean_k1=(1 / 1.001, 1 / 0.999))
_K3 = rules(seq_mean_k3=(None, 0.01))
_PG: dict[str, Any] = {"bypass_mode": True, "loss_type": "reinforce"}

VERL_PRESETS = {
    "disabled": _verl(CorrectionConfig(), FAILURES["no_correction"]),
    "decoupled_token_is": _verl(truncated(), FAILURES["token_cap"], TIS),
    "decoupled_seq_is": _verl(truncated("sequence"), FAILURES["sequence_cap"], TIS),
    "decoupled_token_icepop": _verl(masked(0.5, 5.0), FAILURES["token_band"], ICEPOP),
    "decoupled_seq_is_rs": _verl(truncated("sequence", rollout_rs=_PRODUCT), FAILURES["sequence_cap"], MIS),
    "decoupled_geo_rs": _verl(CorrectionConfig(rollout_rs=_GEOMETRIC), FAILURES["tight_band"], MIS),
    "decoupled_geo_rs_seq_tis": _verl(truncated("sequence", rollout_rs=_GEOMETRIC), FAILURES["tight_band"]),
    "decoupled_geo_rs_token_tis": _verl(truncated(rollout_rs=_GEOMETRIC), FAILURES["tight_band"]),
    "decoupled_k3_rs": _verl(CorrectionConfig(rollout_rs=_K3), FAILURES["mean_divergence"], TRM),
    "decoupled_k3_rs_seq_tis": _verl(truncated("sequence", rollout_rs=_K3), FAILURES["sequence_cap"], TRM),
    "decoupled_k3_rs_token_tis": _verl(truncated(rollout_rs=_K3), FAILURES["mean_divergence"], TRM),
    "bypass_ppo_clip": _verl(CorrectionConfig(bypass_mode=True), FAILURES["ppo_clip"]),
    "bypass_ppo_clip_geo_rs": _verl(CorrectionConfig(bypass_mode=True, rollout_rs=_GEOMETRIC), FAILURES["tight_band"]),
    "bypass_ppo_clip_k3_rs": _verl(CorrectionConfig(bypass_mode=True, rollout_rs=_K3), FAILURES["mean_divergence"]),
    "bypass_pg_is": _verl(truncated("sequence", **_PG), FAILURES["sequence_cap"]),
    "bypass_pg_token_icepop": _verl(masked(0.5, 5.0, **_PG), FAILURES["token_band"], ICEPOP),
    "bypass_pg_geo_rs": _verl(CorrectionConfig(rollout_rs=_GEOMETRIC, **_PG), FAILURES["tight_band"]),
    "bypass_pg_geo_rs_seq_tis": _verl(truncated("sequence", rollout_rs=_GEOMETRIC, **_PG), FAILURES["tight_band"]),
    "bypass_pg_geo_rs_token_tis": _verl(truncated(rollout_rs=_GEOMETRIC, **_PG), FAILURES["tight_band"]),
    "bypass_pg_sc": _centered(CorrectionConfig(**_PG), FAILURES["score_centering"]),
    "bypass_pg_token_tis_sc": _centered(truncated(**_PG), FAILURES["token_cap"], TIS),
    "bypass_pg_token_icepop_sc": _centered(masked(0.5, 5.0, **_PG), FAILURES["token_band"], ICEPOP),
    "decoupled_token_kpop": Preset(
        "verl",
        CorrectionConfig(rollout_rs=rules(token_binary_kl=(None, 2.0))),
        f"{VERL_PR6800}, φ 2.0, as in AReaL's guide; prime-rl's pull request 3283 (open) has 0.1 and calls it the "
        f"paper's; {KPOP}",
        FAILURES["probability_difference"],
    ),
    "verl_dppo_tv": Preset(
        "verl",
        CorrectionConfig(bypass_mode=True, loss_type="dppo_tv"),
        f"{VERL_DPPO}=dppo_tv, 0.15 in its example; that compares with π_old, the paper with π_rollout; {DPPO}",
        FAILURES["probability_difference"],
        symmetric_clip(0.15),
    ),
    "verl_dppo_kl": Preset(
        "verl",
        CorrectionConfig(bypass_mode=True, loss_type="dppo_kl"),
        f"{VERL_DPPO}=dppo_kl, 0.05 in its example; that compares with π_old, the paper with π_rollout; {DPPO}",
        FAILURES["probability_difference"],
        symmetric_clip(0.05),
    ),
}

SKYRL_PRESETS = {
    "skyrl_token_tis": Preset("SkyRL", truncated(), f"{SKYRL}, tis_ratio_type token; {TIS}", FAILURES["token_cap"]),
    "skyrl_seq_tis": Preset(
        "SkyRL", truncated("sequence", 5.0), f"{SKYRL}, tis_ratio_type sequence; {TIS}", FAILURES["sequence_cap"]
    ),
    "skyrl_product_mask": Preset(
        "SkyRL",
        CorrectionConfig(rollout_rs=_PRODUCT),
        f"{SKYRL}, sequence_mask_metric product; {MIS}",
        FAILURES["sequence_band"],
        ON_EVERY_TOKEN,
    ),
    "skyrl_geo_mask": Preset(
        "SkyRL",
        CorrectionConfig(rollout_rs=rules(seq_mean_k1=(0.99, 1.01))),
        f"{SKYRL}, sequence_mask_metric geometric; {MIS}",
        FAILURES["geometric_mean_rule"],
        ON_EVERY_TOKEN,
    ),
    "skyrl_outlier": Preset(
        "SkyRL",
        CorrectionConfig(rollout_rs=rules(seq_min_k1=(1e-4, math.inf), seq_max_k1=(None, 100.0))),
        f"{SKYRL}, outlier_token_is_threshold_low and _high with the numbers of its documentation; off by default",
        FAILURES["veto_alone"],
        ON_EVERY_TOKEN,
    ),
    "skyrl_dppo_tv": Preset(
        "SkyRL",
        CorrectionConfig(bypass_mode=True, loss_type="dppo_tv"),
        f"{SKYRL_DPPO} binary_tv, its default, delta_low and delta_high 0.2; {DPPO}",
        FAILURES["probability_difference"],
        _dppo(0.2),
    ),
    "skyrl_dppo_kl": Preset(
        "SkyRL",
        CorrectionConfig(bypass_mode=True, loss_type="dppo_kl"),
        f"{SKYRL_DPPO} binary_kl, delta_low and delta_high 0.05, which it recommends for this type; its default is 0.2 "
        f"for both types; {DPPO}",
        FAILURES["probability_difference"],
        _dppo(0.05),
    ),
}
