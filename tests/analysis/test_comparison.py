"""Differences of two corrections against loops over tokens and sequences in numpy, in float64."""

import pytest
from two_corrections import BATCH, MASK, PAIRS, RULE, TIS, counted

from rlcorr import CorrectionConfig, RejectionRule, correct
from rlcorr.analysis import comparison


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_every_token_is_counted_where_it_belongs(a: CorrectionConfig, b: CorrectionConfig) -> None:
    expected = counted(a, b)
    codes = comparison.shared(BATCH, correct(BATCH, a), correct(BATCH, b))
    assert {name: int((codes == code).sum()) for code, name in enumerate(comparison.SHARED)} == expected
    agreement = comparison.agreement(BATCH, correct(BATCH, a), correct(BATCH, b))
    assert vars(agreement) == {
        "both": expected["both"], "only_a": expected["only A"], "only_b": expected["only B"],
        "neither": expected["neither"],
    }  # fmt: skip
    different = expected["only A"] + expected["only B"]
    assert agreement.differing == different / MASK.sum()


def test_the_cases_differ() -> None:
    """The oracle would say little if it always counted the same."""
    counts = [counted(a, b) for a, b in PAIRS]
    assert all(counts[0][name] > 0 for name in ("both", "only A"))
    assert all(counts[1][name] > 0 for name in ("both", "neither", "only A", "only B"))
    assert counts[4]["only A"] == counts[4]["only B"] == 0 < counts[4]["neither"]


def test_two_that_train_on_nothing_agree() -> None:
    nothing = CorrectionConfig(rollout_rs=(RejectionRule.named("seq_max_k2", upper=1e-12),))
    result = correct(BATCH, nothing)
    agreement = comparison.agreement(BATCH, result, result)
    assert (agreement.differing, agreement.neither) == (0, MASK.sum())
    empty = BATCH.rows(slice(3, 4))
    agreement = comparison.agreement(empty, correct(empty, TIS), correct(empty, RULE))
    assert (agreement.differing, agreement.neither) == (0, 0)
