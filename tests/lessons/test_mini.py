"""mini.py: its pieces answer the exercises, together they have the library's gradient, and its curve is drawn."""

import math
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from rlcorr import CorrectionConfig, RejectionRule, TokenBatch, correct
from rlcorr.config import LossConfig
from rlcorr.losses.advantages import leave_one_out
from rlcorr.losses.objective import policy_loss
from rlcorr.teaching.check import Exercise, problem

LESSONS = Path(__file__).resolve().parent.parent.parent / "lessons"
sys.path.insert(0, str(LESSONS))

import count_on  # noqa: E402 — files of the lessons, not of a package
import mini_curve  # noqa: E402
import mini_pieces  # noqa: E402
from exercises import (  # noqa: E402
    lesson_01,
    lesson_02,
    lesson_05,
    lesson_07,
    mini_checks,
    mini_loss,
    mini_solution,
    mini_update,
)

PIECES: dict[str, tuple[Callable[..., Any], Exercise]] = {
    "sample": (mini_checks.described(mini_solution.sample), mini_checks.SAMPLE),
    "log_probs": (mini_checks.scored(mini_solution.log_probs), mini_checks.LOG_PROBS),
    "advantages": (mini_solution.advantages, lesson_01.ADVANTAGES),
    "ratios": (mini_solution.ratios, lesson_02.RATIOS),
    "clipped": (mini_solution.clipped, mini_checks.CLIPPED),
    "capped": (mini_solution.capped, lesson_05.WEIGHTS),
    "kept": (mini_solution.kept, lesson_07.GEOMETRIC_RULE),
    "loss": (mini_loss.slope(mini_solution.loss), mini_loss.LOSS),
    "update": (mini_update.course(mini_solution.update), mini_update.update_exercise(mini_solution.sample)),
    "train": (mini_update.versions_used(mini_solution.train), mini_update.TRAIN),
}


def test_every_piece_answers_its_exercise() -> None:
    assert tuple(PIECES) == mini_pieces.PIECES
    assert {name: problem(*pair) for name, pair in PIECES.items()} == dict.fromkeys(PIECES)


def random_pairs() -> tuple[torch.Tensor, ...]:
    """Return log-probs of trainer, engine and policy and the mask, (24, 7) with padding of nan; rewards of 6 × 4."""
    generator = torch.Generator().manual_seed(0)
    engine = -torch.rand(24, 7, dtype=torch.float64, generator=generator)
    trainer = engine + 0.4 * torch.randn(24, 7, dtype=torch.float64, generator=generator)
    new = trainer + 0.3 * torch.randn(24, 7, dtype=torch.float64, generator=generator)
    mask = torch.arange(7) < torch.randint(1, 8, (24, 1), generator=generator)
    rewards = torch.rand(6, 4, dtype=torch.float64, generator=generator)
    return (*(x.where(mask, math.nan) for x in (trainer, engine, new)), mask, rewards)


@pytest.mark.parametrize("cap", [1.2, 2.0, math.inf])
@pytest.mark.parametrize("band", [1.1, 1.3, None])
def test_the_gradient_is_the_library_s(cap: float, band: float | None) -> None:
    """Along every log-prob, to 1e-6: weights up to a cap and PPO's clip, with and without a rule on whole answers."""
    trainer, engine, new, mask, rewards = random_pairs()
    advantage = mini_solution.advantages(rewards).flatten()
    here = new.clone().requires_grad_()
    weights = mini_solution.capped(trainer, engine, mask, None, cap) * mini_solution.clipped(here, trainer, advantage)
    if band is not None:
        weights = weights * mini_solution.kept(trainer, engine, mask, 1 / band, band)
    (ours,) = torch.autograd.grad(mini_solution.loss(here, weights, mask, advantage), here)

    rules = () if band is None else (RejectionRule("sequence", "k1", upper=band, lower=1 / band, reduce="mean"),)
    config = CorrectionConfig(rollout_is="token", rollout_is_threshold=cap, rollout_rs=rules)
    per_token = leave_one_out(rewards.flatten(), torch.arange(6).repeat_interleave(4))[:, None].expand_as(mask)
    batch = TokenBatch(mask, engine, old_log_probs=trainer, advantages=per_token.where(mask, 0))
    there = new.clone().requires_grad_()
    (library,) = torch.autograd.grad(policy_loss(there, batch, correct(batch, config), config, LossConfig())[0], there)
    assert float(ours[mask].abs().max()) > 1e-4
    assert not ours[~mask].any()
    torch.testing.assert_close(ours[mask], library[mask], rtol=1e-6, atol=1e-9)
    assert band is None or bool((ours[mask] == 0).any())


# --- the task ---


def right_answer(prompt: int) -> list[int]:
    """Count on by hand until 0."""
    numbers = [prompt]
    while numbers[-1]:
        numbers.append((numbers[-1] + prompt) % 8)
    return [*numbers, count_on.END]


def test_the_right_answer_earns_1_whatever_stands_after_it_and_others_earn_their_share() -> None:
    answers = [right_answer(prompt) for prompt in range(8)]
    assert [len(answer) for answer in answers] == count_on.LENGTHS.tolist()
    assert answers[3] == [3, 6, 1, 4, 7, 2, 5, 0, 8]
    tokens = torch.tensor([answer + [0] * (12 - len(answer)) for answer in answers])
    mask = torch.arange(12) < count_on.LENGTHS[:, None]
    assert count_on.reward(torch.arange(8), tokens, mask).tolist() == [1.0] * 8
    # "4 0 END" is right. Without END, 2 of the 3 tokens are; in "4 0 3 END" 2 of 4, because after a 3 comes a 7
    answers = torch.tensor([[4, 0, 8, 8], [4, 0, 3, 8]])
    masks = torch.tensor([[True, True, False, False], [True, True, True, True]])
    assert count_on.reward(torch.tensor([4, 4]), answers, masks).tolist() == [2 / 3, 2 / 4]


# --- whose pieces, and the command ---


def test_a_piece_that_is_written_is_used(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    yours = ModuleType("mini")
    yours.ratios = lambda *_: "yours"  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "mini", yours)
    loaded = mini_pieces.load_mini()
    assert loaded.ratios() == "yours"
    assert loaded.capped is mini_solution.capped
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "Yours, in mini.py: ratios."
    assert printed[1].startswith("From the solution: sample, log_probs, advantages, clipped,")


def test_without_a_solution_a_missing_piece_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, mini_pieces.SOLUTION, None)
    with pytest.raises(NotImplementedError, match=r"write loss in mini\.py"):
        mini_pieces.load_mini().loss(1, 2, 3, 4)


def test_the_curve_has_its_mean_and_its_band() -> None:
    # two steps a line: means 0.1 and 0.3 of the first, 0.5 and 0.5 of the second; 50 columns from 0 to 1
    drawn = mini_curve.picture([[0.0, 0.2, 0.5, 0.5], [0.2, 0.4, 0.5, 0.5]], every=2).splitlines()
    first, second = drawn[1].partition("|")[2], drawn[2].partition("|")[2]
    assert drawn[1].split()[:2] == ["2", "0.20"]
    assert (first.index("="), first.index("o"), first.rindex("=")) == (5, 10, 15)
    assert (second.count("="), second.index("o")) == (0, 25)


def test_the_command_draws(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--lag", "2", "--weights", "kept", "--seeds", "2", "--steps", "10", "--engine-bf16"]
    monkeypatch.setattr(sys, "argv", ["mini.py", *options])
    monkeypatch.delitem(sys.modules, "mini", raising=False)
    runpy.run_path(str(LESSONS / "mini.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Yours, in mini.py: none yet."
    assert [line.split()[0] for line in lines[2:]] == ["step", "5", "10"]


@pytest.mark.parametrize("way", mini_curve.WAYS)
def test_with_fresh_weights_every_way_is_the_same_training(way: str) -> None:
    """All ratios are 1 to the last digits, so no cap and no band does anything."""
    loaded = mini_pieces.load_mini()
    history = mini_curve.run(loaded, way, lag=0, steps=3, seed=0)
    assert history == pytest.approx(mini_curve.run(loaded, "none", lag=0, steps=3, seed=0), abs=1e-12)
