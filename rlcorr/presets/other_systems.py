"""Presets of TRL, slime, NeMo RL, ROLL, open-instruct, ms-swift, xtuner and torchtitan."""

import math

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.presets.notes import FAILURES, ICEPOP, MIS, OPSM, SCORE_CENTERING, TIS, VACO
from rlcorr.presets.parts import ON_EVERY_TOKEN, Preset, masked, rules, truncated, unbounded

TRL = "TRL 1.10.0.dev0 (commit f2cd5771), GRPOConfig"
SLIME = "slime v0.3.1 (commit 624b824a)"
NEMO_RL = "NeMo RL v0.7.0 (commit 7ea279ab)"
ROLL = "ROLL v0.3.0 (commit 8eb27cc2), train_infer_correction"
OPEN_INSTRUCT = "open-instruct (commit e6c3044a)"
MS_SWIFT = "ms-swift (commit 3602360a), --rollout_importance_sampling_mode"
XTUNER = "xtuner (commit b934f462), RolloutImportanceSampling"
UNIRL = "UniRL (commit 17863c4b), unirl/algorithms"
TORCHTITAN = "torchtitan 0.3.0, experiments/rl/losses"

_TRL_MODE = f"{TRL}, vllm_importance_sampling_mode"
TRL_PRESETS = {
    "trl_sequence_mask": Preset(
        "TRL",
        masked(None, 3.0, "sequence"),
        f"{_TRL_MODE} sequence_mask, its default; {MIS}",
        FAILURES["sequence_masked_above"],
    ),
    "trl_sequence_truncate": Preset(
        "TRL", truncated("sequence", 3.0), f"{_TRL_MODE} sequence_truncate; {TIS}", FAILURES["sequence_cap"]
    ),
    "trl_token_truncate": Preset(
        "TRL", truncated(upper=3.0), f"{_TRL_MODE} token_truncate; {TIS}", FAILURES["token_cap"]
    ),
    "trl_token_mask": Preset("TRL", masked(None, 3.0), f"{_TRL_MODE} token_mask; {MIS}", FAILURES["token_band"]),
    "trl_opsm": Preset(
        "TRL",
        CorrectionConfig(rollout_rs=rules(seq_mean_k1_negative=(math.exp(-0.5), math.inf))),
        f"{TRL}, off_policy_mask_threshold 0.5, off by default, without the weights that are on by default; TRL "
        f"compares π_θ with π_rollout; {OPSM}",
        FAILURES["negative_only"],
        ON_EVERY_TOKEN,
    ),
    "trl_vespo": Preset(
        "TRL",
        CorrectionConfig(bypass_mode=True, loss_type="vespo"),
        "TRL 1.16.0, GRPOConfig, loss_type vespo, not its default, with the numbers that are its defaults; TRL bounds "
        "π_old/π_rollout before it enters the product",
        FAILURES["vespo"],
    ),
}

SLIME_PRESETS = {
    "slime_tis": Preset("slime", truncated(), f"{SLIME}, --use-tis; {TIS}", FAILURES["token_cap"]),
    "slime_mis": Preset(
        "slime",
        truncated(rollout_rs=rules(token_k1=(0.5, 2.0), seq_min_k1=(1e-4, math.inf)), rollout_is_batch_normalize=True),
        f"{SLIME}, mis.yaml with use_rs; slime normalises before it rejects; {MIS}",
        FAILURES["token_band"],
    ),
    "slime_opsm": Preset(
        "slime",
        CorrectionConfig(bypass_mode=True, rollout_rs=rules(seq_mean_k1_negative=(math.exp(-1e-4), math.inf))),
        f"{SLIME}, --use-opsm --use-rollout-logprobs; {OPSM}",
        FAILURES["tight_negative_only"],
        ON_EVERY_TOKEN,
    ),
}

_NEMO_RL_TYPE = f"{NEMO_RL}, loss_fn.truncated_importance_sampling_type"
NEMO_RL_PRESETS = {
    "nemo_rl_tis": Preset(
        "NeMo RL", truncated(), f"{_NEMO_RL_TYPE} tis; its recipes use 2 or 5; {TIS}", FAILURES["token_cap"]
    ),
    "nemo_rl_icepop": Preset("NeMo RL", masked(0.5, 5.0), f"{_NEMO_RL_TYPE} icepop; {ICEPOP}", FAILURES["token_band"]),
    "nemo_rl_seq_mask_tis": Preset(
        "NeMo RL",
        unbounded(rollout_rs=rules(seq_mean_k1=(0.999, 1.002))),
        f"{_NEMO_RL_TYPE} seq-mask-tis",
        FAILURES["tight_band_uncapped"],
        ON_EVERY_TOKEN,
    ),
    "nemo_rl_seq_logprob_error": Preset(
        "NeMo RL",
        CorrectionConfig(rollout_rs=rules(seq_mean_mult_error=(None, 2.0))),
        f"{NEMO_RL}, grpo.seq_logprob_error_threshold; its recipes use 1.5 or 2",
        FAILURES["mean_factor"],
    ),
    "nemo_rl_score_centering": Preset(
        "NeMo RL",
        CorrectionConfig(),
        "NeMo RL, nightly documentation of November 2026, loss_fn.score_centering without weights: the loss gets "
        "A Σ_H sg(q − ρ p) log p at each position, over the sampler's likeliest tokens H, with "
        f"ρ = (1 − Σ_H q)/(1 − Σ_H p); {SCORE_CENTERING}",
        FAILURES["score_centering"],
        LossConfig(score_centering=True),
    ),
}

_ROLL_FILTER = f"{ROLL}.filters, agg_type token; averaged over the kept tokens of each sequence"
ROLL_PRESETS = {
    "roll_token_weight": Preset(
        "ROLL", truncated(upper=1.2), f"{ROLL}.is_weight, weight_type token; {TIS}", FAILURES["token_cap"]
    ),
    "roll_ratio_filter": Preset(
        "ROLL",
        CorrectionConfig(rollout_rs=rules(token_k1=(0.8, 1.2)), denominator="kept"),
        _ROLL_FILTER,
        FAILURES["token_band"],
    ),
    "roll_diff_filter": Preset(
        "ROLL",
        CorrectionConfig(rollout_rs=rules(token_prob_diff=(-0.2, 0.2)), denominator="kept"),
        f"{_ROLL_FILTER}; diff_enabled without ratio_enabled",
        FAILURES["probability_difference"],
    ),
}

OTHER_PRESETS = {
    "open_instruct_tis": Preset(
        "open-instruct", truncated(), f"{OPEN_INSTRUCT}, --use_rho_correction; {TIS}", FAILURES["token_cap"]
    ),
    "open_instruct_vaco": Preset(
        "open-instruct",
        truncated(rollout_rs=rules(seq_mean_abs_ratio_error_outward=(None, 2.0))),
        f"{OPEN_INSTRUCT}, --rho_mask_tv_divergence with the bound of its tests, 2.0; off by default; {VACO}",
        FAILURES["mean_divergence"],
        ON_EVERY_TOKEN,
    ),
    "ms_swift_sequence_truncate": Preset(
        "ms-swift",
        truncated("geometric"),
        f"{MS_SWIFT} sequence_truncate, of the geometric mean",
        FAILURES["geometric_mean_weight"],
    ),
    "ms_swift_sequence_mask": Preset(
        "ms-swift",
        unbounded(rollout_rs=rules(seq_mean_k1=(None, 2.0))),
        f"{MS_SWIFT} sequence_mask, of the geometric mean; what is kept has token weights",
        FAILURES["geometric_mean_rule"],
    ),
    "ms_swift_fipo": Preset(
        "ms-swift",
        CorrectionConfig(loss_type="fipo"),
        "ms-swift 4.6.0, --loss_type fipo, which also has fipo_clip_high_only false in its example; FIPO, "
        "arXiv:2603.19835",
        FAILURES["fipo"],
    ),
    "xtuner_token_both": Preset(
        "xtuner",
        truncated(
            upper=5.0,
            rollout_is_threshold_lower=0.5,
            rollout_rs=rules(token_k1=(0.5, 5.0), seq_max_k1=(None, 20.0)),
            denominator="kept",
        ),
        f"{XTUNER}, rollout_is_level token, mode both, with the thresholds of its examples, which are not its "
        "defaults; the loss is averaged over the kept tokens",
        FAILURES["veto"],
    ),
    "unirl_drpo": Preset(
        "UniRL",
        CorrectionConfig(bypass_mode=True, loss_type="drpo"),
        f"{UNIRL}/drpo.py, drpo_epsilon 12.5; DRPO, arXiv:2606.09821",
        FAILURES["drpo"],
    ),
    "unirl_cppo": Preset(
        "UniRL",
        CorrectionConfig(bypass_mode=True, loss_type="cppo"),
        f"{UNIRL}/cppo.py, cppo_delta 0.2; its comment gives 0.15 for dense models; verl's pull request 6731 lets the "
        "budget grow to 5 times its floor, not 2; CPPO, arXiv:2606.10968",
        FAILURES["cppo"],
    ),
    "torchtitan_dapo": Preset(
        "torchtitan",
        CorrectionConfig(bypass_mode=True),
        f"{TORCHTITAN}: DAPOLoss, its default of 0.2 on both sides; its recipes use 0.28 above 1",
        FAILURES["ppo_clip"],
    ),
}
