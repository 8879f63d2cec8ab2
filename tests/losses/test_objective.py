"""Aggregation, KL terms and whole policy losses, by hand and by autograd."""

import math
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from rlcorr import CorrectionConfig, RejectionRule, TokenBatch, correct, preset
from rlcorr.config import Aggregation, Denominator, LossConfig, LossType
from rlcorr.errors import UsageError
from rlcorr.losses.aggregation import aggregate
from rlcorr.losses.objective import policy_loss
from rlcorr.measuring.metric_definitions import OBJECTIVE_METRICS
from rlcorr.measuring.metrics import describe

LOSSES: tuple[LossType, ...] = get_args(LossType)
REFERENCE = {"use_kl_loss": True, "kl_loss_coef": 0.5}
EVERYTHING = {**REFERENCE, "use_rollout_kl_loss": True, "rollout_kl_loss_coef": 0.25}


def settings(loss_type: LossType, **changes) -> CorrectionConfig:
    return CorrectionConfig(loss_type=loss_type, bypass_mode=loss_type == "reinforce", **changes)


# Losses 1 2 | 4 5 | 6 of two sequences and a row of padding; the 2 and the 6 … are rejected as the masks say.
LOSS = torch.tensor([[1.0, 2.0, math.nan], [4.0, 5.0, 6.0], [math.nan, 7.0, 8.0], [9.0, 9.0, 9.0]])
MASK = torch.tensor([[1, 1, 0], [1, 1, 1], [0, 0, 0], [1, 0, 0]]).bool()
KEEP = torch.tensor([[1, 0, 0], [1, 1, 0], [0, 0, 0], [0, 0, 0]]).bool()
# Kept: 1 | 4 5 | - | -, so the sum is 10. Six tokens and three sequences, of which three and two are kept.
EXPECTED: dict[tuple[Aggregation, Denominator], float] = {
    ("token-mean", "fixed"): 10 / 6,
    ("token-mean", "kept"): 10 / 3,
    ("token-sum", "fixed"): 10.0,
    ("token-sum", "kept"): 10.0,
    ("seq-mean-token-sum", "fixed"): 10 / 3,
    ("seq-mean-token-sum", "kept"): 10 / 2,
    ("seq-mean-token-mean", "fixed"): (1 / 2 + 9 / 3) / 3,
    ("seq-mean-token-mean", "kept"): (1 / 1 + 9 / 2) / 2,
    ("seq-mean-token-sum-norm", "fixed"): 10 / 3 / 3,
    ("seq-mean-token-sum-norm", "kept"): 10 / 2 / 3,
}


@pytest.mark.parametrize(("mode", "denominator"), list(EXPECTED))
def test_aggregation(mode: Aggregation, denominator: Denominator) -> None:
    loss = LOSS.clone().requires_grad_()
    got = aggregate(loss, KEEP, MASK, mode, denominator)
    assert got.item() == pytest.approx(EXPECTED[mode, denominator])
    got.backward()
    assert loss.grad is not None
    assert not loss.grad[~KEEP].any()
    # Linear in the losses: the gradients times the losses give the value back.
    assert (loss.grad[KEEP] * LOSS[KEEP]).sum().item() == pytest.approx(EXPECTED[mode, denominator])


def test_divisors_of_one_and_a_scale() -> None:
    """The first column keeps 1 and 4 of three sequences; 10 is the sum of everything kept."""
    norm: Aggregation = "seq-mean-token-sum-norm"
    assert aggregate(LOSS, KEEP, MASK, norm, scale=100.0).item() == pytest.approx(10 / 3 / 100)
    assert aggregate(LOSS[:, :1], KEEP[:, :1], MASK[:, :1], norm).item() == pytest.approx(5 / 3)
    assert aggregate(LOSS, KEEP, MASK, "token-mean", tokens=1.0).item() == 10
    assert aggregate(LOSS, KEEP, MASK, "seq-mean-token-sum", sequences=1.0).item() == 10


def made(seed: int = 0, rows: int = 3, columns: int = 5) -> tuple[Tensor, TokenBatch]:
    """log π_θ, and a batch with everything; NaN and inf on padding, in float64."""
    rng = torch.Generator().manual_seed(seed)

    def noise(scale: float) -> Tensor:
        return scale * torch.randn(rows, columns, generator=rng, dtype=torch.float64)

    mask = torch.arange(columns) < torch.randint(1, columns + 1, (rows, 1), generator=rng)
    rollout = -torch.rand(rows, columns, generator=rng, dtype=torch.float64) * 2 - 0.6
    old, ref = rollout + noise(0.2), rollout + noise(0.2)
    theta = (old + noise(0.1)).requires_grad_()
    wild = torch.tensor([math.nan, math.inf, -math.inf], dtype=torch.float64)

    def spoilt(x: Tensor) -> Tensor:
        return torch.where(mask, x, wild[torch.randint(0, 3, (rows, columns), generator=rng)])

    return theta, TokenBatch(
        mask, spoilt(rollout), spoilt(old), ref_log_probs=spoilt(ref), advantages=spoilt(noise(1.0))
    )


def loss_of(theta: Tensor, batch: TokenBatch, correction: CorrectionConfig, loss: LossConfig) -> Tensor:
    draw = torch.Generator().manual_seed(7)
    return policy_loss(theta, batch, correct(batch, correction), correction, loss, generator=draw)[0]


@pytest.mark.parametrize("loss_type", LOSSES)
@pytest.mark.parametrize("what", ["all rejected", "no rows", "no columns", "no tokens"])
def test_nothing_to_train_on_is_zero_with_a_graph(loss_type: LossType, what: str) -> None:
    """Whatever the aggregation and the denominator. verl's is NaN, unless the trainer passes a token count."""
    theta, batch = made()
    if what != "all rejected":
        nothing = torch.zeros({"no rows": (0, 4), "no columns": (2, 0)}.get(what, (2, 3)))
        theta = nothing.clone().requires_grad_()
        batch = TokenBatch(nothing.bool(), nothing, nothing, ref_log_probs=nothing, advantages=nothing)
    rule = RejectionRule.named("token_k1", lower=90.0, upper=91.0)
    for mode, denominator in EXPECTED:
        correction = settings(loss_type, rollout_rs=(rule,), denominator=denominator)
        config = LossConfig(loss_agg_mode=mode, **REFERENCE)
        value, measured = policy_loss(theta, batch, correct(batch, correction), correction, config)
        (gradient,) = torch.autograd.grad(value, theta)
        assert value.item() == 0, (mode, denominator)
        assert not gradient.any(), (mode, denominator)
        assert dict(measured.rows())["lr_factor"][1] == 0


@pytest.mark.parametrize("loss_type", LOSSES)
def test_only_log_pi_theta_gets_a_gradient(loss_type: LossType) -> None:
    theta, batch = made()
    given = {name: x.clone().requires_grad_() for name, x in batch.tensors().items() if x.is_floating_point()}
    batch = batch.replace(**given)
    weights = {} if loss_type not in ("reinforce", "gpg") else {"rollout_is": "token"}
    loss_of(theta, batch, settings(loss_type, **weights), LossConfig(**EVERYTHING)).backward()
    assert {name for name, x in given.items() if x.grad is not None} == set()
    assert theta.grad is not None
    assert theta.grad.isfinite().all()
    assert theta.grad[batch.response_mask].any()


@pytest.mark.parametrize("loss_type", LOSSES)
@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_a_rejected_token_may_hold_anything(loss_type: LossType, bad: float) -> None:
    """A token that is NaN, or impossible under every policy, is rejected, and no gradient suffers."""
    theta, batch = made()
    given = {name: x.clone() for name, x in batch.tensors().items()}
    moved = theta.detach().clone()
    for x in (moved, *given.values()):
        if x.is_floating_point():
            x[0, 0] = bad
    moved.requires_grad_()
    rule = RejectionRule.named("token_k1", lower=0.2, upper=5.0)
    correction = settings(loss_type, rollout_rs=(rule,), rollout_is="token")
    loss = loss_of(moved, TokenBatch(**given), correction, LossConfig(**EVERYTHING))
    loss.backward()
    assert loss.isfinite()
    assert moved.grad is not None
    assert moved.grad.isfinite().all()
    assert moved.grad[0, 0] == 0


@pytest.mark.parametrize("loss_type", LOSSES)
@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
def test_a_rejected_token_is_as_good_as_padding(loss_type: LossType, mode: Aggregation) -> None:
    """If kept tokens are what is counted: value, gradient and metrics; only shares of all tokens know the difference.

    Of the first row one token goes, of the second all. The rollout KL loss, which acts on rejected tokens, is off.
    """
    theta, batch = made(rows=4)
    gone = torch.zeros_like(batch.response_mask)
    gone[0, 0], gone[1] = True, batch.response_mask[1]
    batch = batch.replace(rollout_log_probs=torch.where(gone, -99.0, batch.rollout_log_probs))
    rule = RejectionRule.named("token_k1", lower=0.01, upper=99.0)
    correction = settings(loss_type, rollout_rs=(rule,), rollout_is="token", denominator="kept")
    config = LossConfig(
        loss_agg_mode=mode, clip_ratio_low=0.05, clip_ratio_high=0.05, numbers={"kl_cov_ratio": 0.2}, **REFERENCE
    )
    outcomes = []
    for variant in (batch, batch.replace(response_mask=batch.response_mask & ~gone)):
        theta.grad = None
        draw, result = torch.Generator().manual_seed(7), correct(variant, correction)
        assert torch.equal(result.keep_mask, batch.response_mask & ~gone)
        value, measured = policy_loss(theta, variant, result, correction, config, generator=draw)
        value.backward()
        assert theta.grad is not None
        rows = dict(zip(measured.names, measured.table.tolist(), strict=True))
        of_all = ("lr_factor", "kl_left_out")
        outcomes.append((value.item(), theta.grad.tolist(), {key: rows[key] for key in rows if key not in of_all}))
    assert outcomes[0] == outcomes[1]


# One sequence of two tokens; probabilities of the sampled tokens under the three policies, advantage 1.
ROLLOUT, OLD, NEW = (0.5, 0.4), (0.25, 0.6), (0.275, 0.9)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # ratios new/old: 1.1 and 1.5, the second clipped at 1.2; weights old/rollout: 0.5 and 1.5
        ("decoupled_token_is", -1.1 * 0.5 - 1.2 * 1.5),
        ("disabled", -1.1 - 1.2),
        # new/rollout: 0.55 (below the clip, and the unclipped branch is the larger loss) and 2.25, clipped at 1.2
        ("bypass_ppo_clip", -0.55 - 1.2),
        # sequence weight new/rollout: 0.55 · 2.25 = 1.2375, below the cap of 2; loss −A log π_θ · w
        ("bypass_pg_is", -1.2375 * math.log(0.275 * 0.9)),
        # geometric mean of new/rollout: √1.2375 = 1.11, outside 1 ± 0.001
        ("bypass_ppo_clip_geo_rs", 0.0),
        # mean k3 of log(0.55), log(2.25): (0.148 + 0.439)/2 = 0.29 > 0.01
        ("bypass_ppo_clip_k3_rs", 0.0),
    ],
)
def test_which_policies_enter_which_ratio(name: str, expected: float) -> None:
    rollout, old, new = (torch.tensor([p]).log() for p in (ROLLOUT, OLD, NEW))
    batch = TokenBatch(torch.ones(1, 2).bool(), rollout, old, advantages=torch.ones(1, 2))
    loss = loss_of(new, batch, preset(name), LossConfig(loss_agg_mode="token-sum"))
    assert loss.item() == pytest.approx(expected)


@pytest.mark.parametrize(("mode", "denominator"), list(EXPECTED))
def test_the_whole_objective_sums_over_microbatches(mode: Aggregation, denominator: Denominator) -> None:
    """KL terms included, and a row of padding that counts nowhere."""
    theta, batch = made(rows=4)
    mask = batch.response_mask.clone()
    mask[3] = False
    batch = batch.replace(response_mask=mask)
    correction = settings(
        "ppo_clip", rollout_rs=(RejectionRule.named("token_k1", lower=0.9, upper=1.2),), denominator=denominator
    )
    config = LossConfig(loss_agg_mode=mode, rollout_kl_loss_agg_mode=mode, kl_loss_tokens="response", **EVERYTHING)
    result = correct(batch, correction)
    counted = mask if denominator == "fixed" else result.keep_mask
    totals: dict[str, Any] = {"tokens": float(counted.sum()), "sequences": float(counted.any(-1).sum())}
    totals |= {"response_tokens": float(mask.sum()), "response_sequences": float(mask.any(-1).sum())}
    whole, _ = policy_loss(theta, batch, result, correction, config)
    parts = [
        policy_loss(theta[i], batch.rows(i), result.rows(i), correction, config, **totals)[0]
        for i in (slice(0, 1), slice(1, 4))
    ]
    assert sum(part.item() for part in parts) == pytest.approx(whole.item())


def of_pairs(old: list[float], rollout: list[float], advantages: list[float], **more: Tensor) -> TokenBatch:
    p, q, a = (torch.tensor([x]) for x in (old, rollout, advantages))
    return TokenBatch(torch.ones(1, len(old)).bool(), q, p, advantages=a, **more)


def test_geo_mean_counts_a_weight_of_zero_as_one_in_ten_billion() -> None:
    """As verl does. IcePop weights 1 and 0 have the geometric mean √1e-10 = 1e-5."""
    masked, old = settings("geo_mean", rollout_is="token", rollout_is_mode="mask"), torch.tensor([[-1.0, -1.0]])
    got = loss_of(old, of_pairs([-1.0, -1.0], [-1.0, -9.0], [1.0, 1.0]), masked, LossConfig())
    assert got.item() == pytest.approx(-1e-5, rel=1e-4)


def test_kl_terms_are_added_with_their_coefficients() -> None:
    """log π_θ/π_ref = 1, 2 and log π_θ/π_rollout = 3, 4: k2 has means 5/4 and 25/4."""
    batch = of_pairs([-1.0, -1.0], [-4.0, -5.0], [1.0, 1.0], ref_log_probs=torch.tensor([[-2.0, -3.0]]))
    with_both = loss_of(torch.tensor([[-1.0, -1.0]]), batch, CorrectionConfig(), LossConfig(**EVERYTHING))
    assert with_both.item() == pytest.approx(-1 + 0.5 * 5 / 4 + 0.25 * 25 / 4)


def read(theta: Tensor, batch: TokenBatch, correction: CorrectionConfig, loss: LossConfig) -> dict[str, float]:
    _, measured = policy_loss(theta, batch, correct(batch, correction), correction, loss)
    rows = zip(measured.names, measured.table, strict=True)
    return {str(name): float(row[1] / row[0]) for name, row in rows if row[0]}


def test_metrics_of_the_update() -> None:
    """ρ = e^0.5, e^−0.5, e^1.5, 1 with A = 1, 1, −1, −1: one clipped above; e^1.5 > 3 with A < 0 is cut by c."""
    d, old = torch.tensor([[0.5, -0.5, 1.5, 0.0]]), torch.full((1, 4), -3.0)
    batch = of_pairs([-3.0] * 4, [-3.0] * 4, [1.0, 1.0, -1.0, -1.0], ref_log_probs=old)
    got = read(old + d, batch, settings("dual_clip"), LossConfig(**EVERYTHING))
    assert got["actor/pg_clipfrac"] == 0.25
    assert got["actor/pg_clipfrac_lower"] == 0.25
    assert got["actor/ppo_kl"] == pytest.approx(-0.375)
    assert got["actor/kl_loss"] == pytest.approx((0.25 + 0.25 + 2.25) / 2 / 4)
    assert got["rollout_kl"] == pytest.approx((0.25 + 0.25 + 2.25) / 2 / 4)
    assert got["lr_factor"] == 1
    assert set(got) == set(OBJECTIVE_METRICS)
    assert all(OBJECTIVE_METRICS[key].meaning in describe(key) for key in got)


# log ρ and A of four tokens: one pushed on beyond the clip on each side, one pushed back, one without an advantage.
MOVED, PUSH = torch.tensor([[0.5, -0.5, 1.5, 0.7]]), torch.tensor([[1.0, -1.0, -1.0, 0.0]])


@pytest.mark.parametrize(
    ("loss_type", "expected"),
    [
        ("ppo_clip", 2 / 4),
        ("clip_cov", 2 / 4),
        ("dual_clip", 2 / 4),  # the third is cut by c instead: pg_clipfrac_lower
        ("cispo", 4 / 4),  # whatever A is
        ("geo_mean", 1 / 4),  # A > 0; pg_clipfrac_lower counts A < 0
        ("dppo_tv", 2 / 4),  # π_θ − π_old = 0.13 and −0.08 against ±0.05; the others are not pushed on
        ("gspo", 1 / 4),  # the row's ratio is e^0.55: above the clip, for the one token with A > 0
        ("sapo", None),
        ("gpg", None),
        ("kl_cov", None),
    ],
)
def test_where_the_clip_of_each_loss_binds(loss_type: LossType, expected: float | None) -> None:
    old = torch.full((1, 4), -1.6)
    batch = TokenBatch(torch.ones(1, 4).bool(), old, old, advantages=PUSH)
    config = LossConfig(clip_ratio_low=0.05, clip_ratio_high=0.05)
    got = read(old + MOVED, batch, settings(loss_type), config)
    assert got.get("actor/pg_clipfrac") == expected
    lower = {"dual_clip": 1 / 4, "geo_mean": 2 / 4}
    assert got.get("actor/pg_clipfrac_lower") == lower.get(loss_type)


CLIPPED: list[LossType] = ["ppo_clip", "dual_clip", "gspo", "clip_cov", "cispo", "geo_mean", "dppo_tv"]


@pytest.mark.parametrize("loss_type", CLIPPED)
def test_a_ratio_on_the_clip_is_not_clipped(loss_type: LossType) -> None:
    """A clip of width 0, and policies that agree; and a ratio of c."""
    batch, config = of_pairs([-0.7] * 2, [-0.7] * 2, [1.0, -1.0]), LossConfig(clip_ratio_low=0, clip_ratio_high=0)
    got = read(torch.full((1, 2), -0.7), batch, settings(loss_type), config)
    assert got["actor/pg_clipfrac"] == got.get("actor/pg_clipfrac_lower", 0) == 0
    at_c = LossConfig(numbers={"clip_ratio_c": torch.tensor(0.5).exp().item()})
    got = read(torch.tensor([[-1.0]]), of_pairs([-1.5], [-1.5], [-1.0]), settings("dual_clip"), at_c)
    assert got["actor/pg_clipfrac_lower"] == 0


def test_the_loss_of_one_token_is_its_own_mean() -> None:
    """ρ = 1 and A = 2: the loss is −2, of a mini-batch of one token as of any other."""
    batch, correction = of_pairs([-1.0], [-1.0], [2.0]), settings("ppo_clip")
    result = correct(batch, correction)
    theta = torch.tensor([[-1.0]])
    _, measured = policy_loss(theta, batch, result, correction, LossConfig(), tokens=1.0, sequences=1.0)
    assert dict(measured.rows())["actor/pg_loss"][:2] == [1, -2]


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("advantages", "the policy loss needs advantages; the batch has none"),
        ("ref_log_probs", "use_kl_loss needs ref_log_probs; the batch has none"),
        ("old_log_probs", "the policy loss needs old_log_probs, or bypass_mode=True; the batch has none"),
    ],
)
def test_missing(missing: str, message: str) -> None:
    theta, batch = made()
    correction, result = CorrectionConfig(), correct(batch, CorrectionConfig())
    with pytest.raises(UsageError, match=message):
        policy_loss(theta, batch.replace(**{missing: None}), result, correction, LossConfig(use_kl_loss=True))
