"""verl's presets against verl's own; the other systems' numbers, typed once more from their sources."""

import math

import pytest
import torch
from reference import GOLDEN, VERL, config

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.correction import correct
from rlcorr.errors import UsageError
from rlcorr.losses.objective import policy_loss
from rlcorr.presets import PRESETS, preset
from rlcorr.rules import RejectionRule
from rlcorr.systems.skyrl import to_skyrl
from rlcorr.systems.verl.config import to_verl
from rlcorr.types import TokenBatch

SKYRL = GOLDEN["skyrl-main"]


def rule(name: str, lower: float | None = None, upper: float = math.inf) -> RejectionRule:
    return RejectionRule.named(name, lower=lower, upper=upper)


# --- verl's ---


def test_verls_nineteen_come_first() -> None:
    assert sorted(list(PRESETS)[:19]) == sorted(VERL["presets"])
    assert len(VERL["presets"]) == 19


def test_verls_presets_have_verls_numbers() -> None:
    """verl's "0.999_1.001" keeps r in [1/1.001, 1/0.999] = [0.999001, 1.001001]: `config` inverts the bounds."""
    for name, theirs in VERL["presets"].items():
        assert preset(name) == config(theirs), name


def test_verls_presets_are_written_with_verls_numbers() -> None:
    for name, theirs in VERL["presets"].items():
        assert to_verl(preset(name)) == theirs, name


CENTERED = {  # name → weights, bounds, mode: the classmethods of verl main (pull request 8010, commit c6236f51)
    "bypass_pg_sc": (None, None, 2.0, "truncate"),
    "bypass_pg_token_tis_sc": ("token", None, 2.0, "truncate"),
    "bypass_pg_token_icepop_sc": ("token", 0.5, 5.0, "mask"),
}


@pytest.mark.parametrize("name", CENTERED)
def test_score_centering_is_that_of_pull_request_8010(name: str) -> None:
    given = preset(name)
    assert (given.bypass_mode, given.loss_type, given.rollout_rs) == (True, "reinforce", ())
    assert CENTERED[name] == (
        given.rollout_is, given.rollout_is_threshold_lower, given.rollout_is_threshold, given.rollout_is_mode,
    )  # fmt: skip
    assert PRESETS[name].loss == LossConfig(score_centering=True)


def test_kpop_is_that_of_pull_request_6800() -> None:
    theirs = GOLDEN["verl-pr6800"]["presets"]["decoupled_token_kpop"]
    assert (theirs["rollout_rs"], theirs["rollout_rs_threshold"], theirs["rollout_is"]) == ("binary_kl", 2.0, None)
    assert preset("decoupled_token_kpop") == CorrectionConfig(rollout_rs=(rule("token_binary_kl", upper=2.0),))


@pytest.mark.parametrize(("name", "number"), [("dppo_tv", 0.15), ("dppo_kl", 0.05)])
def test_dppo_has_the_numbers_of_verls_example(name: str, number: float) -> None:
    given = PRESETS[f"verl_{name}"]
    assert given.config == CorrectionConfig(bypass_mode=True, loss_type=name)  # pyright: ignore[reportArgumentType]
    assert given.loss == LossConfig(clip_ratio_low=number, clip_ratio_high=number)


@pytest.mark.parametrize(("name", "delta"), [("dppo_tv", 0.2), ("dppo_kl", 0.05)])
def test_skyrls_dppo_is_verls_without_a_cap(name: str, delta: float) -> None:
    """SkyRL 0.4.0 (config.py, DPPOConfig): 0.2 by default; it recommends 0.2 for binary_tv and 0.05 for binary_kl."""
    given, verls = PRESETS[f"skyrl_{name}"], PRESETS[f"verl_{name}"]
    assert given.config == verls.config
    assert given.loss == LossConfig(clip_ratio_low=delta, clip_ratio_high=delta, numbers={"dppo_ratio_cap": math.inf})


# --- SkyRL's, whose defaults are in the golden vectors ---


@pytest.mark.parametrize(
    ("name", "set_"),
    [
        ("skyrl_token_tis", {"tis_ratio_type": "token"}),
        ("skyrl_seq_tis", {"tis_ratio_type": "sequence"}),
        ("skyrl_product_mask", {"sequence_mask_metric": "product"}),
        ("skyrl_geo_mask", {"sequence_mask_metric": "geometric"}),
        ("skyrl_outlier", SKYRL["configs"]["outlier"]),
    ],
)
def test_skyrl_has_its_own_defaults(name: str, set_: dict[str, object]) -> None:
    assert to_skyrl(preset(name)) == SKYRL["off_policy_defaults"] | set_


# --- the others ---


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
SKYRLS = {
    "skyrl_token_tis", "skyrl_seq_tis", "skyrl_product_mask", "skyrl_geo_mask", "skyrl_outlier", "skyrl_dppo_tv",
    "skyrl_dppo_kl",
}  # fmt: skip
VERLS = {*VERL["presets"], *CENTERED, "decoupled_token_kpop", "verl_dppo_tv", "verl_dppo_kl"}


def test_every_preset_is_tested_here() -> None:
    assert set(PRESETS) == {*VERLS, *SKYRLS, *OTHERS}


def test_numbers_of_other_systems() -> None:
    for name, expected in OTHERS.items():
        assert preset(name) == expected, name


# Systems whose rules reject tokens inside the policy loss, so that a KL loss to the reference still sees them. Those of
# slime's MIS, ROLL, xtuner, ms-swift and NeMo RL's seq_logprob_error change the mask that the KL loss is averaged over.
KL_ON_EVERY_TOKEN = {
    "bypass_ppo_clip_geo_rs", "bypass_ppo_clip_k3_rs", "bypass_pg_geo_rs", "bypass_pg_geo_rs_seq_tis",
    "bypass_pg_geo_rs_token_tis", "skyrl_product_mask", "skyrl_geo_mask", "skyrl_outlier", "openrlhf_seq_mask_tis",
    "openrlhf_flash_reinforce", "openrlhf_tv", "trl_opsm", "prime_rl_ipo", "prime_rl_legacy_masks", "slime_opsm",
    "nemo_rl_seq_mask_tis", "open_instruct_vaco",
}  # fmt: skip


def test_what_presets_bring_for_the_loss() -> None:
    """prime-rl added 1e-3·(log ratio)² of every token, over the tokens of the batch, from 2026-03 to 2026-08. That is
    2e-3 times k2 = (log ratio)²/2."""
    old_prime_rl = LossConfig(
        kl_loss_tokens="response", use_rollout_kl_loss=True, rollout_kl_loss_coef=2e-3, rollout_kl_estimator_type="k2",
        rollout_kl_loss_agg_mode="token-mean",
    )  # fmt: skip
    expected = dict.fromkeys(KL_ON_EVERY_TOKEN, LossConfig(kl_loss_tokens="response"))
    expected |= dict.fromkeys(("prime_rl_dppo", "prime_rl_ipo_2026_08"), old_prime_rl)
    expected |= {"verl_dppo_tv": LossConfig(clip_ratio_low=0.15, clip_ratio_high=0.15)}
    expected |= {"verl_dppo_kl": LossConfig(clip_ratio_low=0.05, clip_ratio_high=0.05)}
    expected |= dict.fromkeys((*CENTERED, "nemo_rl_score_centering"), LossConfig(score_centering=True))
    for name, delta in (("skyrl_dppo_tv", 0.2), ("skyrl_dppo_kl", 0.05)):
        expected[name] = LossConfig(clip_ratio_low=delta, clip_ratio_high=delta, numbers={"dppo_ratio_cap": math.inf})
    assert {name: given.loss for name, given in PRESETS.items() if given.loss != LossConfig()} == expected


# --- provenance ---

SYSTEMS = {
    "openrlhf": ("OpenRLHF", "0.11.2"),
    "areal": ("AReaL", "cbff54d6"),
    "skyrl": ("SkyRL", "a9564572"),
    "trl": ("TRL", "f2cd5771"),
    "prime_rl": ("prime-rl", "pull requests 3418, 3526, 3586"),
    "slime": ("slime", "624b824a"),
    "nemo_rl": ("NeMo RL", "7ea279ab"),
    "roll": ("ROLL", "8eb27cc2"),
    "open_instruct": ("open-instruct", "e6c3044a"),
    "ms_swift": ("ms-swift", "3602360a"),
    "xtuner": ("xtuner", "b934f462"),
    "torchtitan": ("torchtitan", "0.3.0"),
    "unirl": ("UniRL", "17863c4b"),
    "sao": ("SAO", "arXiv:2607.07508"),
    "ctpo": ("CTPO", "acc4021"),
}


OTHER_VERSIONS = {
    "decoupled_token_kpop": "b26dfa5c",
    "prime_rl_legacy_masks": "pull request 1930",
    "prime_rl_dppo": "559b4477",
    "prime_rl_ipo_2026_08": "559b4477",
    "trl_vespo": "1.16.0",
    "ms_swift_fipo": "4.6.0",
    "skyrl_dppo_tv": "0.4.0",
    "skyrl_dppo_kl": "0.4.0",
    "nemo_rl_score_centering": "nightly",
    **dict.fromkeys(CENTERED, "pull request 8010"),
}
"""Of presets that come from another version than the rest of their system."""


def test_a_preset_names_its_system_version_and_failure() -> None:
    for name, given in PRESETS.items():
        of_system = [parts for prefix, parts in SYSTEMS.items() if name.startswith(f"{prefix}_")]
        ((system, version),) = [("verl", "1dda039b")] if name in VERLS else of_system
        assert given.system == system, name
        assert OTHER_VERSIONS.get(name, version) in given.source, name
        assert given.fails_when, name
        assert not given.fails_when.endswith("."), f"{name}: the views add the full stop"


def test_presets_of_one_system_stand_together() -> None:
    """A picker groups them in this order."""
    systems = [given.system for given in PRESETS.values()]
    starts = [system for system, before in zip(systems, [None, *systems], strict=False) if system != before]
    assert len(starts) == len(set(starts)) == 16


def test_a_preset_explains_itself() -> None:
    for name, given in PRESETS.items():
        text = given.config.explain()
        assert all(rule.name in text for rule in given.config.rollout_rs), name


def test_unknown_preset_suggests_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"unknown preset 'decoupled_token_si'. Did you mean 'decoupled_token_is'"):
        preset("decoupled_token_si")


# --- what they do, on numbers that can be checked by hand ---


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


def test_sao_keeps_the_ratio_as_a_weight_or_drops_the_token() -> None:
    """unsloth's pull request 9309 tests its own function with these ratios and ε of 0.3 and 5. It drops 0.7 and 6 as
    well, which are exactly on the bounds."""
    ratios, weights = [0.5, 1.0, 3.0, 0.69, 6.01], [0.0, 1.0, 3.0, 0.0, 0.0]
    given = batch([[0.1 * r for r in ratios]], [[0.1] * 5], [[1.0, -1.0, 1.0, -1.0, 1.0]])
    result = correct(given, preset("sao_reasoning"))
    assert result.weights.tolist()[0] == pytest.approx(weights)
    assert result.keep_mask.all()  # a token with weight 0 still counts in the denominator
    assert correct(given, preset("sao_coding")).weights.tolist()[0] == pytest.approx([0.5, 1.0, 3.0, 0.69, 0.0])


def sao_of(theta: float, rollout: float, advantage: float, eps_low: float, eps_high: float) -> float:
    """The derivative of −f(r) A log π_θ, where f is constant."""
    r = math.exp(theta - rollout)
    return -(r if 1 - eps_low < r < 1 + eps_high else 0.0) * advantage


@pytest.mark.parametrize(("name", "eps"), [("sao_reasoning", (0.3, 5.0)), ("sao_coding", (0.8, 3.0))])
def test_the_gradient_of_sao(name: str, eps: tuple[float, float]) -> None:
    random = torch.Generator().manual_seed(0)
    theta, rollout = -3 * torch.rand(2, 4, 9, generator=random, dtype=torch.float64) - 0.1
    advantages = torch.randn(4, 9, generator=random, dtype=torch.float64)
    given = TokenBatch.from_log_probs(rollout, rollout, torch.ones(4, 9)).replace(advantages=advantages)
    leaf, entry = theta.clone().requires_grad_(), PRESETS[name]
    loss, _ = policy_loss(leaf, given, correct(given, entry.config), entry.config, entry.loss)
    loss.backward()
    triples = zip(theta.flatten().tolist(), rollout.flatten().tolist(), advantages.flatten().tolist(), strict=True)
    expected = [sao_of(*triple, *eps) / 36 for triple in triples]  # the mean over all 36 tokens
    assert leaf.grad is not None
    assert leaf.grad.flatten().tolist() == pytest.approx(expected, rel=1e-9)
    assert 0 < sum(x == 0 for x in expected) < 30


def test_vaco_drops_a_sequence_whose_mean_distance_is_above_2() -> None:
    """Ratios 0.25, 1, 4: |r − 1| is 1.25 on average: kept. 4, 4, 4: it is 3, and what moves further away goes."""
    given = batch(
        [[0.1, 0.1, 0.4], [0.4, 0.4, 0.4], [0.4, 0.4, 0.4]],
        [[0.4, 0.1, 0.1], [0.1, 0.1, 0.1], [0.1, 0.1, 0.1]],
        [[1.0] * 3, [1.0] * 3, [-1.0] * 3],
    )
    result = correct(given, preset("open_instruct_vaco"))
    assert result.keep_mask.tolist() == [[True] * 3, [False] * 3, [True] * 3]
    assert result.weights[0].tolist() == pytest.approx([0.25, 1.0, 2.0])


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


def test_a_mean_of_multiplicative_errors_hangs_on_one_token() -> None:
    """e^|d| of 10 and 1, 1, 1, 1, 1, 1, 1, 1, 1: mean 1.9 ≤ 2. With 11.5 it is 2.05."""
    for ratio, kept in ((0.1, True), (1 / 11.5, False)):
        given = batch([[0.5 * ratio] + [0.5] * 9], [[0.5] * 10], [[1.0] * 10])
        assert correct(given, preset("nemo_rl_seq_logprob_error")).keep_mask.tolist() == [[kept] * 10]
