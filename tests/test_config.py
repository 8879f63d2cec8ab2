"""Every wrong choice is refused where it enters, by a sentence that says what was got; explain() says the numbers."""

import math
from dataclasses import asdict
from typing import Any

import pytest

from rlcorr import CorrectionConfig, RejectionRule, preset
from rlcorr.config import NUMBERS, LossConfig
from rlcorr.errors import UsageError, first_line
from rlcorr.rules import RULE_NAMES

RULE = RejectionRule.named("token_k2", upper=1.0)
REFUSED: dict[Any, list[tuple[dict[str, Any], str]]] = {
    RejectionRule: [
        ({"level": "row"}, "unknown level 'row'.*Known: sequence, token"),
        ({"divergence": "k4"}, "unknown divergence 'k4'.*binary_kl, binary_tv, forward_kl, k1, k2, k3"),
        ({"level": "sequence"}, "unknown reduce 'none'.*max, mean, min, sum"),
        ({"level": "sequence", "reduce": "mean", "divergence": "prefix_gap", "lower": None}, "level must be 'token'"),
        ({"reduce": "mean"}, "a token rule reduces nothing: reduce must be None, got 'mean'"),
        ({"lower": None, "upper": math.inf}, "token_k1 has no bound: give lower, upper or both"),
        ({"applies_to": "positive"}, "unknown applies_to 'positive'.*all, negative, outward"),
        (
            {"level": "sequence", "reduce": "min", "divergence": "k2", "lower": None},
            "seq_min_k2: the smallest k2 is no use; min goes with k1, prob_diff, signed_kl",
        ),
        ({"divergence": "mult_error", "lower": None, "upper": 0.9}, "never below 1, so upper=0.9 would reject everyth"),
        ({"divergence": "prob_diff"}, "token_prob_diff: the lower bound must be < 0; got 0.5"),
        ({"divergence": "prob_diff", "lower": 0.0}, "token_prob_diff: the lower bound must be < 0; got 0.0"),
        ({"divergence": "prob_diff", "lower": -0.1, "upper": -0.1}, "the upper bound must be > 0; got -0.1"),
        ({"divergence": "prob_diff", "lower": -0.1, "upper": 0.0}, "the upper bound must be > 0; got 0.0"),
        ({"divergence": "signed_kl", "lower": math.nan}, "the lower bound must be < 0; got nan"),
        ({"divergence": "signed_kl", "lower": "x"}, "the lower bound must be a number; got 'x'"),
        ({"divergence": "k3"}, "token_k3 is a divergence ≥ 0 and takes only an upper bound; got lower=0.5"),
        ({"upper": 0.0}, "the upper bound must be > 0; got 0.0"),
        ({"lower": -0.5}, "the lower bound must be > 0; got -0.5"),
        ({"upper": math.nan}, "the upper bound must be > 0; got nan"),
        ({"upper": True}, "the upper bound must be a number; got True"),
        ({"upper": None}, "the upper bound must be a number; got None"),
        ({"divergence": "prob_diff", "lower": None, "upper": None}, "the upper bound must be a number; got None"),
        ({"lower": 3.0}, "lower bound 3.0 is above upper bound 2.0"),
    ],
    CorrectionConfig: [
        ({"rollout_is": "tokens"}, "unknown rollout_is 'tokens'. Did you mean 'token'"),
        ({"rollout_is_mode": "clip"}, "unknown rollout_is_mode 'clip'.*mask, truncate"),
        ({"loss_type": "ppo"}, "unknown loss_type 'ppo'.*ppo_clip, reinforce"),
        ({"denominator": "mean"}, "unknown denominator 'mean'.*fixed, kept"),
        ({"rollout_is_threshold": 0}, "rollout_is_threshold: the upper bound must be > 0; got 0"),
        # In verl, null here silently switches the weights off.
        ({"rollout_is": "token", "rollout_is_threshold": None}, "the upper bound must be a number; got None"),
        ({"rollout_is_threshold_lower": 2.5}, "rollout_is_threshold: lower bound 2.5 is above upper bound 2.0"),
        ({"rollout_rs": ("token_k1",)}, r"rollout_rs must be a tuple of RejectionRule; got \('token_k1',\)"),
        ({"rollout_rs": [RULE]}, "rollout_rs must be a tuple of RejectionRule"),
        ({"rollout_rs": (RULE, RULE)}, "each rejection rule may appear once; got token_k2, token_k2"),
        ({"bypass_mode": "false"}, "bypass_mode must be True or False; got 'false'"),
        ({"rollout_is_batch_normalize": 1}, "rollout_is_batch_normalize must be True or False; got 1"),
        ({"loss_type": "reinforce"}, "loss_type='reinforce' needs bypass_mode=True"),
        ({"rollout_is_batch_normalize": True}, "has nothing to normalise: rollout_is is None"),
        (
            {"bypass_mode": True, "rollout_is": "token"},
            "double correction: in bypass mode ppo_clip already contains π_θ/π_rollout, so rollout_is must be None; "
            "got 'token'. Importance weights go with reinforce or gpg",
        ),
    ],
    LossConfig: [
        ({"clip_ratio_low": -0.1}, "clip_ratio_low must be a number ≥ 0; got -0.1"),
        ({"clip_ratio_high": math.nan}, "clip_ratio_high must be a number ≥ 0; got nan"),
        ({"numbers": {"clip_ratio_c": 1.0}}, "clip_ratio_c must be a number > 1; got 1.0"),
        ({"numbers": {"tau_pos": 0.0}}, "tau_pos must be a number > 0; got 0.0"),
        ({"numbers": {"clip_cov_ratio": 1.5}}, "clip_cov_ratio must be a number between 0 and 1; got 1.5"),
        ({"numbers": {"clip_cov_lb": 6.0}}, "clip_cov_lb 6.0 is above clip_cov_ub 5.0"),
        ({"numbers": {"clip_cov_ub": math.nan}}, "clip_cov_ub must be a number but no NaN; got nan"),
        ({"numbers": {"cppo_delt": 0.3}}, "unknown number of a loss 'cppo_delt'. Did you mean 'cppo_delta'"),
        ({"numbers": {"ctpo_power": -0.5}}, "ctpo_power must be a number ≥ 0; got -0.5"),
        ({"loss_agg_mode": "token_mean"}, "unknown loss_agg_mode 'token_mean'. Did you mean 'token-mean'"),
        ({"loss_scale_factor": 0}, "loss_scale_factor must be a number > 0; got 0"),
        ({"rollout_kl_loss_agg_mode": "mean"}, "unknown rollout_kl_loss_agg_mode 'mean'"),
        ({"kl_loss_tokens": "all"}, "unknown kl_loss_tokens 'all'"),
        ({"kl_loss_type": "k4"}, "unknown kl_loss_type 'k4'"),
        ({"rollout_kl_estimator_type": "k3++"}, r"unknown rollout_kl_estimator_type 'k3\+\+'"),
        ({"use_rollout_kl_loss": True}, "use_rollout_kl_loss does nothing with rollout_kl_loss_coef=0"),
        ({"use_kl_loss": 1}, "use_kl_loss must be True or False; got 1"),
    ],
}
ALLOWED: dict[Any, list[dict[str, Any]]] = {
    RejectionRule: [
        {"lower": 2.0},
        {"upper": math.inf},
        {"divergence": "mult_error", "lower": None, "upper": 1.0},
        {"divergence": "prob_diff", "lower": -0.2, "upper": math.inf},
    ],
    CorrectionConfig: [
        {"rollout_is": "token", "bypass_mode": True, "loss_type": "reinforce"},
        {"rollout_is": "token", "bypass_mode": True, "loss_type": "gpg"},
    ],
    LossConfig: [
        {"clip_ratio_low": 0, "clip_ratio_high": 0, "kl_loss_coef": 0, "numbers": {"ppo_kl_coef": 0}},
        {"numbers": {"clip_ratio_c": 1.01, "dppo_ratio_cap": 1.01, "tau_neg": 0.01}, "loss_scale_factor": 0.01},
        {"numbers": {"clip_cov_ratio": 0, "kl_cov_ratio": 1}},
        {"numbers": {"clip_cov_lb": 5.0}},
    ],
}
GIVEN = {RejectionRule: {"level": "token", "divergence": "k1", "lower": 0.5, "upper": 2.0}}


@pytest.mark.parametrize("kind", REFUSED)
def test_wrong_choices_are_refused_and_those_just_inside_are_not(kind: Any) -> None:
    for fields, message in REFUSED[kind]:
        with pytest.raises(UsageError, match=message):
            kind(**{**GIVEN.get(kind, {}), **fields})
    for fields in ALLOWED[kind]:
        made = asdict(kind(**{**GIVEN.get(kind, {}), **fields}))
        assert {name: made[name] for name in fields} == fields


def test_names_of_rules_go_both_ways() -> None:
    for name, (_, divergence, _, applies_to) in RULE_NAMES.items():
        lower = {"k1": 0.5, "prob_diff": -0.5, "signed_kl": -0.5}.get(divergence)
        rule = RejectionRule.named(name, upper=2.0, lower=lower)
        assert rule.name == name
        assert CorrectionConfig(rollout_rs=(RULE, rule) if rule.name != RULE.name else ()).needs_advantages == (
            applies_to != "all"
        )
    with pytest.raises(UsageError, match=r"unknown rejection rule 'seq_maen_k1'\. Did you mean 'seq_mean_k1'"):
        RejectionRule.named("seq_maen_k1", upper=1.0)


def test_the_defaults_of_the_losses() -> None:
    """verl's numbers, with the cap of 20 that it documents, and SkyRL's for the KL to π_rollout; k2 is our choice."""
    numbers = {"clip_ratio_c": 3.0, "dppo_ratio_cap": 20.0, "tau_pos": 1.0, "tau_neg": 1.05}
    numbers |= {"clip_cov_ratio": 0.0002, "clip_cov_lb": 1.0, "clip_cov_ub": 5.0}
    numbers |= {"kl_cov_ratio": 0.0002, "ppo_kl_coef": 0.1}
    numbers |= {"drpo_epsilon": 12.5, "cppo_delta": 0.2, "cppo_w_min": 0.8, "cppo_delta_b": 0.02}  # UniRL's
    numbers |= {"vespo_k_pos": 2.0, "vespo_lambda_pos": 3.0, "vespo_k_neg": 3.0, "vespo_lambda_neg": 2.0}  # TRL's
    numbers |= {"fipo_decay_rate": 32.0, "fipo_clip_range": 0.2, "fipo_clip_low": 0.0}  # ms-swift's
    numbers |= {"fipo_safety_threshold": 4.0}
    numbers |= {"ctpo_clip_low": 0.025, "ctpo_clip_high": 0.05, "ctpo_clip_c": 0.05, "ctpo_power": 0.5}  # CTPO's script
    assert {name: LossConfig().number(name) for name in NUMBERS} == numbers
    clip = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.2, "numbers": {}}
    total = {"loss_agg_mode": "token-mean", "loss_scale_factor": None, "score_centering": False}
    kl = {"use_kl_loss": False, "kl_loss_coef": 0.001, "kl_loss_type": "k2", "kl_loss_tokens": "kept"}
    rollout = {"use_rollout_kl_loss": False, "rollout_kl_loss_coef": 0.0, "rollout_kl_estimator_type": "k2"}
    rollout |= {"rollout_kl_loss_agg_mode": "seq-mean-token-mean"}
    assert asdict(LossConfig()) == clip | total | kl | rollout
    assert LossConfig(numbers=numbers) == LossConfig()


@pytest.mark.parametrize(
    ("config", "phrases"),
    [
        (preset("disabled"), ["No importance weights", "PPO clips π_θ/π_old", "over all response tokens"]),
        (preset("decoupled_token_is"), ["its own ratio π_old/π_rollout", "above 2 becomes 2"]),
        (preset("decoupled_token_icepop"), ["its own ratio", "outside [0.5, 5] becomes 0"]),
        (preset("decoupled_geo_rs"), ["0.999001 ≤ geometric mean of the sequence's ratios ≤ 1.001"]),
        (preset("decoupled_k3_rs_seq_tis"), ["above 2", "seq_mean_k3 keeps a sequence while mean", "k3 ≤ 0.01"]),
        (preset("bypass_ppo_clip"), ["π_θ/π_rollout directly", "(bypass)"]),
        (preset("bypass_pg_is"), ["ratios π_θ/π_rollout", "without clipping", "(bypass)", "above 2"]),
        (
            CorrectionConfig(
                rollout_is="geometric",
                rollout_is_threshold=3.5,
                rollout_is_batch_normalize=True,
                rollout_rs=(RejectionRule.named("seq_max_k1", upper=7.25),),
                denominator="kept",
            ),
            [
                "geometric mean of its sequence's ratios",
                "above 3.5",
                "divided by their mean over the kept tokens",
                "largest ratio of the sequence ≤ 7.25",
                "averaged over the kept tokens only",
            ],
        ),
        (
            CorrectionConfig(rollout_is="token", rollout_is_threshold=math.inf),
            ["weighted by its own ratio π_old/π_rollout, without a bound."],
        ),
    ],
)
def test_a_configuration_explains_itself(config: CorrectionConfig, phrases: list[str]) -> None:
    assert [phrase for phrase in phrases if phrase not in config.explain()] == []


def test_errors_of_other_packages_become_one_line() -> None:
    for error, line in ((ValueError("a\nb"), "a"), (ValueError(), "ValueError"), (ValueError("x" * 300), "x" * 200)):
        assert first_line(error) == line
