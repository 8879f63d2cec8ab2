"""Every number of a token's story against loops over floats (oracle.py), for every preset and rules of every kind."""

import math
from dataclasses import replace

import oracle
import pytest
import torch
from app_runs import make_record
from rules_under_test import RULES_UNDER_TEST
from token_batches import BATCH, GIVEN, TOKENS, rule_of

from rlcorr import PRESETS, CorrectionConfig, RejectionRule, TokenBatch, correct
from rlcorr.analysis.token_story import TokenStory, furthest_token, mean_ratios, ordered_rows, token_story
from rlcorr.config import LossConfig
from rlcorr.errors import UsageError
from rlcorr.figures.fates import shades
from rlcorr.records.step_files import StepRecord
from rlcorr.records.token_texts import END, NO_TEXT, pieces, text_kind


def stories(config: CorrectionConfig, loss: LossConfig | None = None) -> dict[tuple[int, int], TokenStory]:
    result = correct(BATCH, config)
    return {(b, t): token_story(BATCH, result, config, b, t, loss) for b, t in TOKENS}


def test_every_kind_of_rule() -> None:
    for name in RULES_UNDER_TEST:
        assert_stories_of_rule(name)


def assert_stories_of_rule(name: str) -> None:
    rule = rule_of(name)
    config = CorrectionConfig(rollout_rs=(rule,))
    alone = oracle.statistics(replace(rule, level="token", reduce=None), GIVEN)
    compared = oracle.statistics(rule, GIVEN)
    told = stories(config)
    assert {story.rejected_by for story in told.values()} == {name, None}, name
    for (b, t), story in told.items():
        case = (name, b, t)
        (seen,) = story.rules
        rejected = oracle.objects(rule, GIVEN, b, t, compared[b][t])
        assert not oracle.near_bound(rule, compared[b][t]), case
        assert seen.token_value == pytest.approx(alone[b][t], rel=2e-3, abs=2e-6), case
        assert seen.statistic == pytest.approx(compared[b][t], rel=2e-3, abs=2e-6), case
        assert (seen.lower, seen.upper) == oracle.log_bounds(rule), case
        assert seen.inside == oracle.passes(rule, compared[b][t]), case
        assert seen.passes != rejected, case
        assert story.rejected_by == (name if rejected else None), case


def test_weights_of_a_prefix() -> None:
    config = CorrectionConfig(rollout_is="prefix", rollout_is_threshold=1.5)
    logs = oracle.log_weights(oracle.correct(GIVEN, config).log_ratio, GIVEN.mask, "prefix")
    for (b, t), story in stories(config).items():
        assert story.log_weight == pytest.approx(logs[b][t], rel=1e-5, abs=1e-6), (b, t)
        assert story.weight == pytest.approx(oracle.bound_weight(logs[b][t], config), rel=1e-4), (b, t)


def test_every_preset() -> None:
    for name in PRESETS:
        assert_stories_of_preset(name)


def assert_stories_of_preset(name: str) -> None:
    config = PRESETS[name].config
    expected = oracle.correct(GIVEN, config)
    logs = oracle.log_weights(expected.log_ratio, GIVEN.mask, config.rollout_is or "token")
    for (b, t), story in stories(config, PRESETS[name].loss).items():
        case = (name, b, t)
        d = expected.log_ratio[b][t]
        log_w = 0.0 if config.rollout_is is None else logs[b][t]
        number = expected.rejected_by[b][t]
        pair = pytest.approx((GIVEN.old[b][t], GIVEN.rollout[b][t]))
        assert (story.old_log_prob, story.rollout_log_prob) == pair, case
        assert story.old_prob == pytest.approx(math.exp(GIVEN.old[b][t])), case
        assert story.rollout_prob == pytest.approx(math.exp(GIVEN.rollout[b][t])), case
        assert (story.log_ratio, story.ratio) == pytest.approx((d, oracle.ratio(d)), rel=1e-5, abs=1e-6), case
        assert story.log_weight == pytest.approx(log_w, rel=1e-5, abs=1e-6), case
        assert story.raw_weight == pytest.approx(oracle.ratio(log_w), rel=1e-4), case
        bounded = 1.0 if config.rollout_is is None else oracle.bound_weight(log_w, config)
        assert story.bounded_weight == pytest.approx(bounded, rel=1e-4), case
        assert story.weight == pytest.approx(expected.weights[b][t], rel=1e-4), case
        assert (story.norm_factor is not None) == config.rollout_is_batch_normalize, case
        assert story.rejected_by == (config.rollout_rs[number - 1].name if number else None), case
        assert story.tokens == sum(GIVEN.mask[b]), case


def test_what_a_token_adds_to_the_gradient() -> None:
    """−∂loss/∂log π_θ at π_θ = π_old: w·A/N times the loss's own ratio, unless its clip takes the gradient."""
    for name, preset in PRESETS.items():
        config, loss = preset.config, preset.loss
        expected = oracle.correct(GIVEN, config)
        counted = GIVEN.mask if config.denominator == "fixed" else expected.keep
        tokens = sum(sum(row) for row in counted)
        for (b, t), story in stories(config, loss).items():
            ratio_in_loss = own_ratio(config, loss, b, t) if expected.keep[b][t] else 0.0
            advantage = advantage_of(b, t)
            assert (story.advantage, story.counted) == (advantage, tokens), (name, b, t)
            contribution = expected.weights[b][t] * ratio_in_loss * advantage / tokens
            assert story.contribution == pytest.approx(contribution, rel=1e-4, abs=1e-9), (name, b, t)


def advantage_of(b: int, t: int) -> float:
    assert GIVEN.advantages is not None
    return GIVEN.advantages[b][t]


def own_ratio(config: CorrectionConfig, loss: LossConfig, b: int, t: int) -> float:
    """The derivative of the loss with respect to −A log π_θ."""
    p, q, up = math.exp(GIVEN.old[b][t]), math.exp(GIVEN.rollout[b][t]), advantage_of(b, t) > 0
    if not config.bypass_mode or config.loss_type == "reinforce":
        return 1.0  # π_θ/π_old is 1
    if config.loss_type in ("drpo", "vespo", "cppo"):
        return own_ratio_of_answer(config.loss_type, b, t)
    moved = {"ppo_clip": oracle.ratio(GIVEN.old[b][t] - GIVEN.rollout[b][t]) - 1, "dppo_tv": p - q}.get(
        config.loss_type, oracle.signed_kl(GIVEN.old[b][t], GIVEN.rollout[b][t])
    )
    outside = moved > loss.clip_ratio_high if up else moved < -loss.clip_ratio_low
    r = oracle.ratio(GIVEN.old[b][t] - GIVEN.rollout[b][t])
    return 0.0 if outside else min(r, loss.number("dppo_ratio_cap")) if config.loss_type != "ppo_clip" else r


def own_ratio_of_answer(loss_type: str, b: int, t: int) -> float:
    """drpo: ρ (1 − sign(A)(π_θ − π_rollout)/12.5). vespo: φ(W) with W the product. cppo: ρ, or 0 outside its budget."""
    real = [u for u, m in enumerate(GIVEN.mask[b]) if m]
    d = {u: GIVEN.old[b][u] - GIVEN.rollout[b][u] for u in real}
    gap = {u: abs(math.exp(GIVEN.old[b][u]) - math.exp(GIVEN.rollout[b][u])) for u in real}
    a = advantage_of(b, t)
    if loss_type != "vespo" and abs(d[t]) > 20:
        return 0.0  # the clamp before exp is flat
    if loss_type == "drpo":
        moved = math.copysign(gap[t], d[t])
        return math.exp(d[t]) * (1 - math.copysign(1, a) * moved / 12.5)
    if loss_type == "vespo":
        k, decay = (2, 3) if a >= 0 else (3, 2)
        log_w = min(max(sum(d.values()), math.log(1e-8)), 20)
        return math.exp(k * log_w + decay * (1 - math.exp(log_w)))
    w = {u: 1 - 0.2 * i / max(len(real) - 1, 1) for i, u in enumerate(real)}
    at = 0.9 * (len(real) - 1)
    low, high = (sorted(gap.values())[place] for place in (math.floor(at), math.ceil(at)))
    room = min(max(low + (at - math.floor(at)) * (high - low), 0.02), 0.04)
    left = 0.2 + sum(room * w[u] - w[u] * gap[u] for u in real if u < t)
    return math.exp(d[t]) if w[t] * gap[t] <= min(0.2, left) or a * d[t] <= 0 else 0.0


def test_a_loss_that_compares_the_batch_has_no_contribution_of_one_token() -> None:
    assert stories(CorrectionConfig(loss_type="kl_cov"))[0, 0].contribution is None


def test_without_advantages_there_is_no_contribution() -> None:
    batch = BATCH.replace(advantages=None)
    story = token_story(batch, correct(batch, CorrectionConfig()), CorrectionConfig(), 0, 0)
    assert (story.advantage, story.contribution) == (None, None)


@pytest.mark.parametrize(
    ("row", "column", "words"),
    [(6, 0, "no response 6; the batch has 6"), (-1, 0, "no response -1"), (2, 1, "response 2 has no token 1; it has 1"),
     (0, 7, "response 0 has no token 7; it has 7"), (0, -1, "response 0 has no token -1")],
)  # fmt: skip
def test_a_token_that_is_not_there(row: int, column: int, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        token_story(BATCH, correct(BATCH, CorrectionConfig()), CorrectionConfig(), row, column)


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


def test_mean_ratios() -> None:
    batch, config = small()
    expected = [math.exp(0.1), math.exp(-0.4), 1.0, math.nan]
    assert mean_ratios(batch, correct(batch, config)) == pytest.approx(expected, nan_ok=True)


def test_an_order_that_does_not_exist_and_one_without_rewards() -> None:
    batch, config = small()
    with pytest.raises(UsageError, match="unknown order 'offf'"):
        ordered_rows(batch, correct(batch, config), "offf")  # pyright: ignore[reportArgumentType]
    bare = batch.replace(rewards=None)
    with pytest.raises(UsageError, match="needs rewards"):
        ordered_rows(bare, correct(bare, config), "lowest")


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


def test_a_recorded_batch_of_words() -> None:
    record = make_record(3)
    lengths = record.batch.response_mask.sum(-1).tolist()
    assert [len(row) for row in pieces(record)] == lengths
    assert pieces(record)[0][:2] == ["#0", "#1"]


@pytest.mark.parametrize(("text", "kind"), [("words", "unknown"), ("", "unknown"), ("12", "characters")])
def test_tokens_without_ids(text: str, kind: str) -> None:
    """None at all, or the −1 of a file that did not say."""
    bare = record_of([text], [[-1, -1]])
    for record in (bare, replace(bare, batch=bare.batch.replace(response_ids=None))):
        assert text_kind(record) == kind
        assert pieces(record) == [["1", "2"] if kind == "characters" else [NO_TEXT, NO_TEXT]]
