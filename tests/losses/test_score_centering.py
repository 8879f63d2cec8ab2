"""The term of score centering: its gradient is the sampler's mean score, by brute force over a whole vocabulary."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.correction import correct
from rlcorr.errors import UsageError
from rlcorr.losses.objective import policy_loss
from rlcorr.losses.score_centering import centering_terms
from rlcorr.presets import preset
from rlcorr.types import TokenBatch

VOCABULARY, HEAD = 9, 3
TIS = CorrectionConfig(rollout_is="token", rollout_is_threshold=1.5, rollout_is_threshold_lower=0.8)
ICEPOP = CorrectionConfig(
    rollout_is="token", rollout_is_threshold=1.5, rollout_is_threshold_lower=0.8, rollout_is_mode="mask"
)
UNBOUNDED = CorrectionConfig(rollout_is="token", rollout_is_threshold=torch.inf)
WEIGHTS = {
    "none": (CorrectionConfig(), torch.ones_like),
    "truncated": (TIS, lambda r: r.clamp(0.8, 1.5)),
    "masked": (ICEPOP, lambda r: torch.where((r >= 0.8) & (r <= 1.5), r, 0)),
    "unbounded": (UNBOUNDED, lambda r: r),
}
"""Name → a correction, and its weight as a function of r = p/q."""


def distributions(tail: float) -> tuple[Tensor, Tensor]:
    """Return logits of p with a graph and probabilities q in float64, where q is `tail` times p outside the head."""
    rng = torch.Generator().manual_seed(3)
    logits = torch.randn(VOCABULARY, generator=rng).double().requires_grad_()
    p = logits.detach().softmax(-1)
    head = p[:HEAD] * torch.tensor([1.0, 2.5, 0.3]).double()
    head = head * (1 - tail * p[HEAD:].sum()) / head.sum()
    return logits, torch.cat([head, tail * p[HEAD:]])


@pytest.mark.parametrize("tail", [1.0, 1.3, 0.4])
@pytest.mark.parametrize("name", WEIGHTS)
def test_its_gradient_is_the_mean_score_of_the_sampler(name: str, tail: float) -> None:
    """E_q[w ∇log p] over all tokens. The tail of q is proportional to that of p: a head of three is enough."""
    config, weight = WEIGHTS[name]
    logits, q = distributions(tail)
    log_p = logits.log_softmax(-1)
    w = weight(log_p.detach().exp() / q)
    (expected,) = torch.autograd.grad((q * w * log_p).sum(), logits, retain_graph=True)
    (gradient,) = torch.autograd.grad(centering_terms(log_p[:HEAD], q[:HEAD].log(), config), logits, retain_graph=True)
    torch.testing.assert_close(gradient, expected, atol=1e-12, rtol=0)
    whole = torch.autograd.grad(centering_terms(log_p, q.log(), config), logits)[0]
    torch.testing.assert_close(whole, expected, atol=1e-6, rtol=0)  # no tail is left: it is taken as 1e-6


def test_tokens_that_the_sampler_cuts_off_do_not_count() -> None:
    """q has two tokens, and p is renormalised over them: the term is that of a vocabulary of two."""
    log_p, log_q = torch.tensor([[0.7, 0.3, 0.0]]).log(), torch.tensor([[0.6, 0.4, 0.0]]).log()
    whole = centering_terms(log_p, log_q, CorrectionConfig())
    torch.testing.assert_close(whole, centering_terms(log_p[:, :2], log_q[:, :2], CorrectionConfig()))
    assert bool(whole.isfinite().all())


def batch_of(old: Tensor, rollout: Tensor, top: Tensor) -> TokenBatch:
    mask = torch.tensor([[True, True, False]])
    return TokenBatch(
        response_mask=mask, rollout_log_probs=rollout, old_log_probs=old, advantages=torch.tensor([[2.0, 2.0, 5.0]]),
        top_ids=torch.zeros(1, 3, HEAD, dtype=torch.int64), rollout_top_log_probs=top,
    )  # fmt: skip


BYPASS = CorrectionConfig(rollout_is="token", bypass_mode=True, loss_type="reinforce")


@pytest.mark.parametrize("config", [BYPASS, preset("decoupled_token_is")], ids=["bypass", "decoupled"])
def test_the_loss_of_a_token_gets_its_advantage_times_the_term(config: CorrectionConfig) -> None:
    """Two real tokens, mean over both; on the padding there is nothing that could be added."""
    logits, q = distributions(1.3)
    log_p = logits.log_softmax(-1).float()
    token = log_p[1]
    batch = batch_of(
        torch.full((1, 3), float(token.detach())), torch.full((1, 3), float(q[1].log())),
        torch.stack([q[:HEAD].log().float(), q[:HEAD].log().float(), torch.full((HEAD,), torch.nan)])[None],
    )  # fmt: skip
    result = correct(batch, config)
    theta, top = token.expand(1, 3), log_p[:HEAD].expand(1, 3, HEAD)

    def gradient(loss: LossConfig) -> Tensor:
        value, _ = policy_loss(theta, batch, result, config, loss, top_log_probs=top)
        return torch.autograd.grad(value, logits, retain_graph=True)[0]

    weight = (log_p.detach().exp() / q.float()).clamp(max=2.0)
    (mean_score,) = torch.autograd.grad((q.float() * weight * log_p).sum(), logits, retain_graph=True)
    added = gradient(LossConfig(score_centering=True)) - gradient(LossConfig())
    torch.testing.assert_close(added, 2.0 * mean_score, atol=1e-6, rtol=1e-5)


def test_what_it_does_not_fit_is_said() -> None:
    logits, q = distributions(1.0)
    log_p = logits.log_softmax(-1)
    for config in (preset("decoupled_seq_is"), preset("decoupled_geo_rs")):
        with pytest.raises(UsageError, match="one position"):
            centering_terms(log_p, q.log(), config)
    batch = TokenBatch(torch.ones(1, 1, dtype=torch.bool), torch.zeros(1, 1), torch.zeros(1, 1)).replace(
        advantages=torch.ones(1, 1)
    )
    with pytest.raises(UsageError, match=r"--rollout\.top-logprobs"):
        policy_loss(
            torch.zeros(1, 1), batch, correct(batch, CorrectionConfig()), CorrectionConfig(),
            LossConfig(score_centering=True),
        )  # fmt: skip


VIME = json.loads((Path(__file__).parent.parent / "support" / "golden" / "vime_centering.json").read_text())
"""By tests/peers/vime_centering.py of commit dc1e367, in float32."""
CAP, BAND = CorrectionConfig(rollout_is="token", rollout_is_threshold=1.2), CorrectionConfig(
    rollout_is="token", rollout_is_threshold=1.3, rollout_is_threshold_lower=0.7, rollout_is_mode="mask"
)  # fmt: skip


@pytest.mark.parametrize("case", VIME["cases"], ids=range(len(VIME["cases"])))
def test_a_loss_with_the_term_has_the_gradient_of_vimes_own_code(case: dict[str, Any]) -> None:
    """vime sees the whole distribution here; our tail of 1e-6 moves the gradient by less than its float32 does."""
    for config, theirs in zip((CorrectionConfig(), CAP, BAND), case["gradients"], strict=True):
        leaf = torch.tensor(case["logits"], dtype=torch.float64, requires_grad=True)
        log_p, log_q = leaf.log_softmax(-1), torch.tensor(case["engine"], dtype=torch.float64).log_softmax(-1)
        tokens, advantages = torch.tensor(case["tokens"]), torch.tensor(case["advantages"], dtype=torch.float64)
        drawn, sampled = (x.gather(-1, tokens[:, None])[:, 0] for x in (log_p, log_q))
        ratio = (drawn - sampled).exp().detach()
        weight = {None: torch.ones_like(ratio), "truncate": ratio.clamp(max=1.2)}.get(
            None if config.rollout_is is None else config.rollout_is_mode,
            torch.where((ratio >= 0.7) & (ratio <= 1.3), ratio, 0),
        )
        losses = advantages * (centering_terms(log_p, log_q, config) - weight * drawn)
        (gradient,) = torch.autograd.grad(losses.sum(), leaf)
        torch.testing.assert_close(gradient, torch.tensor(theirs, dtype=torch.float64), atol=2e-5, rtol=1e-4)
