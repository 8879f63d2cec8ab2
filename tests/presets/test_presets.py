"""verl's presets against verl's own; the other systems' numbers, typed once more from their sources."""

import math
import re

import pytest
import torch
from reference import GOLDEN, VERL, config

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.correction import correct
from rlcorr.errors import UsageError
from rlcorr.presets import PRESETS, preset
from rlcorr.rules import RejectionRule
from rlcorr.systems.skyrl import to_skyrl
from rlcorr.systems.verl.config import to_verl
from rlcorr.types import TokenBatch

SKYRL = GOLDEN["skyrl-main"]


def rule(name: str, lower: float | None = None, upper: float = math.inf) -> RejectionRule:
    return RejectionRule.named(name, lower=lower, upper=upper)


def tis(upper: float = 2.0, lower: float | None = None, level: str = "token", **changes: object) -> CorrectionConfig:
    return CorrectionConfig(
        rollout_is=level,  # pyright: ignore[reportArgumentType]
        rollout_is_threshold=upper,
        rollout_is_threshold_lower=lower,
        **changes,  # pyright: ignore[reportArgumentType]
    )


def only(*rules: RejectionRule, **changes: object) -> CorrectionConfig:
    return CorrectionConfig(rollout_rs=rules, **changes)  # pyright: ignore[reportArgumentType]


PG = {"bypass_mode": True, "loss_type": "reinforce"}
SEQ_MASK_TIS = tis(math.inf, rollout_rs=(rule("seq_mean_k1", 0.999, 1.002),))

OTHERS = {
    # verl main, the classmethods of pull requests 6800 and 8010 (commit c6236f51), and its example of DPPO
    "decoupled_token_kpop": only(rule("token_binary_kl", upper=2.0)),
    "bypass_pg_sc": CorrectionConfig(**PG),
    "bypass_pg_token_tis_sc": tis(**PG),
    "bypass_pg_token_icepop_sc": tis(5.0, 0.5, rollout_is_mode="mask", **PG),
    "verl_dppo_tv": only(bypass_mode=True, loss_type="dppo_tv"),
    "verl_dppo_kl": only(bypass_mode=True, loss_type="dppo_kl"),
    "skyrl_dppo_tv": only(bypass_mode=True, loss_type="dppo_tv"),
    "skyrl_dppo_kl": only(bypass_mode=True, loss_type="dppo_kl"),
    "openrlhf_tis": tis(5.0, 0.5),
    "openrlhf_icepop": tis(5.0, 0.5, rollout_is_mode="mask"),
    "openrlhf_seq_mask_tis": SEQ_MASK_TIS,
    "openrlhf_flash_reinforce": tis(math.inf, rollout_rs=(rule("seq_mean_forward_kl", upper=5e-3),)),
    "openrlhf_tv": tis(math.inf, rollout_rs=(rule("token_binary_tv", upper=0.05),)),
    "areal_token_clamp": tis(5.0),
    "areal_token_mask": tis(math.inf, rollout_rs=(rule("token_k1", upper=5.0),)),
    "areal_token_icepop": tis(math.inf, rollout_rs=(rule("token_k1", 0.5, 5.0),)),
    "areal_sequence_mask": tis(math.inf, level="geometric", rollout_rs=(rule("seq_mean_k1", upper=5.0),)),
    "areal_sequence_mask_sum": tis(math.inf, level="geometric", rollout_rs=(rule("seq_sum_k1", upper=5.0),)),
    "trl_sequence_mask": tis(3.0, level="sequence", rollout_is_mode="mask"),
    "trl_sequence_truncate": tis(3.0, level="sequence"),
    "trl_token_truncate": tis(3.0),
    "trl_token_mask": tis(3.0, rollout_is_mode="mask"),
    "trl_opsm": only(rule("seq_mean_k1_negative", math.exp(-0.5))),
    "prime_rl_dppo": tis(math.inf, rollout_rs=(rule("token_prob_diff_outward", -0.2, 0.2),), **PG),
    "prime_rl_ipo": tis(1e4, rollout_rs=(rule("token_prob_diff", -0.3, 0.3),), **PG),
    "prime_rl_icepop": tis(5.0, 0.2, rollout_is_mode="mask", **PG),
    "prime_rl_cispo": tis(5.0, **PG),
    "prime_rl_ppo": only(bypass_mode=True),
    "prime_rl_ipo_2026_08": tis(math.inf, rollout_rs=(rule("token_prob_diff", -0.1, 0.1),), **PG),
    "prime_rl_legacy_masks": tis(
        math.inf,
        rollout_rs=(rule("token_k1", 0.125, 8.0), rule("seq_mean_k1", 0.1, 10.0), rule("seq_max_k1", upper=100.0)),
        **PG,
    ),
    "slime_tis": tis(),
    "slime_mis": tis(
        rollout_rs=(rule("token_k1", 0.5, 2.0), rule("seq_min_k1", 1e-4)), rollout_is_batch_normalize=True
    ),
    "slime_opsm": only(rule("seq_mean_k1_negative", math.exp(-1e-4)), bypass_mode=True),
    "nemo_rl_tis": tis(),
    "nemo_rl_icepop": tis(5.0, 0.5, rollout_is_mode="mask"),
    "nemo_rl_seq_mask_tis": SEQ_MASK_TIS,
    "nemo_rl_seq_logprob_error": only(rule("seq_mean_mult_error", upper=2.0)),
    "nemo_rl_score_centering": CorrectionConfig(),
    "roll_token_weight": tis(1.2),
    "roll_ratio_filter": only(rule("token_k1", 0.8, 1.2), denominator="kept"),
    "roll_diff_filter": only(rule("token_prob_diff", -0.2, 0.2), denominator="kept"),
    "open_instruct_tis": tis(),
    "open_instruct_vaco": tis(rollout_rs=(rule("seq_mean_abs_ratio_error_outward", upper=2.0),)),
    "ms_swift_sequence_truncate": tis(2.0, level="geometric"),
    "ms_swift_sequence_mask": tis(math.inf, rollout_rs=(rule("seq_mean_k1", upper=2.0),)),
    "xtuner_token_both": tis(
        5.0, 0.5, rollout_rs=(rule("token_k1", 0.5, 5.0), rule("seq_max_k1", upper=20.0)), denominator="kept"
    ),
    "torchtitan_dapo": only(bypass_mode=True),
    "unirl_drpo": only(bypass_mode=True, loss_type="drpo"),
    "unirl_cppo": only(bypass_mode=True, loss_type="cppo"),
    "ms_swift_fipo": only(loss_type="fipo"),
    "trl_vespo": only(bypass_mode=True, loss_type="vespo"),
    "sao_reasoning": tis(1 + 5.0, 1 - 0.3, rollout_is_mode="mask", **PG),
    "sao_coding": tis(1 + 3.0, 0.2, rollout_is_mode="mask", **PG),
    "ctpo_cumprod": tis(5.0, level="sequence", loss_type="ctpo"),
}
# SkyRL's defaults are in the golden vectors; these are set in addition.
SKYRLS = {
    "skyrl_token_tis": {"tis_ratio_type": "token"},
    "skyrl_seq_tis": {"tis_ratio_type": "sequence"},
    "skyrl_product_mask": {"sequence_mask_metric": "product"},
    "skyrl_geo_mask": {"sequence_mask_metric": "geometric"},
    "skyrl_outlier": SKYRL["configs"]["outlier"],
}
# Systems whose rules reject tokens inside the policy loss, so that a KL loss to the reference still sees them. Those of
# slime's MIS, ROLL, xtuner, ms-swift and NeMo RL's seq_logprob_error change the mask that the KL loss is averaged over.
KL_ON_EVERY_TOKEN = (
    "bypass_ppo_clip_geo_rs", "bypass_ppo_clip_k3_rs", "bypass_pg_geo_rs", "bypass_pg_geo_rs_seq_tis",
    "bypass_pg_geo_rs_token_tis", "skyrl_product_mask", "skyrl_geo_mask", "skyrl_outlier", "openrlhf_seq_mask_tis",
    "openrlhf_flash_reinforce", "openrlhf_tv", "trl_opsm", "prime_rl_ipo", "prime_rl_legacy_masks", "slime_opsm",
    "nemo_rl_seq_mask_tis", "open_instruct_vaco",
)  # fmt: skip
# prime-rl added 1e-3·(log ratio)² of every token, over the tokens of the batch, from 2026-03 to 2026-08. That is 2e-3
# times k2 = (log ratio)²/2.
OLD_PRIME_RL = LossConfig(
    kl_loss_tokens="response", use_rollout_kl_loss=True, rollout_kl_loss_coef=2e-3, rollout_kl_estimator_type="k2",
    rollout_kl_loss_agg_mode="token-mean",
)  # fmt: skip
CENTERED = ("bypass_pg_sc", "bypass_pg_token_tis_sc", "bypass_pg_token_icepop_sc", "nemo_rl_score_centering")
# verl's cap is 20. SkyRL 0.4.0 (config.py, DPPOConfig) has none, and recommends 0.2 for tv and 0.05 for kl.
NO_CAP = {"numbers": {"dppo_ratio_cap": math.inf}}
LOSSES = {
    **dict.fromkeys(KL_ON_EVERY_TOKEN, LossConfig(kl_loss_tokens="response")),
    **dict.fromkeys(("prime_rl_dppo", "prime_rl_ipo_2026_08"), OLD_PRIME_RL),
    **dict.fromkeys(CENTERED, LossConfig(score_centering=True)),
    "verl_dppo_tv": LossConfig(clip_ratio_low=0.15, clip_ratio_high=0.15),
    "verl_dppo_kl": LossConfig(clip_ratio_low=0.05, clip_ratio_high=0.05),
    "skyrl_dppo_tv": LossConfig(clip_ratio_low=0.2, clip_ratio_high=0.2, **NO_CAP),
    "skyrl_dppo_kl": LossConfig(clip_ratio_low=0.05, clip_ratio_high=0.05, **NO_CAP),
}


def test_numbers_of_every_preset() -> None:
    """verl's "0.999_1.001" keeps r in [1/1.001, 1/0.999] = [0.999001, 1.001001]: `config` inverts the bounds."""
    assert sorted(list(PRESETS)[:19]) == sorted(VERL["presets"])
    assert set(PRESETS) == {*VERL["presets"], *SKYRLS, *OTHERS}
    for name, theirs in VERL["presets"].items():
        assert preset(name) == config(theirs), name
        assert to_verl(preset(name)) == theirs, name
    for name, changes in SKYRLS.items():
        assert to_skyrl(preset(name)) == SKYRL["off_policy_defaults"] | changes, name
    for name, expected in OTHERS.items():
        assert preset(name) == expected, name
    assert {name: given.loss for name, given in PRESETS.items() if given.loss != LossConfig()} == LOSSES


def test_a_preset_names_its_system_its_source_and_its_failure() -> None:
    """A picker groups presets of one system, which must be neighbours."""
    systems = [given.system for given in PRESETS.values()]
    starts = [system for system, before in zip(systems, [None, *systems], strict=False) if system != before]
    assert len(starts) == len(set(starts)) == 16
    for name, given in PRESETS.items():
        assert name.startswith(given.system.lower().replace("-", "_").replace(" ", "_")) or given.system == "verl", name
        assert re.search(r"[0-9a-f]{7,8}\b|pull request|arXiv:|\d\.\d+\.\d|nightly", given.source), name
        assert given.fails_when, name
        assert not given.fails_when.endswith("."), f"{name}: the views add the full stop"
        assert all(rule.name in given.config.explain() for rule in given.config.rollout_rs), name
    with pytest.raises(UsageError, match=r"unknown preset 'decoupled_token_si'. Did you mean 'decoupled_token_is'"):
        preset("decoupled_token_si")


# What they do, on numbers that can be checked by hand.


def batch(old: list[list[float]], rollout: list[list[float]], advantages: list[list[float]]) -> TokenBatch:
    """Probabilities, not logarithms."""
    p, q, a = (torch.tensor(x, dtype=torch.float64) for x in (old, rollout, advantages))
    return TokenBatch.from_log_probs(p.log(), q.log(), torch.ones_like(p)).replace(advantages=a)


def test_prime_rl_drops_what_moves_away() -> None:
    """π − μ = 0.3, 0.3, −0.3, −0.3, 0.15: with A > 0 it may not be above 0.2, with A < 0 not below −0.2."""
    given = batch([[0.5, 0.5, 0.2, 0.2, 0.35]], [[0.2, 0.2, 0.5, 0.5, 0.2]], [[1.0, -1.0, 1.0, -1.0, 1.0]])
    result = correct(given, preset("prime_rl_dppo"))
    assert result.keep_mask.tolist() == [[False, True, True, False, True]]
    # Its loss −A·r has the gradient −A·r·∇log π: the weight is r, without a bound.
    assert result.weights.tolist()[0] == pytest.approx([2.5, 2.5, 0.4, 0.4, 1.75])
    assert correct(given, preset("prime_rl_ipo_2026_08")).keep_mask.tolist() == [[False] * 5]


@pytest.mark.parametrize(("name", "delta"), [("slime_opsm", 1e-4), ("trl_opsm", 0.5)])
def test_opsm_drops_failures_that_the_trainer_finds_less_likely(name: str, delta: float) -> None:
    """Mean log μ − log π of 1.1 δ and 0.9 δ; with A > 0 nothing is dropped."""
    q = torch.full((3, 2), -2.0, dtype=torch.float64)
    p = q - delta * torch.tensor([[0.2, 2.0], [0.0, 1.8], [0.2, 2.0]], dtype=torch.float64)
    given = TokenBatch.from_log_probs(p, q, torch.ones(3, 2)).replace(
        advantages=torch.tensor([[-1.0, -1.0], [-1.0, -1.0], [1.0, 1.0]])
    )
    assert correct(given, preset(name)).keep_mask.tolist() == [[False] * 2, [True] * 2, [True] * 2]


def test_sequence_masks_of_the_same_name_differ() -> None:
    """Ratios 3.9 and 1, geometric mean 1.9748. TRL masks the product at 3; ms-swift the geometric mean at 2, and keeps
    the ratios; AReaL the product at 5, and weighs with the geometric mean."""
    given = batch([[0.39, 0.1]], [[0.1, 0.1]], [[1.0, 1.0]])
    assert correct(given, preset("trl_sequence_mask")).weights.tolist() == [[0.0, 0.0]]
    swift = correct(given, preset("ms_swift_sequence_mask"))
    assert swift.weights.tolist()[0] == pytest.approx([3.9, 1.0])
    assert swift.keep_mask.all()
    areal = correct(given, preset("areal_sequence_mask"))
    assert areal.weights.tolist()[0] == pytest.approx([1.9748418, 1.9748418])
    assert areal.keep_mask.all()


@pytest.mark.parametrize(
    ("name", "ratios", "advantages", "weights"),
    [
        # unsloth's pull request 9309 tests its own function with these ratios and ε of 0.3 and 5. It drops 0.7 and 6 as
        # well, which are exactly on the bounds. A token with weight 0 still counts in the denominator.
        ("sao_reasoning", [0.5, 1.0, 3.0, 0.69, 6.01], 1.0, [0.0, 1.0, 3.0, 0.0, 0.0]),
        ("sao_coding", [0.5, 1.0, 3.0, 0.69, 6.01], 1.0, [0.5, 1.0, 3.0, 0.69, 0.0]),
        # VACO: |r − 1| is 1.25 on average, below 2. Then it is 3, and what moves further away goes.
        ("open_instruct_vaco", [0.25, 1.0, 4.0], 1.0, [0.25, 1.0, 2.0]),
        ("open_instruct_vaco", [4.0, 4.0, 4.0], 1.0, None),
        ("open_instruct_vaco", [4.0, 4.0, 4.0], -1.0, [2.0, 2.0, 2.0]),
        # A mean of multiplicative errors depends on one token: e^|d| of 10 and nine of 1 has mean 1.9, with 11.5 2.05.
        ("nemo_rl_seq_logprob_error", [0.1, *[1.0] * 9], 1.0, [1.0] * 10),
        ("nemo_rl_seq_logprob_error", [1 / 11.5, *[1.0] * 9], 1.0, None),
    ],
)
def test_weights_of_one_sequence(
    name: str, ratios: list[float], advantages: float, weights: list[float] | None
) -> None:
    """None: the rule rejects it."""
    result = correct(
        batch([[0.1 * r for r in ratios]], [[0.1] * len(ratios)], [[advantages] * len(ratios)]), preset(name)
    )
    assert result.keep_mask.tolist() == [[weights is not None] * len(ratios)]
    assert weights is None or result.weights.tolist()[0] == pytest.approx(weights)
