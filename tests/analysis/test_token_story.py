"""Every number of a token's story against loops over floats (oracle.py), for every preset and rules of every kind."""

import math
import re
from dataclasses import replace

import oracle
import pytest
import torch
from rules_under_test import RULES_UNDER_TEST
from token_batches import BATCH, GIVEN, TOKENS, rule_of

from rlcorr import PRESETS, CorrectionConfig, RejectionRule, TokenBatch, correct
from rlcorr.analysis.token_story import TokenStory, formulas, furthest_token, mean_ratios, ordered_rows, token_story
from rlcorr.config import LossConfig
from rlcorr.figures.fates import shades
from rlcorr.losses.objective import policy_loss
from rlcorr.records.step_files import StepRecord
from rlcorr.records.token_texts import END, NO_TEXT, pieces, text_kind


def stories(
    config: CorrectionConfig, loss: LossConfig | None = None, every: int = 1
) -> dict[tuple[int, int], TokenStory]:
    result = correct(BATCH, config)
    return {(b, t): token_story(BATCH, result, config, b, t, loss) for b, t in TOKENS[::every]}


def test_every_kind_of_rule() -> None:
    for name in RULES_UNDER_TEST:
        rule = rule_of(name)
        config = CorrectionConfig(rollout_rs=(rule,), loss_type="kl_cov")  # without a contribution, which takes longest
        compared = oracle.statistics(rule, GIVEN)
        told = stories(config)
        assert {story.rejected_by for story in told.values()} == {name, None}, name
        for (b, t), story in told.items():
            case = (name, b, t)
            (seen,) = story.rules
            rejected = oracle.objects(rule, GIVEN, b, t, compared[b][t])
            assert not oracle.near_bound(rule, compared[b][t]), case
            assert seen.statistic == pytest.approx(compared[b][t], rel=2e-3, abs=2e-6), case
            assert seen.inside == oracle.passes(rule, compared[b][t]), case
            assert seen.passes != rejected, case
            assert story.rejected_by == (name if rejected else None), case


def test_every_preset() -> None:
    """The numbers, and −∂loss/∂log π_θ at π_θ = π_old of the trainer's own loss by autograd; then the formulas."""
    for name in PRESETS:
        config, loss = PRESETS[name].config, PRESETS[name].loss
        told, expected = stories(config, loss, every=7), oracle.correct(GIVEN, config)
        logs = oracle.log_weights(expected.log_ratio, GIVEN.mask, config.rollout_is or "token")
        leaf = BATCH.tensors()["old_log_probs"].clone().requires_grad_()
        alone = replace(loss, use_rollout_kl_loss=False, score_centering=False)
        value, _ = policy_loss(leaf, BATCH, correct(BATCH, config), config, alone)
        (gradient,) = torch.autograd.grad(-value, leaf)
        for (b, t), story in told.items():
            case, log_w = (name, b, t), 0.0 if config.rollout_is is None else logs[b][t]
            assert_story(story, config, expected, b, t, log_w, case)
            assert story.contribution == pytest.approx(float(gradient[b, t]), rel=1e-4, abs=1e-9), case
            counted = GIVEN.mask if config.denominator == "fixed" else expected.keep
            assert (story.tokens, story.counted) == (sum(GIVEN.mask[b]), sum(map(sum, counted))), case
            assert_lines(story, config, expected, b, t, case)


def assert_story(story: TokenStory, config: CorrectionConfig, expected, b: int, t: int, log_w: float, case) -> None:
    d, number = expected.log_ratio[b][t], expected.rejected_by[b][t]
    bounded = 1.0 if config.rollout_is is None else oracle.bound_weight(log_w, config)
    pair = pytest.approx((GIVEN.old[b][t], GIVEN.rollout[b][t]))
    assert (story.old_log_prob, story.rollout_log_prob) == pair, case
    assert (story.log_ratio, story.ratio) == pytest.approx((d, oracle.ratio(d)), rel=1e-5, abs=1e-6), case
    assert story.log_weight == pytest.approx(log_w, rel=1e-5, abs=1e-6), case
    weights = (story.raw_weight, story.bounded_weight, story.weight)
    assert weights == pytest.approx((oracle.ratio(log_w), bounded, expected.weights[b][t]), rel=1e-4), case
    assert (story.norm_factor is not None) == config.rollout_is_batch_normalize, case
    assert story.rejected_by == (config.rollout_rs[number - 1].name if number else None), case


def assert_lines(story: TokenStory, config: CorrectionConfig, expected, b: int, t: int, case) -> None:
    ratio, weight, *rules, contribution = formulas(story, config)
    assert last(ratio) == pytest.approx(oracle.ratio(expected.log_ratio[b][t]), rel=6e-4), case
    assert last(weight.partition("   (")[0]) == pytest.approx(expected.weights[b][t], rel=6e-4), case
    assert [line.partition(" = ")[0] for line in rules] == [rule.name for rule in config.rollout_rs], case
    assert contribution.startswith("c = "), case


def last(text: str) -> float:
    """Return the last result in a line."""
    number = re.findall(r" = (−?(?:∞|\d+(?:\.\d+)?(?:e−?\d+)?))", text)[-1]
    return float(number.replace("−", "-").replace("∞", "inf"))


def test_a_loss_that_compares_the_batch_has_no_contribution_of_one_token() -> None:
    assert stories(CorrectionConfig(loss_type="kl_cov"))[0, 0].contribution is None


def test_without_advantages_there_is_no_contribution() -> None:
    batch = BATCH.replace(advantages=None)
    story = token_story(batch, correct(batch, CorrectionConfig()), CorrectionConfig(), 0, 0)
    assert (story.advantage, story.contribution) == (None, None)


# --- the formulas with the numbers of a token ---


def weights(level, upper: float = 2.0, lower: float | None = None, **changes) -> CorrectionConfig:
    return CorrectionConfig(
        rollout_is=level, rollout_is_threshold=upper, rollout_is_threshold_lower=lower, **changes
    )  # fmt: skip


def rules(name: str, upper: float = math.inf, lower: float | None = None) -> CorrectionConfig:
    return CorrectionConfig(rollout_rs=(RejectionRule.named(name, upper=upper, lower=lower),))


PAIRS = [-0.51, -1.0], [-0.93, -3.0]  # log-ratios 0.42 and 2: ratios 1.52196 and 7.38906
MASK = weights("token", 5.0, 0.5, rollout_is_mode="mask")


@pytest.mark.parametrize(
    ("config", "column", "advantage", "index", "line"),
    [
        (weights("token"), 0, None, 0, "r = exp(−0.51 − (−0.93)) = 1.522"),
        (weights("token"), 0, None, 1, "w = min(1.522, 2) = 1.522"),
        (weights("token"), 0, 0.5, 2, "c = w·A/N = 1.522·0.5/2 = 0.3805"),
        (weights("token", lower=0.5), 1, None, 1, "w = max(0.5, min(7.389, 2)) = 2"),
        # The product is e^2.42 = 11.2459, the geometric mean e^1.21 = 3.35348.
        (weights("sequence"), 0, None, 1, "w = min(11.25, 2) = 2   (product of r = 11.25)"),
        (weights("geometric", math.inf), 1, None, 1, "w = 3.353   (geometric mean of r = 3.353)"),
        (weights("prefix", 20.0), 0, None, 1, "w = min(1.522, 20) = 1.522   (product of r up to here = 1.522)"),
        (MASK, 0, None, 1, "1.522, allowed 0.5 to 5: inside, so w = 1.522"),
        (MASK, 1, None, 1, "7.389, allowed 0.5 to 5: outside, so w = 0"),
        # Weights 1.52196 and 2 have the mean 1.76098.
        (weights("token", rollout_is_batch_normalize=True), 0, None, 1,
         "w = min(1.522, 2) = 1.522; w/mean of w = 1.522/1.761 = 0.8643"),
        (CorrectionConfig(), 0, None, 1, "w = 1   (no importance weights)"),
        (rules("token_k1_negative", 2.0), 1, 0.5, 2,
         "token_k1_negative = 7.389, allowed at most 2: outside, but the rule skips this token"),
        (rules("token_k1_negative", 2.0), 1, -0.5, 2, "token_k1_negative = 7.389, allowed at most 2: outside"),
        (rules("token_k1_negative", 2.0), 1, -0.5, 3, "c = 0   (rejected)"),
        (rules("seq_max_k1", 100.0, 0.1), 0, None, 2, "seq_max_k1 = 7.389, allowed 0.1 to 100: inside"),
        (rules("token_k1", lower=2.0), 0, None, 2, "token_k1 = 1.522, allowed at least 2: outside"),
        # Bypassing, r = e² lies beyond 1.2: ppo_clip takes the gradient of a token with A > 0, not of one with A < 0.
        (CorrectionConfig(bypass_mode=True), 1, 0.5, 2, "c = 0   (the clip of ppo_clip removes the gradient)"),
        (CorrectionConfig(bypass_mode=True), 1, -2.0, 2, "c = r·A/N = 7.389·(−2)/2 = −7.389"),
    ],
)  # fmt: skip
def test_lines_by_hand(config: CorrectionConfig, column: int, advantage: float | None, index: int, line: str) -> None:
    assert lines_of(*PAIRS, config, column=column, advantage=advantage)[index] == line


def lines_of(
    old: list[float], rollout: list[float], config: CorrectionConfig, *, column: int = 0, advantage: float | None = None
) -> list[str]:
    """Of one token of a batch of one response."""
    pair = {"old_log_probs": torch.tensor([old]), "rollout_log_probs": torch.tensor([rollout])}
    batch = TokenBatch(torch.ones(1, len(old), dtype=torch.bool), **pair)
    if advantage is not None:
        batch = batch.replace(advantages=torch.full_like(batch.rollout_log_probs, advantage))
    return formulas(token_story(batch, correct(batch, config), config, 0, column), config)


def test_a_log_ratio_beyond_the_clamp_and_numbers_that_are_not_finite() -> None:
    """e²⁰ = 485 165 195."""
    assert lines_of([-0.5], [-30.0], weights("token", math.inf)) == [
        "r = exp(−0.5 − (−30)) = exp(20) = 4.852e8", "w = 4.852e8"
    ]  # fmt: skip
    lines = lines_of([-math.inf, -1.0], [-1.0, math.nan], rules("seq_sum_k1", upper=2.0))
    assert lines[0] == "r = exp(−∞ − (−1)) = exp(−20) = 2.061e−9"
    assert lines[2] == "seq_sum_k1 = nan, allowed at most 2: outside"


def test_the_two_parts_of_the_gap() -> None:
    """d = 0.42 = 0.2 of the engine + 0.22 of the age; e^0.2 = 1.2214, e^0.22 = 1.2461."""
    batch = TokenBatch.from_log_probs(torch.tensor([[-0.51]]), torch.tensor([[-0.93]]), torch.ones(1, 1))
    batch = batch.replace(sampled_log_probs=torch.tensor([[-0.73]]))
    config = CorrectionConfig()
    line = formulas(token_story(batch, correct(batch, config), config, 0, 0), config)[0]
    assert line == "r = exp(−0.51 − (−0.93)) = 1.522   (1.221 of the engine · 1.246 of the age)"


# --- which responses, which colours ---


def small() -> tuple[TokenBatch, CorrectionConfig]:
    """Means of log r: 0.1, −0.4, 0, NaN; rewards 2, 1, 2, 0; one of two, two of two, none, the one rejected."""
    d = torch.tensor([[-0.3, 0.5], [-0.4, -0.4], [0.0, 0.0], [math.nan, 0.0]])
    mask = torch.tensor([[True, True], [True, True], [True, True], [True, False]])
    batch = TokenBatch(
        response_mask=mask,
        rollout_log_probs=torch.full(d.shape, -1.0),
        old_log_probs=d - 1,
        rewards=torch.tensor([2.0, 1.0, 2.0, 0.0]),
    )
    return batch, CorrectionConfig(rollout_rs=(RejectionRule.named("token_k1", lower=0.8, upper=5.0),))


@pytest.mark.parametrize(
    ("order", "rows"),
    [
        ("recorded", [0, 1, 2, 3]),
        ("off", [3, 1, 0, 2]),
        ("lowest", [3, 1, 0, 2]),
        ("highest", [0, 2, 1, 3]),
        ("rejected", [1, 3, 0, 2]),
    ],
)
def test_orders(order, rows: list[int]) -> None:
    batch, config = small()
    assert ordered_rows(batch, correct(batch, config), order) == rows
    expected = [math.exp(0.1), math.exp(-0.4), 1.0, math.nan]
    assert mean_ratios(batch, correct(batch, config)) == pytest.approx(expected, nan_ok=True)


def test_the_furthest_token() -> None:
    batch, config = small()
    result = correct(batch, config)
    assert furthest_token(batch, result, [2, 0, 1]) == (0, 1)
    assert furthest_token(batch, result, [1, 2, 3]) == (3, 0)  # NaN
    assert furthest_token(batch, result, []) is None


def test_shades_are_the_root_of_the_share_of_the_span() -> None:
    """Of 1001 log-ratios 999 are ±0.01, so the 99.9 % quantile, 1.1 of which is the span, is that of the second
    largest, 0.4; the largest, 3, has full colour."""
    d = torch.full((1, 1001), 0.01)
    d[0, :3] = torch.tensor([-0.01, 0.4, -3.0])
    batch = TokenBatch.from_log_probs(d - 5, torch.full(d.shape, -5.0), torch.ones(d.shape))
    colours, span = shades(batch, correct(batch, CorrectionConfig()))
    assert span == pytest.approx(0.44, rel=1e-4)
    assert colours[0, :4].tolist() == pytest.approx(
        [-math.sqrt(0.01 / 0.44), math.sqrt(0.4 / 0.44), -1, math.sqrt(0.01 / 0.44)], rel=1e-3
    )


# --- texts ---


def record_of(texts: list[str], ids: list[list[int]]) -> StepRecord:
    width = max(map(len, ids))
    padded = torch.tensor([row + [0] * (width - len(row)) for row in ids])
    mask = torch.arange(width) < torch.tensor([len(row) for row in ids])[:, None]
    zeros = torch.zeros(mask.shape)
    batch = TokenBatch(response_mask=mask, rollout_log_probs=zeros, old_log_probs=zeros, response_ids=padded)
    return StepRecord(0, batch, [""] * len(texts), texts)


def test_one_token_is_one_character_and_the_end() -> None:
    """The second response was cut off before its end, the third is nothing but the end."""
    record = record_of(["1<", "1é1", ""], [[5, 6, 2], [5, 7, 5], [2]])
    assert text_kind(record) == "characters"
    assert pieces(record) == [["1", "<", END], ["1", "é", "1"], [END]]


@pytest.mark.parametrize(
    ("texts", "ids"),
    [
        (["12", "3"], [[5, 6, 2], [7, 8, 2]]),  # two tokens more than characters
        (["12", "345"], [[5, 6, 2], [7, 8]]),  # fewer tokens than characters
        (["ab", "cd"], [[5, 6, 2], [5, 8, 2]]),  # lengths agree, but 5 would be a and c
        (["", ""], [[5], [6]]),  # no texts at all
    ],
)
def test_otherwise_tokens_are_shown_by_their_ids(texts: list[str], ids: list[list[int]]) -> None:
    record = record_of(texts, ids)
    assert text_kind(record) == "ids"
    assert pieces(record) == [[f"#{token}" for token in row] for row in ids]


@pytest.mark.parametrize(("text", "kind"), [("words", "unknown"), ("", "unknown"), ("12", "characters")])
def test_tokens_without_ids(text: str, kind: str) -> None:
    """None at all, or the −1 of a file that did not say."""
    bare = record_of([text], [[-1, -1]])
    for record in (bare, replace(bare, batch=bare.batch.replace(response_ids=None))):
        assert text_kind(record) == kind
        assert pieces(record) == [["1", "2"] if kind == "characters" else [NO_TEXT, NO_TEXT]]
