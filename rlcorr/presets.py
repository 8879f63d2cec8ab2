"""Named corrections: what public systems do about π_old ≠ π_rollout, under their names and with their numbers.

verl's have verl's names, the others are `<system>_<method>`. A preset may be written in another form than the system's
where the gradient is the same; what still differs is said in its source.
"""

import math
from typing import Any

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.errors import unknown
from rlcorr.preset_parts import Preset, clip_of, masked, rules, truncated, unbounded

VERL = "verl, RolloutCorrectionConfig (commit 1dda039b)"
VERL_DPPO = "verl (commit 1dda039b), actor.policy_loss.loss_mode"
VERL_PR6800 = "verl, pull request 6800 (commit b26dfa5c, not merged)"
OPENRLHF = "OpenRLHF v0.11.0 (commit 3c3be623), --algo.advantage.is_correction_type"
AREAL = "AReaL (commit cbff54d6), actor.rejection_sampling"
SKYRL = "SkyRL (commit a9564572), trainer.algorithm.off_policy_correction"
TRL = "TRL 1.10.0.dev0 (commit f2cd5771), GRPOConfig"
PRIME_RL = "prime-rl (commit 559b4477), [trainer.loss]"
SLIME = "slime v0.3.1 (commit 624b824a)"
NEMO_RL = "NeMo RL v0.7.0 (commit 7ea279ab)"
ROLL = "ROLL v0.3.0 (commit 8eb27cc2), train_infer_correction"
OPEN_INSTRUCT = "open-instruct (commit e6c3044a)"
MS_SWIFT = "ms-swift (commit 3602360a), --rollout_importance_sampling_mode"
XTUNER = "xtuner (commit b934f462), RolloutImportanceSampling"

TIS = "truncated importance sampling; Yao et al., 2025, fengyao.notion.site/off-policy-rl"
MIS = "masked importance sampling; Liu, Li et al., 2025, yingru.notion.site"
ICEPOP = "IcePop; Ring-1T, arXiv:2510.18855"
KPOP = "KPop; 2026, ringtech.notion.site/kpop"
TRM = "trust region masking; Li et al., arXiv:2512.23075"
DPPO = "DPPO; Qi et al., arXiv:2602.04879"
VACO = "VACO; arXiv:2603.01365"
OPSM = "off-policy sequence masking; DeepSeek-V3.2, arXiv:2512.02556"

_NONE = "any mismatch: nothing is corrected"
_CLIP = "large mismatch: the clip takes the gradient from every token whose ratio has left it already"
_BIAS = "large mismatch: ratios beyond the cap are all treated alike, which biases the gradient"
_DROP = "rare but informative tokens lie outside the band and never teach anything"
_LONG = "long sequences: the product of many ratios leaves any fixed bound, so most weights sit on it"
_LONG_MASK = "long sequences: the product of many ratios leaves any fixed band, so most sequences are lost"
_LONG_CAP = "long sequences: products above the bound are lost, and those near 0 count for nothing"
_LONG_OPEN = "long sequences: products above the bound are lost, while those near 0 all pass"
_TIGHT = "noisy engines: ±0.1 % on the geometric mean rejects nearly everything in bf16 or with experts"
_TIGHT_RAW = "noisy engines: so narrow a band rejects nearly everything, and what it keeps has weights without a cap"
_MEAN = "a few broken tokens in a long sequence: the geometric mean hides them"
_MEAN_WEIGHT = "long sequences: their geometric mean is near 1, so the weight corrects almost nothing"
_RARE = "one very unlikely token can lift a short sequence over the limit"
_RARE_LONG = "one very unlikely token can lift even a long sequence over the limit: e^10 among 10 000 is enough"
_RARE_PASSES = "rare tokens: where both probabilities are small, even a huge ratio passes"
_VETO = "long sequences: any one token can lose the whole of them"
_VETO_ONLY = "ordinary mismatch: everything short of a broken token counts as it is"
_ONE_SIDED = "mismatch in successes: only sequences with a negative advantage are looked at"
_NO_FAILURES = "noisy engines: a mean log-ratio of −0.0001 drops a failure, so few failures ever teach"


def _verl(config: CorrectionConfig, hurts: str, *papers: str) -> Preset:
    return Preset("verl", config, "; ".join([VERL, *papers]), hurts)


_PRODUCT = rules(seq_sum_k1=(0.5, 2.0))
_GEOMETRIC = rules(seq_mean_k1=(0.999, 1.001))
_K3 = rules(seq_mean_k3=(None, 0.01))
_PG: dict[str, Any] = {"bypass_mode": True, "loss_type": "reinforce"}

_VERL = {
    "disabled": _verl(CorrectionConfig(), _NONE),
    "decoupled_token_is": _verl(truncated(), _BIAS, TIS),
    "decoupled_seq_is": _verl(truncated("sequence"), _LONG, TIS),
    "decoupled_token_icepop": _verl(masked(0.5, 5.0), _DROP, ICEPOP),
    "decoupled_seq_is_rs": _verl(truncated("sequence", rollout_rs=_PRODUCT), _LONG, MIS),
    "decoupled_geo_rs": _verl(CorrectionConfig(rollout_rs=_GEOMETRIC), _TIGHT, MIS),
    "decoupled_geo_rs_seq_tis": _verl(truncated("sequence", rollout_rs=_GEOMETRIC), _TIGHT),
    "decoupled_geo_rs_token_tis": _verl(truncated(rollout_rs=_GEOMETRIC), _TIGHT),
    "decoupled_k3_rs": _verl(CorrectionConfig(rollout_rs=_K3), _RARE, TRM),
    "decoupled_k3_rs_seq_tis": _verl(truncated("sequence", rollout_rs=_K3), _LONG, TRM),
    "decoupled_k3_rs_token_tis": _verl(truncated(rollout_rs=_K3), _RARE, TRM),
    "bypass_ppo_clip": _verl(CorrectionConfig(bypass_mode=True), _CLIP),
    "bypass_ppo_clip_geo_rs": _verl(CorrectionConfig(bypass_mode=True, rollout_rs=_GEOMETRIC), _TIGHT),
    "bypass_ppo_clip_k3_rs": _verl(CorrectionConfig(bypass_mode=True, rollout_rs=_K3), _RARE),
    "bypass_pg_is": _verl(truncated("sequence", **_PG), _LONG),
    "bypass_pg_token_icepop": _verl(masked(0.5, 5.0, **_PG), _DROP, ICEPOP),
    "bypass_pg_geo_rs": _verl(CorrectionConfig(rollout_rs=_GEOMETRIC, **_PG), _TIGHT),
    "bypass_pg_geo_rs_seq_tis": _verl(truncated("sequence", rollout_rs=_GEOMETRIC, **_PG), _TIGHT),
    "bypass_pg_geo_rs_token_tis": _verl(truncated(rollout_rs=_GEOMETRIC, **_PG), _TIGHT),
    "decoupled_token_kpop": Preset(
        "verl", CorrectionConfig(rollout_rs=rules(token_binary_kl=(None, 2.0))), f"{VERL_PR6800}; {KPOP}", _RARE_PASSES
    ),
    "verl_dppo_tv": Preset(
        "verl",
        CorrectionConfig(bypass_mode=True, loss_type="dppo_tv"),
        f"{VERL_DPPO}=dppo_tv, 0.15 in its example; that compares with π_old, the paper with π_rollout; {DPPO}",
        _RARE_PASSES,
        clip_of(0.15),
    ),
    "verl_dppo_kl": Preset(
        "verl",
        CorrectionConfig(bypass_mode=True, loss_type="dppo_kl"),
        f"{VERL_DPPO}=dppo_kl, 0.05 in its example; that compares with π_old, the paper with π_rollout; {DPPO}",
        _RARE_PASSES,
        clip_of(0.05),
    ),
}

_SKYRL = {
    "skyrl_token_tis": Preset("SkyRL", truncated(), f"{SKYRL}, tis_ratio_type token; {TIS}", _BIAS),
    "skyrl_seq_tis": Preset("SkyRL", truncated("sequence", 5.0), f"{SKYRL}, tis_ratio_type sequence; {TIS}", _LONG),
    "skyrl_product_mask": Preset(
        "SkyRL", CorrectionConfig(rollout_rs=_PRODUCT), f"{SKYRL}, sequence_mask_metric product; {MIS}", _LONG_MASK
    ),
    "skyrl_geo_mask": Preset(
        "SkyRL",
        CorrectionConfig(rollout_rs=rules(seq_mean_k1=(0.99, 1.01))),
        f"{SKYRL}, sequence_mask_metric geometric; {MIS}",
        _MEAN,
    ),
    "skyrl_outlier": Preset(
        "SkyRL",
        CorrectionConfig(rollout_rs=rules(seq_min_k1=(1e-4, math.inf), seq_max_k1=(None, 100.0))),
        f"{SKYRL}, outlier_token_is_threshold_low and _high with the numbers of its documentation; off by default",
        _VETO_ONLY,
    ),
}

_OPENRLHF = {
    "openrlhf_tis": Preset(
        "OpenRLHF", truncated(upper=5.0, rollout_is_threshold_lower=0.5), f"{OPENRLHF} tis, both sides; {TIS}", _BIAS
    ),
    "openrlhf_icepop": Preset("OpenRLHF", masked(0.5, 5.0), f"{OPENRLHF} icepop; {ICEPOP}", _DROP),
    "openrlhf_seq_mask_tis": Preset(
        "OpenRLHF",
        unbounded(rollout_rs=rules(seq_mean_k1=(0.999, 1.002))),
        f"{OPENRLHF} seq-mask-tis, with the bounds meant for it, 0.999 1.002; the shared default is 0.5 5.0",
        _TIGHT_RAW,
    ),
}

_AREAL = {
    "areal_token_clamp": Preset("AReaL", truncated(upper=5.0), f"{AREAL}: level token, action clamp; {TIS}", _BIAS),
    "areal_token_mask": Preset(
        "AReaL", unbounded(rollout_rs=rules(token_k1=(0.5, 5.0))), f"{AREAL}: level token, action mask; {ICEPOP}", _DROP
    ),
    "areal_sequence_mask": Preset(
        "AReaL",
        unbounded("geometric", rollout_rs=rules(seq_sum_k1=(None, 5.0))),
        f"{AREAL}: level sequence, agg sum, which tests the product and weighs with the geometric mean",
        _LONG_OPEN,
    ),
}

_TRL_MODE = f"{TRL}, vllm_importance_sampling_mode"
_TRL = {
    "trl_sequence_mask": Preset(
        "TRL", masked(None, 3.0, "sequence"), f"{_TRL_MODE} sequence_mask, its default; {MIS}", _LONG_CAP
    ),
    "trl_sequence_truncate": Preset("TRL", truncated("sequence", 3.0), f"{_TRL_MODE} sequence_truncate; {TIS}", _LONG),
    "trl_token_truncate": Preset("TRL", truncated(upper=3.0), f"{_TRL_MODE} token_truncate; {TIS}", _BIAS),
    "trl_token_mask": Preset("TRL", masked(None, 3.0), f"{_TRL_MODE} token_mask; {MIS}", _DROP),
    "trl_opsm": Preset(
        "TRL",
        CorrectionConfig(rollout_rs=rules(seq_mean_k1_negative=(math.exp(-0.5), math.inf))),
        f"{TRL}, off_policy_mask_threshold 0.5, off by default, without the weights that are on by default; TRL "
        f"compares π_θ with π_rollout; {OPSM}",
        _ONE_SIDED,
    ),
}

# prime-rl's loss is −A·r with a gradient through r; −A·r·log π_θ with r held constant has the same one.
_PRIME_RL_KL = LossConfig(use_rollout_kl_loss=True, rollout_kl_loss_coef=2e-3, rollout_kl_estimator_type="k2")
_PRIME_RL_TERM = "it adds 1e-3·(log π_θ/π_rollout)², twice k2, on masked tokens too"
_PRIME_RL = {
    "prime_rl_dppo": Preset(
        "prime-rl",
        unbounded(rollout_rs=rules(token_prob_diff_outward=(-0.2, 0.2)), **_PG),
        f"{PRIME_RL} type default; {_PRIME_RL_TERM}; {DPPO}",
        _RARE_PASSES,
        _PRIME_RL_KL,
    ),
    "prime_rl_ipo": Preset(
        "prime-rl",
        unbounded(rollout_rs=rules(token_prob_diff=(-0.1, 0.1)), **_PG),
        f"{PRIME_RL} type ipo; {_PRIME_RL_TERM}",
        _RARE_PASSES,
        _PRIME_RL_KL,
    ),
    "prime_rl_legacy_masks": Preset(
        "prime-rl",
        unbounded(rollout_rs=rules(token_k1=(0.125, 8.0), seq_mean_k1=(0.1, 10.0), seq_max_k1=(None, 100.0)), **_PG),
        "prime-rl before pull request 1930 (2026-03), ratio_type token",
        _VETO,
    ),
}

_SLIME = {
    "slime_tis": Preset("slime", truncated(), f"{SLIME}, --use-tis; {TIS}", _BIAS),
    "slime_mis": Preset(
        "slime",
        truncated(rollout_rs=rules(token_k1=(0.5, 2.0), seq_min_k1=(1e-4, math.inf)), rollout_is_batch_normalize=True),
        f"{SLIME}, mis.yaml with use_rs; slime normalises before it rejects; {MIS}",
        _DROP,
    ),
    "slime_opsm": Preset(
        "slime",
        CorrectionConfig(bypass_mode=True, rollout_rs=rules(seq_mean_k1_negative=(math.exp(-1e-4), math.inf))),
        f"{SLIME}, --use-opsm --use-rollout-logprobs; {OPSM}",
        _NO_FAILURES,
    ),
}

_NEMO_RL_TYPE = f"{NEMO_RL}, loss_fn.truncated_importance_sampling_type"
_NEMO_RL = {
    "nemo_rl_tis": Preset("NeMo RL", truncated(), f"{_NEMO_RL_TYPE} tis; its recipes use 2 or 5; {TIS}", _BIAS),
    "nemo_rl_icepop": Preset("NeMo RL", masked(0.5, 5.0), f"{_NEMO_RL_TYPE} icepop; {ICEPOP}", _DROP),
    "nemo_rl_seq_mask_tis": Preset(
        "NeMo RL", unbounded(rollout_rs=rules(seq_mean_k1=(0.999, 1.002))), f"{_NEMO_RL_TYPE} seq-mask-tis", _TIGHT_RAW
    ),
    "nemo_rl_seq_logprob_error": Preset(
        "NeMo RL",
        CorrectionConfig(rollout_rs=rules(seq_mean_mult_error=(None, 2.0))),
        f"{NEMO_RL}, grpo.seq_logprob_error_threshold; its recipes use 1.5 or 2",
        _RARE_LONG,
    ),
}

_ROLL_FILTER = f"{ROLL}.filters, agg_type token; averaged over the kept tokens of each sequence"
_ROLL = {
    "roll_token_weight": Preset("ROLL", truncated(upper=1.2), f"{ROLL}.is_weight, weight_type token; {TIS}", _BIAS),
    "roll_ratio_filter": Preset(
        "ROLL", CorrectionConfig(rollout_rs=rules(token_k1=(0.8, 1.2)), denominator="kept"), _ROLL_FILTER, _DROP
    ),
    "roll_diff_filter": Preset(
        "ROLL",
        CorrectionConfig(rollout_rs=rules(token_prob_diff=(-0.2, 0.2)), denominator="kept"),
        f"{_ROLL_FILTER}; diff_enabled without ratio_enabled",
        _RARE_PASSES,
    ),
}

_OTHERS = {
    "open_instruct_tis": Preset("open-instruct", truncated(), f"{OPEN_INSTRUCT}, --use_rho_correction; {TIS}", _BIAS),
    "open_instruct_vaco": Preset(
        "open-instruct",
        truncated(rollout_rs=rules(seq_mean_tv_outward=(None, 2.0))),
        f"{OPEN_INSTRUCT}, --rho_mask_tv_divergence with the bound of its tests, 2.0; off by default; {VACO}",
        _RARE,
    ),
    "ms_swift_sequence_truncate": Preset(
        "ms-swift", truncated("geometric"), f"{MS_SWIFT} sequence_truncate, of the geometric mean", _MEAN_WEIGHT
    ),
    "ms_swift_sequence_mask": Preset(
        "ms-swift",
        unbounded(rollout_rs=rules(seq_mean_k1=(None, 2.0))),
        f"{MS_SWIFT} sequence_mask, of the geometric mean; what is kept has token weights",
        _MEAN,
    ),
    "xtuner_token_both": Preset(
        "xtuner",
        truncated(
            upper=5.0,
            rollout_is_threshold_lower=0.5,
            rollout_rs=rules(token_k1=(0.5, 5.0), seq_max_k1=(None, 20.0)),
        ),
        f"{XTUNER}, rollout_is_level token, mode both, with the thresholds of its examples",
        _VETO,
    ),
}

PRESETS: dict[str, Preset] = (
    _VERL | _SKYRL | _OPENRLHF | _AREAL | _TRL | _PRIME_RL | _SLIME | _NEMO_RL | _ROLL | _OTHERS
)


def preset(name: str) -> CorrectionConfig:
    """The configuration of that name. Raises `UsageError` with the nearest name.

    >>> preset("decoupled_token_is").rollout_is_threshold
    2.0
    >>> PRESETS["decoupled_token_is"].hurts
    'large mismatch: ratios beyond the cap are all treated alike, which biases the gradient'
    """
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return PRESETS[name].config
