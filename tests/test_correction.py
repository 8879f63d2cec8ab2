"""correct() against the scalar oracle, over shapes, paddings, dtypes and extremes; then named cases."""

import itertools
import math
from typing import Any

import oracle
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from token_batches import BATCH, GIVEN, rule_of
from torch import Tensor

from rlcorr import CorrectionConfig, CorrectionResult, RejectionRule, TokenBatch, correct, preset
from rlcorr.correction import norm_factor_sums, row_blocks
from rlcorr.errors import UsageError
from rlcorr.rules import RULE_NAMES
from rlcorr.weights import LEVELS

# Two kinds of bounds per divergence: a tight one that rejects often, and one that only extremes pass.
UPPER = {
    "k1": (1.3, 5.0), "k2": (0.01, 3.0), "k3": (0.01, 3.0), "binary_kl": (0.03, 2.0), "prob_diff": (0.02, 0.3),
    "signed_kl": (0.01, 0.2), "abs_ratio_error": (0.1, 2.0), "mult_error": (1.1, 5.0),
    "forward_kl": (0.01, 2.0), "binary_tv": (0.02, 0.3), "prefix_gap": (0.02, 0.3),
}  # fmt: skip
LOWER = {"k1": 0.7, "prob_diff": -0.03, "signed_kl": -0.02}
BOUNDS = ((None, 2.0), (0.6, 1.7), (0.6, math.inf))


def rule(name: str, loose: int = 0) -> RejectionRule:
    divergence = RULE_NAMES[name][1]
    return RejectionRule.named(name, upper=UPPER[divergence][loose], lower=LOWER.get(divergence))


def assert_rows(got: Tensor, expected: oracle.Rows, case: object) -> None:
    want = torch.tensor(expected, dtype=torch.float64).reshape(got.shape)
    torch.testing.assert_close(
        got.double(), want, rtol=1e-5, atol=1e-6, equal_nan=True, msg=lambda text: f"{case}: {text}"
    )


def assert_corrected(pairs: oracle.Pairs, settings: CorrectionConfig, expected: oracle.Expected) -> CorrectionResult:
    batch = oracle.to_batch(pairs)
    before = batch.response_mask.clone()
    result = correct(batch, settings)
    case = (settings.rollout_is, *(rule.name for rule in settings.rollout_rs))
    assert_rows(result.log_ratio, expected.log_ratio, case)
    assert_rows(result.weights, expected.weights, case)
    assert result.keep_mask.tolist() == expected.keep, case
    assert result.rejected_by.tolist() == expected.rejected_by, case
    assert torch.equal(batch.response_mask, before)
    return result


@oracle.examples(200)
@given(
    oracle.pairs(),
    st.sampled_from(list(itertools.product(LEVELS, ("truncate", "mask"), BOUNDS))),
    st.booleans(),
    st.lists(st.sampled_from(sorted(RULE_NAMES)), max_size=3, unique=True),
)
def test_weights_and_rules(
    pairs: oracle.Pairs, weighting: tuple[str, Any, tuple[float | None, float]], normalize: bool, names: list[str]
) -> None:
    """A generated batch in which a value is so near a bound that rounding decides is skipped."""
    level, mode, (lower, upper) = weighting
    settings = CorrectionConfig(
        rollout_is=level,
        rollout_is_mode=mode,
        rollout_is_threshold_lower=lower,
        rollout_is_threshold=upper,
        rollout_is_batch_normalize=normalize,
        rollout_rs=tuple(rule(name, loose) for name, loose in zip(names, (1, 0, 1), strict=False)),
    )
    expected = oracle.correct(pairs, settings)
    assume(not expected.doubtful)
    assert_corrected(pairs, settings, expected)


def test_every_rule_on_a_batch_that_meets_its_bounds() -> None:
    """Random names may leave a rule out."""
    for name in RULE_NAMES:
        settings = CorrectionConfig(rollout_rs=(rule_of(name),))
        expected = oracle.correct(GIVEN, settings)
        assert not expected.doubtful, name
        result = assert_corrected(GIVEN, settings, expected)
        assert set(result.rejected_by[BATCH.response_mask].tolist()) == {0, 1}, name


def test_no_result_has_a_gradient() -> None:
    given = row(0.5)
    assert given.old_log_probs is not None
    given.old_log_probs.requires_grad_()
    for level in (None, *LEVELS):
        result = correct(given, CorrectionConfig(rollout_is=level))
        assert not result.weights.requires_grad
        assert not result.log_ratio.requires_grad


def test_float64_stays_float64_and_half_becomes_float32() -> None:
    """Thresholds such as 1.001 do not exist in bf16: its neighbours of 1 are 0.99609375 and 1.0078125."""
    for dtype, expected in ((torch.float64, torch.float64), (torch.bfloat16, torch.float32)):
        zeros = torch.zeros(1, 2, dtype=dtype)
        result = correct(TokenBatch.from_log_probs(zeros, zeros, torch.ones(1, 2)), preset("decoupled_token_is"))
        assert result.log_ratio.dtype == expected
        assert result.weights.dtype == expected


def row(*log_ratios: float, mask: list[int] | None = None) -> TokenBatch:
    """One sequence with these log-ratios, exactly: one of the two policies gave every token probability 1."""
    d = torch.tensor([log_ratios], dtype=torch.float64)
    old, rollout = d.clamp(max=0), -d.clamp(min=0)
    real = torch.tensor([mask or [1] * len(log_ratios)]).bool()
    return TokenBatch(response_mask=real, rollout_log_probs=rollout, old_log_probs=old)  # NaN too


def test_a_ratio_on_the_bound_is_inside() -> None:
    """Compared as logarithms. exp(log 5) in float32 is 5.0000005, which a comparison of ratios would reject."""
    old, rollout = torch.tensor([[0.0, math.log(0.5)]]), torch.tensor([[-math.log(5), 0.0]])
    given = TokenBatch.from_log_probs(old, rollout, torch.ones(1, 2))
    icepop = CorrectionConfig(
        rollout_is="token", rollout_is_mode="mask", rollout_is_threshold_lower=0.5, rollout_is_threshold=5.0
    )
    assert correct(given, icepop).weights.all()
    by_rule = CorrectionConfig(rollout_rs=(RejectionRule.named("token_k1", lower=0.5, upper=5.0),))
    assert correct(given, by_rule).keep_mask.all()


def test_rejected_by_names_the_first_rule_that_objected() -> None:
    """d = 0, 1, 0, 3. Rule 1 drops r > e^0.5 (tokens 1 and 3), rule 2 drops the row: its largest k2 is 4.5."""
    rules = (RejectionRule.named("token_k1", lower=0.5, upper=1.6), RejectionRule.named("seq_max_k2", upper=4.0))
    result = correct(row(0, 1, 0, 3, mask=[1, 1, 0, 1]), CorrectionConfig(rollout_rs=rules))
    assert result.rejected_by.tolist() == [[2, 1, 0, 1]]
    turned = correct(row(0, 1, 0, 3, mask=[1, 1, 0, 1]), CorrectionConfig(rollout_rs=rules[::-1]))
    assert turned.rejected_by.tolist() == [[1, 1, 0, 1]]


def test_nan_on_a_real_token_is_rejected() -> None:
    given = row(0.0, math.nan).replace(advantages=torch.tensor([[-1.0, 1.0]]))
    for name in RULE_NAMES:
        result = correct(given, CorrectionConfig(rollout_rs=(rule(name, loose=1),)))
        # The other token has A < 0 and d = 0: a rule about the whole answer takes it along, unless it is about outward
        # tokens only.
        alone = not name.startswith(("seq", "token_prefix")) or name.endswith("outward")
        assert result.keep_mask.tolist() == [[alone, name.endswith("negative")]], name


def test_what_is_missing_is_said() -> None:
    rules = (rule("token_k1"), rule("seq_mean_k1_negative"), rule("token_k2_outward"))
    with pytest.raises(UsageError, match=r"^seq_mean_k1_negative, token_k2_outward asks for the sign of the adv"):
        correct(row(0.0), CorrectionConfig(rollout_rs=rules))
    with pytest.raises(UsageError, match="needs old_log_probs"):
        correct(row(0.0).replace(old_log_probs=None), CorrectionConfig())


@pytest.mark.parametrize(("device", "tokens"), [("cpu", 1 << 18), ("meta", 1 << 22)])
def test_rows_are_put_into_blocks_of_many_tokens(device: str, tokens: int) -> None:
    """A block has as many whole rows as fit into 2¹⁸ tokens on a CPU and 2²² elsewhere, at least one, and no row is in
    two blocks. An empty batch is one block."""
    for rows, columns, ends in (
        (2, 2 * tokens, [(0, 1), (1, 2)]),
        (5, tokens // 2, [(0, 2), (2, 4), (4, 6)]),
        (2, tokens // 2 + 1, [(0, 1), (1, 2)]),
        (0, 1, [(0, tokens)]),
    ):
        mask = torch.ones(rows, columns, dtype=torch.bool, device=device)
        blocks = row_blocks(TokenBatch(mask, torch.zeros_like(mask, dtype=torch.float)))
        assert [(block.start, block.stop) for block in blocks] == ends


def test_a_batch_of_several_blocks_is_corrected_as_one() -> None:
    """Two rows of 2¹⁸ tokens, one block each. Weights 1 and 2 have mean 3/2, once r = 4 is rejected."""
    columns = 1 << 18
    rollout = torch.full((2, columns), -2.0)
    rollout[1] -= math.log(2)
    rollout[1, 0] -= math.log(2)
    given = TokenBatch.from_log_probs(torch.full_like(rollout, -2.0), rollout, torch.ones_like(rollout))
    assert len(row_blocks(given)) == 2
    rules = (RejectionRule.named("token_k1", upper=3.0),)
    result = correct(given, CorrectionConfig(rollout_is="token", rollout_is_batch_normalize=True, rollout_rs=rules))
    assert [row.unique().tolist() for row in result.weights] == [[pytest.approx(w, rel=1e-5)] for w in (2 / 3, 4 / 3)]
    assert result.rejected_by.nonzero().tolist() == [[1, 0]]
    assert torch.equal(result.keep_mask, result.rejected_by == 0)


def test_weights_without_a_mean_are_not_normalised() -> None:
    """e^−18.4 = 1.02e-8 is divided by itself, e^−18.5 = 0.92e-8 counts as 0."""
    settings = CorrectionConfig(rollout_is="token", rollout_is_batch_normalize=True)
    assert correct(row(-18.4), settings).weights.item() == 1
    assert correct(row(-18.5), settings).weights.item() == pytest.approx(math.exp(-18.5))


def test_what_each_row_adds_to_the_mean_weight() -> None:
    """Kept weights 1 and 2, 8, and none: tokens add them up; a sequence has one vote, its mean, if it keeps a token."""
    weights = torch.tensor([[1.0, 2.0, 4.0, 9.0], [8.0, 5.0, 3.0, 9.0], [7.0, 6.0, 9.0, 9.0]])
    keep = torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]).bool()
    of_tokens, of_rows = (norm_factor_sums(weights, keep, per_token=per_token) for per_token in (True, False))
    assert [x.tolist() for x in of_tokens] == [[3.0, 8.0, 0.0], [2.0, 1.0, 0.0]]
    assert [x.tolist() for x in of_rows] == [[1.5, 8.0, 0.0], [1.0, 1.0, 0.0]]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_bound_that_the_dtype_does_not_hold_is_no_bound(level: str, dtype: torch.dtype) -> None:
    """float32 ends at 3.4e38, and ratios at e^20: the weight of e^19 is what it is with infinity."""
    batch = TokenBatch(torch.ones(1, 1).bool(), torch.tensor([[-19.0]]).to(dtype), torch.tensor([[0.0]]).to(dtype))
    settings = [CorrectionConfig(rollout_is=level, rollout_is_threshold=bound) for bound in (1e308, math.inf)]
    assert [correct(batch, one).weights.item() for one in settings] == [pytest.approx(math.exp(19), rel=1e-5)] * 2
