"""The lines of a token's formulas: typed into a calculator, they give what they say, and what the library used."""

import math
import operator
import re

import oracle
import pytest
import torch
from rules_under_test import RULES_UNDER_TEST
from token_batches import BATCH, GIVEN, TOKENS, rule_of

from rlcorr import PRESETS, CorrectionConfig, RejectionRule, TokenBatch, correct
from rlcorr.analysis.token_formulas import formulas
from rlcorr.analysis.token_story import token_story

COMPARE = {"<": operator.lt, ">": operator.gt, "≤": operator.le, "≥": operator.ge}
FUNCTIONS = {"exp": math.exp, "log": math.log, "max": max, "min": min, "abs": abs}
Case = tuple[str, int, int]
"""The name of a rule or a preset, and the row and column of a token."""
NUMBER = r"−?\d+(?:\.\d+)?(?:e[−+]?\d+)?"


# --- a reader with a calculator ---


def calculated(expression: str) -> float | None:
    """The value of an expression of numbers; None if there is a name in it."""
    text = re.sub(r"\|([^|]*)\|", r"abs(\1)", expression)
    for printed, typed in (("−", "-"), ("·", "*"), ("²", "**2")):
        text = text.replace(printed, typed)
    words = set(re.findall(r"[^\W\d_]+", re.sub(NUMBER.replace("−", "-"), "", text)))
    return eval(text, {"__builtins__": {}}, FUNCTIONS) if words <= set(FUNCTIONS) else None


def unit_of(number: str) -> float:
    """What one more in the last printed digit would add."""
    mantissa, _, exponent = number.replace("−", "-").partition("e")
    return 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))


def check_equation(text: str, case: Case) -> float:
    """Every numeric side gives the last one, rounded as it is printed; that number."""
    *sides, result = text.split(" = ")
    number = calculated(result)
    assert number is not None, (case, text)
    for side in sides:
        value = calculated(side)
        assert value is None or abs(value - number) <= 0.5 * unit_of(result) * (1 + 1e-9), (case, text)
    return number


def check(line: str, case: Case) -> None:
    text = line.strip().partition("   (")[0].partition(", so w = ")[0]
    if text.endswith(":"):
        return
    first, *rest = re.split(r" (≤|<|>|≥) ", text)
    left = check_equation(first, case)
    for sign, part in zip(rest[::2], rest[1::2], strict=True):
        right = check_equation(part, case)
        assert COMPARE[sign](left, right), (case, text)
        left = right


def check_digits(line: str, config: CorrectionConfig) -> None:
    """At most four, but for bounds, which are printed as they were configured."""
    bounds = [config.rollout_is_threshold, config.rollout_is_threshold_lower]
    bounds += [b for rule in config.rollout_rs for b in (rule.lower, rule.upper)]
    configured = {f"{abs(b):g}" for b in bounds if b is not None}
    for number in re.findall(rf"(?<!\w){NUMBER}", line):
        mantissa = re.sub(r"[−.]|e.*", "", number).lstrip("0")
        assert len(mantissa) <= 4 or number.lstrip("−") in configured, line


def shows(line: str, value: float, slack: float = 1e-5) -> bool:
    """Whether the last number of the line is this value, rounded as it is printed; the library has float32."""
    printed = re.findall(NUMBER, line.partition("   (")[0])[-1]
    return abs(float(printed.replace("−", "-")) - value) <= 0.5 * unit_of(printed) + max(slack * abs(value), 1e-6)


# --- every rule and every preset, token by token ---


def test_lines_of_every_kind_of_rule() -> None:
    for name in RULES_UNDER_TEST:
        assert_lines_of_rule(name)


def assert_lines_of_rule(name: str) -> None:
    rule = rule_of(name)
    config = CorrectionConfig(rollout_rs=(rule,))
    result = correct(BATCH, config)
    statistics = oracle.statistics(rule, GIVEN)
    for b, t in TOKENS:
        lines = formulas(token_story(BATCH, result, config, b, t), config)
        for line in lines:
            check(line, (name, b, t))
            check_digits(line, config)
        verdict = lines[-2].strip()
        value = oracle.exp(statistics[b][t]) if rule.divergence == "k1" else statistics[b][t]
        parts = re.split(r" [≤<>≥] ", verdict.partition("   (")[0])
        # 1 − p loses digits in float32 where p is near 1.
        slack = 5e-3 if rule.divergence in ("binary_kl", "signed_kl", "forward_kl") else 1e-5
        assert shows(parts[1] if len(parts) == 3 else parts[0], value, slack), (name, b, t, verdict)
        assert ("rejected" in verdict) == oracle.objects(rule, GIVEN, b, t, statistics[b][t]), (name, b, t)


def test_lines_of_every_preset() -> None:
    for name in PRESETS:
        assert_lines_of_preset(name)


def assert_lines_of_preset(name: str) -> None:
    config = PRESETS[name].config
    result, expected = correct(BATCH, config), oracle.correct(GIVEN, config)
    for b, t in TOKENS:
        story = token_story(BATCH, result, config, b, t, PRESETS[name].loss)
        lines = formulas(story, config)
        for line in lines:
            check(line, (name, b, t))
            check_digits(line, config)
        ratio = next(line for line in lines if line.startswith("r = "))
        assert shows(ratio, oracle.ratio(expected.log_ratio[b][t])), (name, b, t, ratio)
        weight = [line for line in lines if line.startswith("w = ") or ", so w = " in line][-1]
        assert shows(weight, expected.weights[b][t]), (name, b, t, weight)
        assert lines[-1].startswith("c = "), (name, b, t)
        assert story.contribution is not None, (name, b, t)
        assert shows(lines[-1], story.contribution), (name, b, t, lines[-1])


# --- by hand ---


def lines_of(
    old: list[float], rollout: list[float], config: CorrectionConfig, *, column: int = 0, advantage: float | None = None
) -> list[str]:
    """Of one token of a batch of one response."""
    pair = torch.tensor([old]), torch.tensor([rollout])
    batch = TokenBatch(response_mask=torch.ones(pair[0].shape, dtype=torch.bool), old_log_probs=pair[0],
                       rollout_log_probs=pair[1])  # fmt: skip
    if advantage is not None:
        batch = batch.replace(advantages=torch.full_like(pair[0], advantage))
    lines = formulas(token_story(batch, correct(batch, config), config, 0, column), config)
    return [line.strip() for line in lines]


def weights(level, upper: float = 2.0, lower: float | None = None, **changes) -> CorrectionConfig:
    return CorrectionConfig(
        rollout_is=level, rollout_is_threshold=upper, rollout_is_threshold_lower=lower, **changes
    )  # fmt: skip


def rules(name: str, upper: float = math.inf, lower: float | None = None) -> CorrectionConfig:
    return CorrectionConfig(rollout_rs=(RejectionRule.named(name, upper=upper, lower=lower),))


def test_a_truncated_and_an_untruncated_weight() -> None:
    """exp(0.42) = 1.52196, exp(2) = 7.38906; c = 1.522·0.5/2."""
    pairs = [-0.51, -1.0], [-0.93, -3.0]
    assert lines_of(*pairs, weights("token"), advantage=0.5) == [
        "r = exp(−0.5100 − (−0.9300)) = exp(0.4200) = 1.522",
        "w = min(1.522, 2) = 1.522",
        "c = w·A/N = 1.522·0.5000/2 = 0.3805",
    ]
    assert lines_of(*pairs, weights("token", lower=0.5), column=1) == [
        "r = exp(−1 − (−3)) = exp(2) = 7.389",
        "w = max(0.5, min(7.389, 2)) = 2",
    ]


def test_weights_of_a_sequence() -> None:
    """Log-ratios 0.42 and −0.30 sum to 0.12, e^0.12 = 1.1275, e^0.06 = 1.0618."""
    pairs = [-0.51, -1.0], [-0.93, -0.7]
    assert lines_of(*pairs, weights("sequence"))[1:] == [
        "Σ log r = 0.4200 + (−0.3000) = 0.1200   (this token and 1 more)",
        "product of r = exp(0.1200) = 1.127",
        "w = min(1.127, 2) = 1.127",
    ]
    assert lines_of(*pairs, weights("geometric", math.inf), column=1)[1:] == [
        "mean log r = (−0.3000 + 0.4200)/2 = 0.06000   (this token and 1 more)",
        "geometric mean of r = exp(0.06000) = 1.062",
        "w = 1.062   (without a bound)",
    ]
    assert lines_of([-0.51], [-0.93], weights("sequence"))[1] == "Σ log r = 0.4200   (the only token)"


def test_weights_of_a_prefix() -> None:
    """The first token has its own ratio, the second the product of both."""
    pairs = [-0.51, -1.0], [-0.93, -0.7]
    assert lines_of(*pairs, weights("prefix"))[1:] == [
        "Σ log r up to here = 0.4200   (this token has 0.4200)",
        "product of r up to here = exp(0.4200) = 1.522",
        "w = min(1.522, 2) = 1.522",
    ]
    assert lines_of(*pairs, weights("prefix"), column=1)[1:3] == [
        "Σ log r up to here = −0.3000 + 0.4200 = 0.1200   (this token and those before it)",
        "product of r up to here = exp(0.1200) = 1.127",
    ]


def test_a_mask_of_weights() -> None:
    pairs = [-0.51, -1.0], [-0.93, -3.0]
    mask = weights("token", 5.0, 0.5, rollout_is_mode="mask")
    assert lines_of(*pairs, mask)[1] == "0.5 ≤ 1.522 ≤ 5, so w = 1.522"
    assert lines_of(*pairs, mask, column=1)[1] == "7.389 > 5, so w = 0"
    assert lines_of(pairs[1], pairs[0], mask, column=1)[1] == "0.1353 < 0.5, so w = 0"
    assert lines_of(*pairs, weights("token", 5.0, rollout_is_mode="mask"))[1] == "1.522 ≤ 5, so w = 1.522"


def test_batch_normalisation() -> None:
    """Weights 1.52196 and 2: their mean is 1.76098; 1.522/1.761 = 0.8643."""
    config = weights("token", rollout_is_batch_normalize=True)
    line = lines_of([-0.51, -1.0], [-0.93, -3.0], config)[2]
    assert line == "w = 1.522/1.761 = 0.8643   (divided by the mean of the kept weights)"


def test_a_log_ratio_beyond_the_clamp() -> None:
    """e²⁰ = 485 165 195."""
    assert lines_of([-0.5], [-30.0], weights("token", math.inf)) == [
        "log r = −0.5000 − (−30) = 29.50   (counts as 20)",
        "r = exp(20) = 4.852e+08",
        "w = 4.852e+08   (without a bound)",
    ]


def test_log_probs_whose_four_digits_do_not_give_their_difference() -> None:
    """−2.3454 − (−2.3463) = 0.0009, but −2.345 − (−2.346) = 0.001."""
    assert lines_of([-2.3454], [-2.3463], weights("token")) == [
        "log r = −2.345 − (−2.346) = 0.001   (more exactly 0.0008998)",  # float32 of the two differ by 0.00089979
        "r = exp(0.0008998) = 1.001",
        "w = min(1.001, 2) = 1.001",
    ]


def test_a_bound_that_four_digits_do_not_tell_from_the_ratio() -> None:
    """r = e^0.0012 = 1.0012 is printed as 1.001; log 1.001 = 0.0009995."""
    lines = lines_of([-0.0012], [-0.0024], rules("token_k1", upper=1.001))
    assert lines[-1] == "log r − log 1.001 = 0.0002005 > 0   (outside: rejected)"
    lines = lines_of([-0.10022], [-0.1], rules("token_k1", lower=0.99979))  # e^−0.00022 = 0.99978, printed as 0.9998
    assert re.fullmatch(r"log r − log 0\.99979 = −9\.9[67]\de−06 < 0   \(outside: rejected\)", lines[-1])
    lines = lines_of([-0.1], [-0.1], rules("token_k1", lower=0.99995, upper=1.00005))
    assert lines[-1] == "0.99995 ≤ 1 ≤ 1.00005   (inside)"
    lines = lines_of([-0.10004], [-0.1], rules("token_k1", lower=0.99995))
    assert lines[-1] == "0.99995 ≤ 1.000   (inside)"
    lines = lines_of([-0.1], [-0.10003], rules("token_k1", upper=1.00004))
    assert lines[-1] == "1.000 ≤ 1.00004   (inside)"


def test_a_bound_inside_which_a_number_is_rounded_out() -> None:
    """e^−0.00024 = 0.99976 is printed as 0.9998, above its bound 0.99978; log 0.99978 = −0.00022002."""
    line = lines_of([-0.10024], [-0.1], rules("token_k1", upper=0.99978))[-1]
    assert re.fullmatch(r"log r − log 0\.99978 = −1\.99\de−05 ≤ 0   \(inside\)", line)
    line = lines_of([-0.10022], [-0.1], rules("token_k1", lower=0.99977, upper=3.0))[-1]
    assert line == "0.99977 ≤ 0.9998 ≤ 3   (inside)"


def test_a_bound_that_is_met_exactly() -> None:
    assert lines_of([-1.0], [-1.0], rules("token_k1", lower=1.0, upper=1.0))[-1] == "1 ≤ 1 ≤ 1   (inside)"
    half = math.log(0.606531)
    assert lines_of([half - 1], [-1.0], rules("token_k1", lower=0.606531))[-1].endswith("≥ 0   (inside)")


@pytest.mark.parametrize(
    ("name", "advantage", "expected"),
    [
        (
            "token_k1_negative",
            0.5,
            ["A = 0.5000 ≥ 0", "7.389 > 2   (outside, but the rule skips this token)"],
        ),
        ("token_k1_negative", -0.5, ["A = −0.5000 < 0", "7.389 > 2   (outside: rejected)"]),
        ("token_k1_outward", 0.5, ["log r·A = 2·0.5000 = 1 > 0", "7.389 > 2   (outside: rejected)"]),
        (
            "token_k1_outward",
            -0.5,
            ["log r·A = 2·(−0.5000) = −1 ≤ 0", "7.389 > 2   (outside, but the rule skips this token)"],
        ),
    ],
)
def test_rules_that_look_at_some_tokens_only(name: str, advantage: float, expected: list[str]) -> None:
    lines = lines_of([-1.0], [-3.0], rules(name, upper=2.0), advantage=advantage)
    assert lines[3:5] == expected
    assert (lines[5] == "c = 0   (rejected)") == ("rejected" in expected[1])


def test_extremes_of_a_sequence() -> None:
    lines = lines_of([-0.51, -1.0], [-0.93, -3.0], rules("seq_max_k1", upper=100.0))
    assert lines[3:] == [
        "max log r = 2   (over 2 tokens; this one has 0.4200)",
        "largest r = exp(2) = 7.389",
        "7.389 ≤ 100   (inside)",
    ]
    assert lines_of([-0.5], [-30.0], rules("seq_min_k1", lower=0.1))[4] == "min log r = 29.50   (the only token)"


def test_divergences() -> None:
    """π_old = 0.6 and π_rollout = 0.3: KL(P‖Q) = 0.6 log 2 + 0.4 log(4/7) = 0.19204, KL(Q‖P) = 0.18379."""
    pair = [math.log(0.6)], [math.log(0.3)]
    signed = rules("token_signed_kl", upper=0.1, lower=-0.1)
    assert lines_of(*pair, rules("token_binary_kl", upper=2.0))[-3:] == [
        "token_binary_kl:",
        "binary_kl = max(0.6000·0.6931 + 0.4000·(−0.5596), 0.3000·(−0.6931) + 0.7000·0.5596) = 0.1920",
        "0.1920 ≤ 2   (inside)",
    ]
    assert lines_of(*pair, signed)[-2:] == [
        "signed_kl = 0.3000·(−0.6931) + 0.7000·0.5596 = 0.1838",
        "0.1838 > 0.1   (outside: rejected)",
    ]
    assert lines_of(pair[1], pair[0], signed)[-2:] == [
        "signed_kl = −(0.6000·0.6931 + 0.4000·(−0.5596)) = −0.1920",
        "−0.1920 < −0.1   (outside: rejected)",
    ]
    assert lines_of([-1.0], [-1.0], signed)[3] == "signed_kl = 0   (π_old = π_rollout)"
    assert lines_of(*pair, rules("token_prob_diff", upper=0.2))[-2:] == [
        "prob_diff = π_old − π_rollout = 0.6000 − 0.3000 = 0.3000",
        "0.3000 > 0.2   (outside: rejected)",
    ]


def test_forward_kl_and_the_gap_of_two_probabilities() -> None:
    """p = 0.3, q = 0.6: 0.6 log 2 + 0.4 log(4/7) = 0.19204, and |p − q| = 0.3."""
    pair = [math.log(0.3)], [math.log(0.6)]
    told = lines_of(*pair, rules("token_forward_kl", upper=0.1))
    assert told[-2].startswith("forward_kl = 0.6000·0.6931 + 0.4000·")
    assert told[-2].endswith(" = 0.1920")
    assert lines_of(*pair, rules("token_binary_tv", upper=0.2))[-2:] == [
        "binary_tv = |0.3000 − 0.6000| = 0.3000",
        "0.3000 > 0.2   (outside: rejected)",
    ]


def test_divergences_of_the_ratio() -> None:
    """d = −0.5: d²/2 = 0.125, e^d − 1 − d = 0.10653, |e^d − 1| = 0.39347, e^|d| = 1.64872."""
    for name, line in (
        ("k2", "k2 = (−0.5000)²/2 = 0.1250"),
        ("k3", "k3 = exp(−0.5000) − 1 − (−0.5000) = 0.1065"),
        ("abs_ratio_error", "|r − 1| = |exp(−0.5000) − 1| = 0.3935"),
        ("mult_error", "e^|log r| = exp(|−0.5000|) = 1.649"),
    ):
        assert lines_of([-1.0], [-0.5], rules(f"token_{name}", upper=9.0))[3] == line
    mean = lines_of([-1.0, -1.0], [-0.5, -1.0], rules("seq_mean_k2", upper=9.0))[4]
    assert mean == "mean k2 = (0.1250 + 0)/2 = 0.06250   (this token and 1 more)"
    clamped = lines_of([-30.0], [-0.5], rules("token_k2", upper=9.0))[4]
    assert clamped == "k2 = (−20)²/2 = 200   (log r counts as −20)"


def test_a_loss_that_clips_by_itself() -> None:
    """Bypassing, r = e² lies beyond 1.2: ppo_clip takes the gradient of a token with A > 0, not of one with A < 0."""
    config = CorrectionConfig(bypass_mode=True)
    clipped = lines_of([-1.0], [-3.0], config, advantage=0.5)[-1]
    assert clipped == "c = 0   (the clip of ppo_clip removes the gradient)"
    assert lines_of([-1.0], [-3.0], config, advantage=-2.0)[-1] == "c = r·A/N = 7.389·(−2)/1 = −14.78"


def test_another_loss() -> None:
    """sapo at π_θ = π_old: 4/τ·σ(τ(ρ − 1)) has the slope 4·σ'(0) = 1, so c is A/N; kl_cov has no c of one token."""
    sapo = CorrectionConfig(loss_type="sapo")
    assert lines_of([-1.0], [-3.0], sapo, advantage=-2.0)[-1] == "c = w·A/N = 1·(−2)/1 = −2"
    kl_cov = CorrectionConfig(loss_type="kl_cov")
    assert lines_of([-1.0], [-3.0], kl_cov, advantage=-2.0)[-1] == "w = 1   (no importance weights)"


def test_numbers_that_are_not_finite() -> None:
    lines = lines_of([-math.inf, -1.0], [-1.0, math.nan], rules("seq_sum_k1", upper=2.0))
    assert lines[0] == "log r = −∞ − (−1) = −∞   (counts as −20)"
    assert lines[4] == "Σ log r = nan   (over 2 tokens; this one has −∞)"
    assert lines[-1] == "nan is outside every bound   (outside: rejected)"


def test_a_probability_of_zero_under_every_preset() -> None:
    """The engine may sample what the trainer rules out. Nothing raises, and the weight is one that the library used."""
    for name, preset in PRESETS.items():
        lines = lines_of([-math.inf, -1.0, -1.0], [-1.0, -1.5, -0.5], preset.config, advantage=1.5)
        assert lines[:2] == ["log r = −∞ − (−1) = −∞   (counts as −20)", "r = exp(−20) = 2.061e−09"], name
        assert any(line.startswith("w = ") or ", so w = " in line for line in lines), name
        headings = [line.removesuffix(":") for line in lines if line.endswith(":")]
        assert headings == [rule.name for rule in preset.config.rollout_rs], name
