"""`lessons/mini.py`: its pieces answer the exercises, and together they have the library's gradient."""

import math
import sys
from pathlib import Path

import pytest
import torch

from rlcorr import CorrectionConfig, RejectionRule, TokenBatch, correct
from rlcorr.config import LossConfig
from rlcorr.losses.advantages import leave_one_out
from rlcorr.losses.objective import policy_loss
from rlcorr.teaching.check import problem

LESSONS = Path(__file__).resolve().parent.parent.parent / "lessons"
sys.path.insert(0, str(LESSONS))

import mini  # noqa: E402 — a lesson's file, not a package's
from exercises import lesson_01, lesson_02, lesson_05, lesson_07, lesson_13  # noqa: E402

PIECES = [
    (mini.advantages, lesson_01.ADVANTAGES),
    (mini.ratios, lesson_02.RATIOS),
    (mini.truncated, lesson_05.WEIGHTS),
    (mini.kept, lesson_07.GEOMETRIC_RULE),
    (lesson_07.slope(mini.loss), lesson_07.LOSS),
    (lesson_13.course(mini.update), lesson_13.UPDATE),
]


@pytest.mark.parametrize(("piece", "exercise"), PIECES)
def test_every_piece_answers_its_exercise(piece: lesson_13.Update, exercise: lesson_01.Exercise) -> None:
    assert problem(piece, exercise) is None


def random_pairs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Log-probs of trainer and engine and the mask, (24, 7) with padding of nan; rewards of 6 × 4 answers."""
    chance = torch.Generator().manual_seed(0)
    engine = -torch.rand(24, 7, dtype=torch.float64, generator=chance)
    trainer = engine + 0.4 * torch.randn(24, 7, dtype=torch.float64, generator=chance)
    mask = torch.arange(7) < torch.randint(1, 8, (24, 1), generator=chance)
    rewards = torch.rand(6, 4, dtype=torch.float64, generator=chance)
    return trainer.where(mask, math.nan), engine.where(mask, math.nan), mask, rewards


@pytest.mark.parametrize("cap", [1.2, 2.0, math.inf])
@pytest.mark.parametrize("band", [1.1, 1.3, None])
def test_the_gradient_is_the_library_s(cap: float, band: float | None) -> None:
    """Along every log-prob, to 1e-6: token weights up to a cap, with and without a rule on the geometric mean."""
    trainer, engine, mask, rewards = random_pairs()
    here = trainer.clone().requires_grad_()
    weights = mini.truncated(here, engine, mask, None, cap)
    if band is not None:
        weights = weights * mini.kept(here, engine, mask, 1 / band, band)
    value = mini.loss(here, weights, mask, mini.advantages(rewards).flatten())
    (ours,) = torch.autograd.grad(value, here)

    rules = () if band is None else (RejectionRule("sequence", "k1", upper=band, lower=1 / band, reduce="mean"),)
    config = CorrectionConfig(rollout_is="token", rollout_is_threshold=cap, rollout_rs=rules, loss_type="gpg")
    advantage = leave_one_out(rewards.flatten(), torch.arange(6).repeat_interleave(4))[:, None].expand_as(mask)
    batch = TokenBatch(mask, engine, old_log_probs=trainer, advantages=advantage.where(mask, 0))
    there = trainer.clone().requires_grad_()
    (library,) = torch.autograd.grad(policy_loss(there, batch, correct(batch, config), config, LossConfig())[0], there)
    assert float(ours[mask].abs().max()) > 1e-4
    torch.testing.assert_close(ours[mask], library[mask], rtol=1e-6, atol=1e-9)
    assert band is None or bool((ours[mask] == 0).any())


def test_it_is_about_sixty_lines() -> None:
    lines = [line.strip() for line in (LESSONS / "mini.py").read_text(encoding="utf-8").splitlines()]
    assert len([line for line in lines if line and not line.startswith(("#", '"""'))]) <= 70
