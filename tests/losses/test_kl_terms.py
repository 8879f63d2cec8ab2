"""The KL terms of the loss: which tokens they act on, what they are divided by, and what cannot be compared."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from rlcorr import CorrectionConfig, RejectionRule, TokenBatch, correct
from rlcorr.config import Aggregation, Denominator, LossConfig
from rlcorr.errors import UsageError
from rlcorr.losses.objective import policy_loss, score_coefficients

# log π_θ − log target of four tokens in two rows, beside a row without a token. The rule rejects those with δ ≥ 2, of
# which the first row has no other.
DELTA = torch.tensor([[2.0, 0.0, 0.0], [1.0, 0.0, 4.0], [0.0, 0.0, 0.0]])
MASK = torch.tensor([[1, 0, 0], [1, 1, 1], [0, 0, 0]]).bool()
REJECTS = (RejectionRule.named("token_k1", lower=0.1, upper=5.0),)  # e^1 = 2.7 stays, e^2 = 7.4 and e^4 go
# k2 = δ²/2: 2 | ½ 0 8, so 10.5 of four tokens, and 2 and 8½/3 by row; each with its gradient.
ROW_MEANS = 2 + 8.5 / 3
OF_ROWS = torch.tensor([[2.0, 0.0, 0.0], [1 / 3, 0.0, 4 / 3], [0.0, 0.0, 0.0]])
OF_MODE: dict[Aggregation, tuple[float, Tensor]] = {
    "token-mean": (10.5 / 4, DELTA / 4),
    "token-sum": (10.5, DELTA),
    "seq-mean-token-sum": (10.5 / 2, DELTA / 2),
    "seq-mean-token-mean": (ROW_MEANS / 2, OF_ROWS / 2),
    "seq-mean-token-sum-norm": (10.5 / 2 / 8, DELTA / 2 / 8),
}
DENOMINATORS: tuple[Denominator, ...] = ("fixed", "kept")


def made(padding: float = math.nan) -> tuple[Tensor, TokenBatch]:
    """log π_θ, and a batch in which the engine is the reference as well; the advantages are 0."""
    theta = torch.where(MASK, DELTA - 5, padding).requires_grad_()
    target, nothing = torch.where(MASK, -5.0, padding), torch.where(MASK, 0.0, padding)
    old = torch.where(MASK, DELTA - 5, padding)
    return theta, TokenBatch(MASK, target, old, ref_log_probs=target, advantages=nothing)


def outcome(
    loss: LossConfig, correction: CorrectionConfig, **totals: Any
) -> tuple[float, Tensor, dict[str, tuple[float, float]]]:
    """Value, gradient, and count and sum of each metric."""
    theta, batch = made()
    value, measured = policy_loss(theta, batch, correct(batch, correction), correction, loss, **totals)
    value.backward()
    assert theta.grad is not None
    rows = zip(measured.names, measured.table.tolist(), strict=True)
    return value.item(), theta.grad, {str(name): (row[0], row[1]) for name, row in rows}


def rollout_kl(mode: Aggregation, **changes: Any) -> LossConfig:
    return LossConfig(
        use_rollout_kl_loss=True, rollout_kl_loss_coef=1.0, rollout_kl_loss_agg_mode=mode, loss_scale_factor=8.0,
        **changes,
    )  # fmt: skip


@pytest.mark.parametrize("bypass", [False, True], ids=["decoupled", "bypass"])
def test_the_rollout_kl_loss_pulls_rejected_tokens_back(bypass: bool) -> None:
    """Whatever the aggregation and the denominator of the policy loss are."""
    for mode, (expected, gradient) in OF_MODE.items():
        for denominator in DENOMINATORS:
            correction = CorrectionConfig(rollout_rs=REJECTS, denominator=denominator, bypass_mode=bypass)
            value, got, metrics = outcome(rollout_kl(mode), correction)
            assert value == pytest.approx(expected), (mode, denominator)
            torch.testing.assert_close(got, gradient, msg=f"{mode}, {denominator}")
            assert metrics["rollout_kl"] == pytest.approx((2, ROW_MEANS)), (mode, denominator)
            assert metrics["kl_left_out"] == (4, 0)


def test_skyrl_counts_rows_without_a_token() -> None:
    """Its mean is over all rows (pull request 1811): `sequences` says so."""
    value, gradient, _ = outcome(rollout_kl("seq-mean-token-mean"), CorrectionConfig(rollout_rs=REJECTS), sequences=3)
    assert value == pytest.approx(ROW_MEANS / 3)
    torch.testing.assert_close(gradient, OF_ROWS / 3)


def test_the_kl_to_the_reference_takes_the_tokens_that_it_is_told_to() -> None:
    """Kept are δ = 1 and 0 of the second row: ½ of four tokens or of two, and of two rows or of one."""
    only_kept = torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    kept = {
        ("token-mean", "fixed"): (0.5 / 4, only_kept / 4),
        ("token-mean", "kept"): (0.5 / 2, only_kept / 2),
        ("seq-mean-token-mean", "fixed"): (0.5 / 3 / 2, only_kept / 3 / 2),
        ("seq-mean-token-mean", "kept"): (0.5 / 2 / 1, only_kept / 2),
    }
    for (mode, denominator), (expected, gradient) in kept.items():
        correction = CorrectionConfig(rollout_rs=REJECTS, denominator=denominator)  # pyright: ignore[reportArgumentType]
        loss = LossConfig(use_kl_loss=True, kl_loss_coef=1.0, loss_agg_mode=mode)  # pyright: ignore[reportArgumentType]
        value, got, metrics = outcome(loss, correction)
        assert value == pytest.approx(expected), (mode, denominator)
        torch.testing.assert_close(got, gradient, msg=f"{mode}, {denominator}")
        assert metrics["actor/kl_loss"] == pytest.approx((2, 0.5))
    for mode, (expected, gradient) in OF_MODE.items():
        for denominator in DENOMINATORS:
            loss = LossConfig(
                use_kl_loss=True, kl_loss_coef=1.0, kl_loss_tokens="response", loss_agg_mode=mode, loss_scale_factor=8.0
            )
            value, got, metrics = outcome(loss, CorrectionConfig(rollout_rs=REJECTS, denominator=denominator))
            assert value == pytest.approx(expected), (mode, denominator)
            torch.testing.assert_close(got, gradient, msg=f"{mode}, {denominator}")
            assert metrics["actor/kl_loss"] == pytest.approx((4, 10.5))


EVERYWHERE = LossConfig(
    use_kl_loss=True, kl_loss_coef=1.0, kl_loss_tokens="response", use_rollout_kl_loss=True, rollout_kl_loss_coef=1.0
)


@pytest.mark.parametrize("bad", [-math.inf, math.inf, math.nan])
@pytest.mark.parametrize("field", ["rollout_log_probs", "ref_log_probs", "theta"])
def test_a_rejected_token_without_a_finite_penalty_counts_0_and_is_counted(field: str, bad: float) -> None:
    """The last token of the second row, which the rule rejects anyway. It has no finite pull, so of the terms that
    cannot be formed 8 of 10.5, and 8/3 by row, go; it stays in the denominators."""
    theta, batch = made()
    correction = CorrectionConfig(rollout_rs=REJECTS)
    decided = correct(batch, correction)
    moved = theta.detach().clone()
    changed = moved if field == "theta" else batch.tensors()[field].clone()
    changed[1, 2] = bad
    if field != "theta":
        batch = batch.replace(**{field: changed})
    moved.requires_grad_()
    value, measured = policy_loss(moved, batch, decided, correction, EVERYWHERE)
    value.backward()
    without_reference, without_engine = field in ("ref_log_probs", "theta"), field in ("rollout_log_probs", "theta")
    expected = (2.5 if without_reference else 10.5) / 4 + (2 + (0.5 if without_engine else 8.5) / 3) / 2
    assert value.item() == pytest.approx(expected)
    assert moved.grad is not None
    pull = (0 if without_reference else 4 / 4) + (0 if without_engine else 4 / 3 / 2)
    torch.testing.assert_close(moved.grad[1], torch.tensor([1 / 4 + 1 / 3 / 2, 0.0, pull]))
    metrics = {str(name): row for name, row in zip(measured.names, measured.table.tolist(), strict=True)}
    assert metrics["kl_left_out"][:2] == [4, 1]
    assert metrics["actor/kl_loss"][:2] == pytest.approx([3, 2.5] if without_reference else [4, 10.5])
    # By row it is the mean over what can be compared: ½ and 0 of the second.
    assert metrics["rollout_kl"][:2] == pytest.approx([2, 2 + (0.5 / 2 if without_engine else 8.5 / 3)])


def test_a_kept_token_without_a_finite_penalty_shows() -> None:
    """It is trained on, so the loss must not be a number."""
    theta, batch = made()
    target = batch.rollout_log_probs.clone()
    target[1, 0] = -math.inf
    decided = correct(batch, CorrectionConfig())
    for name in ("rollout_log_probs", "ref_log_probs"):
        spoilt = batch.replace(**{name: target})
        value, _ = policy_loss(theta, spoilt, decided, CorrectionConfig(), EVERYWHERE)
        assert not value.isfinite(), name


def test_totals_of_kept_tokens_alone_are_refused() -> None:
    """With denominator='kept' a micro-batch cannot know by what a term on every response token is divided."""
    theta, batch = made()
    correction = CorrectionConfig(rollout_rs=REJECTS, denominator="kept")
    result, loss = correct(batch, correction), rollout_kl("token-mean")
    lacking: list[dict[str, Any]] = [{"tokens": 2.0}, {"sequences": 1.0}, {"tokens": 2.0, "response_sequences": 2.0}]
    for given in lacking:
        with pytest.raises(UsageError, match="pass response_tokens and response_sequences as well"):
            policy_loss(theta, batch, result, correction, loss, **given)
    both: dict[str, Any] = {"tokens": 2.0, "sequences": 1.0, "response_tokens": 8.0, "response_sequences": 4.0}
    value, _ = policy_loss(theta, batch, result, correction, loss, **both)
    assert value.item() == pytest.approx(10.5 / 8)
    coefficients = score_coefficients(theta, batch, result, correction, loss, **both)
    torch.testing.assert_close(coefficients, -DELTA / 8)
    policy_loss(theta, batch, result, correction, LossConfig(use_kl_loss=True), tokens=2.0)  # on kept tokens alone
