"""Presets of TRL, slime, NeMo RL, ROLL, open-instruct, ms-swift, xtuner and torchtitan."""

import math

from rlcorr.config import CorrectionConfig
from rlcorr.presets.notes import (
    BIAS,
    CLIP,
    DROP,
    ICEPOP,
    LATER,
    LONG,
    LONG_CAP,
    LONG_GAMMA,
    MEAN,
    MEAN_WEIGHT,
    MIS,
    NO_FAILURES,
    ONE_SIDED,
    OPSM,
    RARE,
    RARE_LONG,
    RARE_PASSES,
    SPENT,
    TIGHT_RAW,
    TIS,
    VACO,
    VETO,
)
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
OF_TRL = {
    "trl_sequence_mask": Preset(
        "TRL", masked(None, 3.0, "sequence"), f"{_TRL_MODE} sequence_mask, its default; {MIS}", LONG_CAP
    ),
    "trl_sequence_truncate": Preset("TRL", truncated("sequence", 3.0), f"{_TRL_MODE} sequence_truncate; {TIS}", LONG),
    "trl_token_truncate": Preset("TRL", truncated(upper=3.0), f"{_TRL_MODE} token_truncate; {TIS}", BIAS),
    "trl_token_mask": Preset("TRL", masked(None, 3.0), f"{_TRL_MODE} token_mask; {MIS}", DROP),
    "trl_opsm": Preset(
        "TRL",
        CorrectionConfig(rollout_rs=rules(seq_mean_k1_negative=(math.exp(-0.5), math.inf))),
        f"{TRL}, off_policy_mask_threshold 0.5, off by default, without the weights that are on by default; TRL "
        f"compares π_θ with π_rollout; {OPSM}",
        ONE_SIDED,
        ON_EVERY_TOKEN,
    ),
    "trl_vespo": Preset(
        "TRL",
        CorrectionConfig(bypass_mode=True, loss_type="vespo"),
        "TRL 1.16.0, GRPOConfig, loss_type vespo, not its default, with the numbers that are its defaults; TRL bounds "
        "π_old/π_rollout before it enters the product",
        LONG_GAMMA,
    ),
}

OF_SLIME = {
    "slime_tis": Preset("slime", truncated(), f"{SLIME}, --use-tis; {TIS}", BIAS),
    "slime_mis": Preset(
        "slime",
        truncated(rollout_rs=rules(token_k1=(0.5, 2.0), seq_min_k1=(1e-4, math.inf)), rollout_is_batch_normalize=True),
        f"{SLIME}, mis.yaml with use_rs; slime normalises before it rejects; {MIS}",
        DROP,
    ),
    "slime_opsm": Preset(
        "slime",
        CorrectionConfig(bypass_mode=True, rollout_rs=rules(seq_mean_k1_negative=(math.exp(-1e-4), math.inf))),
        f"{SLIME}, --use-opsm --use-rollout-logprobs; {OPSM}",
        NO_FAILURES,
        ON_EVERY_TOKEN,
    ),
}

_NEMO_RL_TYPE = f"{NEMO_RL}, loss_fn.truncated_importance_sampling_type"
OF_NEMO_RL = {
    "nemo_rl_tis": Preset("NeMo RL", truncated(), f"{_NEMO_RL_TYPE} tis; its recipes use 2 or 5; {TIS}", BIAS),
    "nemo_rl_icepop": Preset("NeMo RL", masked(0.5, 5.0), f"{_NEMO_RL_TYPE} icepop; {ICEPOP}", DROP),
    "nemo_rl_seq_mask_tis": Preset(
        "NeMo RL",
        unbounded(rollout_rs=rules(seq_mean_k1=(0.999, 1.002))),
        f"{_NEMO_RL_TYPE} seq-mask-tis",
        TIGHT_RAW,
        ON_EVERY_TOKEN,
    ),
    "nemo_rl_seq_logprob_error": Preset(
        "NeMo RL",
        CorrectionConfig(rollout_rs=rules(seq_mean_mult_error=(None, 2.0))),
        f"{NEMO_RL}, grpo.seq_logprob_error_threshold; its recipes use 1.5 or 2",
        RARE_LONG,
    ),
}

_ROLL_FILTER = f"{ROLL}.filters, agg_type token; averaged over the kept tokens of each sequence"
OF_ROLL = {
    "roll_token_weight": Preset("ROLL", truncated(upper=1.2), f"{ROLL}.is_weight, weight_type token; {TIS}", BIAS),
    "roll_ratio_filter": Preset(
        "ROLL", CorrectionConfig(rollout_rs=rules(token_k1=(0.8, 1.2)), denominator="kept"), _ROLL_FILTER, DROP
    ),
    "roll_diff_filter": Preset(
        "ROLL",
        CorrectionConfig(rollout_rs=rules(token_prob_diff=(-0.2, 0.2)), denominator="kept"),
        f"{_ROLL_FILTER}; diff_enabled without ratio_enabled",
        RARE_PASSES,
    ),
}

OF_OTHERS = {
    "open_instruct_tis": Preset("open-instruct", truncated(), f"{OPEN_INSTRUCT}, --use_rho_correction; {TIS}", BIAS),
    "open_instruct_vaco": Preset(
        "open-instruct",
        truncated(rollout_rs=rules(seq_mean_tv_outward=(None, 2.0))),
        f"{OPEN_INSTRUCT}, --rho_mask_tv_divergence with the bound of its tests, 2.0; off by default; {VACO}",
        RARE,
        ON_EVERY_TOKEN,
    ),
    "ms_swift_sequence_truncate": Preset(
        "ms-swift", truncated("geometric"), f"{MS_SWIFT} sequence_truncate, of the geometric mean", MEAN_WEIGHT
    ),
    "ms_swift_sequence_mask": Preset(
        "ms-swift",
        unbounded(rollout_rs=rules(seq_mean_k1=(None, 2.0))),
        f"{MS_SWIFT} sequence_mask, of the geometric mean; what is kept has token weights",
        MEAN,
    ),
    "ms_swift_fipo": Preset(
        "ms-swift",
        CorrectionConfig(loss_type="fipo"),
        "ms-swift 4.6.0, --loss_type fipo, which also has fipo_clip_high_only false in its example; FIPO, "
        "arXiv:2603.19835",
        LATER,
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
        VETO,
    ),
    "unirl_drpo": Preset(
        "UniRL",
        CorrectionConfig(bypass_mode=True, loss_type="drpo"),
        f"{UNIRL}/drpo.py, drpo_epsilon 12.5; DRPO, arXiv:2606.09821",
        "large mismatch: probabilities differ by less than 1, so with 12.5 no gradient changes by more than 8 %",
    ),
    "unirl_cppo": Preset(
        "UniRL",
        CorrectionConfig(bypass_mode=True, loss_type="cppo"),
        f"{UNIRL}/cppo.py, cppo_delta 0.2; its comment gives 0.15 for dense models; verl's pull request 6731 lets the "
        "budget grow to 5 times its floor, not 2; CPPO, arXiv:2606.10968",
        SPENT,
    ),
    "torchtitan_dapo": Preset(
        "torchtitan",
        CorrectionConfig(bypass_mode=True),
        f"{TORCHTITAN}: DAPOLoss, its default of 0.2 on both sides; the 0.28 above of its recipes is none",
        CLIP,
    ),
}
