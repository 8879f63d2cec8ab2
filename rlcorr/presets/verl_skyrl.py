"""verl's presets under its own names, and SkyRL's."""

import math
from typing import Any

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.presets.notes import (
    BIAS,
    CLIP,
    DPPO,
    DROP,
    ICEPOP,
    KPOP,
    LONG,
    LONG_MASK,
    MEAN,
    MIS,
    NONE,
    RARE,
    RARE_PASSES,
    TIGHT,
    TIS,
    TRM,
    VETO_ONLY,
)
from rlcorr.presets.parts import ON_EVERY_TOKEN, Preset, clip_of, masked, rules, truncated

VERL = "verl, RolloutCorrectionConfig (commit 1dda039b)"
VERL_DPPO = "verl (commit 1dda039b), actor.policy_loss.loss_mode"
VERL_PR6800 = "verl, pull request 6800 (commit b26dfa5c, not merged)"
SKYRL = "SkyRL (commit a9564572), trainer.algorithm.off_policy_correction"


def _verl(config: CorrectionConfig, hurts: str, *papers: str) -> Preset:
    """In bypass mode verl rejects inside the policy loss; decoupled it rewrites the response mask before the update, so
    that its KL loss sees kept tokens only."""
    everywhere = config.bypass_mode and config.rollout_rs
    return Preset("verl", config, "; ".join([VERL, *papers]), hurts, ON_EVERY_TOKEN if everywhere else LossConfig())


_PRODUCT = rules(seq_sum_k1=(0.5, 2.0))
# verl writes 0.999_1.001, and its bounds act on 1/r.
_GEOMETRIC = rules(seq_mean_k1=(1 / 1.001, 1 / 0.999))
_K3 = rules(seq_mean_k3=(None, 0.01))
_PG: dict[str, Any] = {"bypass_mode": True, "loss_type": "reinforce"}

OF_VERL = {
    "disabled": _verl(CorrectionConfig(), NONE),
    "decoupled_token_is": _verl(truncated(), BIAS, TIS),
    "decoupled_seq_is": _verl(truncated("sequence"), LONG, TIS),
    "decoupled_token_icepop": _verl(masked(0.5, 5.0), DROP, ICEPOP),
    "decoupled_seq_is_rs": _verl(truncated("sequence", rollout_rs=_PRODUCT), LONG, MIS),
    "decoupled_geo_rs": _verl(CorrectionConfig(rollout_rs=_GEOMETRIC), TIGHT, MIS),
    "decoupled_geo_rs_seq_tis": _verl(truncated("sequence", rollout_rs=_GEOMETRIC), TIGHT),
    "decoupled_geo_rs_token_tis": _verl(truncated(rollout_rs=_GEOMETRIC), TIGHT),
    "decoupled_k3_rs": _verl(CorrectionConfig(rollout_rs=_K3), RARE, TRM),
    "decoupled_k3_rs_seq_tis": _verl(truncated("sequence", rollout_rs=_K3), LONG, TRM),
    "decoupled_k3_rs_token_tis": _verl(truncated(rollout_rs=_K3), RARE, TRM),
    "bypass_ppo_clip": _verl(CorrectionConfig(bypass_mode=True), CLIP),
    "bypass_ppo_clip_geo_rs": _verl(CorrectionConfig(bypass_mode=True, rollout_rs=_GEOMETRIC), TIGHT),
    "bypass_ppo_clip_k3_rs": _verl(CorrectionConfig(bypass_mode=True, rollout_rs=_K3), RARE),
    "bypass_pg_is": _verl(truncated("sequence", **_PG), LONG),
    "bypass_pg_token_icepop": _verl(masked(0.5, 5.0, **_PG), DROP, ICEPOP),
    "bypass_pg_geo_rs": _verl(CorrectionConfig(rollout_rs=_GEOMETRIC, **_PG), TIGHT),
    "bypass_pg_geo_rs_seq_tis": _verl(truncated("sequence", rollout_rs=_GEOMETRIC, **_PG), TIGHT),
    "bypass_pg_geo_rs_token_tis": _verl(truncated(rollout_rs=_GEOMETRIC, **_PG), TIGHT),
    "decoupled_token_kpop": Preset(
        "verl",
        CorrectionConfig(rollout_rs=rules(token_binary_kl=(None, 2.0))),
        f"{VERL_PR6800}, φ 2.0, as in AReaL's guide; prime-rl's pull request 3283 (open) has 0.1 and calls it the "
        f"paper's; {KPOP}",
        RARE_PASSES,
    ),
    "verl_dppo_tv": Preset(
        "verl",
        CorrectionConfig(bypass_mode=True, loss_type="dppo_tv"),
        f"{VERL_DPPO}=dppo_tv, 0.15 in its example; that compares with π_old, the paper with π_rollout; {DPPO}",
        RARE_PASSES,
        clip_of(0.15),
    ),
    "verl_dppo_kl": Preset(
        "verl",
        CorrectionConfig(bypass_mode=True, loss_type="dppo_kl"),
        f"{VERL_DPPO}=dppo_kl, 0.05 in its example; that compares with π_old, the paper with π_rollout; {DPPO}",
        RARE_PASSES,
        clip_of(0.05),
    ),
}

OF_SKYRL = {
    "skyrl_token_tis": Preset("SkyRL", truncated(), f"{SKYRL}, tis_ratio_type token; {TIS}", BIAS),
    "skyrl_seq_tis": Preset("SkyRL", truncated("sequence", 5.0), f"{SKYRL}, tis_ratio_type sequence; {TIS}", LONG),
    "skyrl_product_mask": Preset(
        "SkyRL",
        CorrectionConfig(rollout_rs=_PRODUCT),
        f"{SKYRL}, sequence_mask_metric product; {MIS}",
        LONG_MASK,
        ON_EVERY_TOKEN,
    ),
    "skyrl_geo_mask": Preset(
        "SkyRL",
        CorrectionConfig(rollout_rs=rules(seq_mean_k1=(0.99, 1.01))),
        f"{SKYRL}, sequence_mask_metric geometric; {MIS}",
        MEAN,
        ON_EVERY_TOKEN,
    ),
    "skyrl_outlier": Preset(
        "SkyRL",
        CorrectionConfig(rollout_rs=rules(seq_min_k1=(1e-4, math.inf), seq_max_k1=(None, 100.0))),
        f"{SKYRL}, outlier_token_is_threshold_low and _high with the numbers of its documentation; off by default",
        VETO_ONLY,
        ON_EVERY_TOKEN,
    ),
}
