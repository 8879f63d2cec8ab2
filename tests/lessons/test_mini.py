"""mini.py: its pieces answer the exercises, together they have the library's gradient, and a learner's are called."""

import math
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
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
    importance_weights,
    mini_checks,
    mini_loss,
    mini_update,
    policy_gradient,
    rejection,
    truncation,
)

SOLUTION = mini_pieces.load_mini()
"""Nobody has written anything in the committed mini.py."""
PIECES: dict[str, tuple[Callable[..., Any], Exercise]] = {
    "ratios": (SOLUTION.ratios, importance_weights.RATIOS),
    "capped": (SOLUTION.capped, truncation.WEIGHTS),
    "sample": (mini_checks.described(SOLUTION.sample), mini_checks.SAMPLE),
    "log_probs": (mini_checks.scored(SOLUTION.log_probs), mini_checks.LOG_PROBS),
    "advantages": (SOLUTION.advantages, policy_gradient.ADVANTAGES),
    "clipped": (SOLUTION.clipped, mini_checks.CLIPPED),
    "kept": (SOLUTION.kept, rejection.GEOMETRIC_RULE),
    "loss": (mini_loss.slope(SOLUTION.loss), mini_loss.LOSS),
    "update": (mini_update.course(SOLUTION.update, SOLUTION), mini_update.update_exercise(SOLUTION.sample)),
    "train": (mini_update.versions_used(SOLUTION.train), mini_update.TRAIN),
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
    advantage = SOLUTION.advantages(rewards).flatten()
    here = new.clone().requires_grad_()
    weights = SOLUTION.capped(trainer, engine, mask, None, cap) * SOLUTION.clipped(here, trainer, advantage)
    if band is not None:
        weights = weights * SOLUTION.kept(trainer, engine, mask, 1 / band, band)
    (ours,) = torch.autograd.grad(SOLUTION.loss(here, weights, mask, advantage), here)

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


def write_mini(folder: Path, **pieces: str) -> Path:
    """Write the mini.py of a learner: each source below the line of its lesson, which names the piece."""
    text = (LESSONS / "mini.py").read_text(encoding="utf-8")
    for name, source in pieces.items():
        text = re.sub(
            rf"^# Lesson .*\b{name}\b.*$", lambda line, code=source: f"{line[0]}\n\n\n{code}\n", text, flags=re.M
        )
    (folder / "mini.py").write_text(text, encoding="utf-8")
    return folder / "mini.py"


def run_mini(path: Path, options: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["mini.py", *options.split()])
    runpy.run_path(str(path), run_name="__main__")


@pytest.mark.parametrize("piece", mini_pieces.PIECES)
@pytest.mark.parametrize("way", mini_curve.NOT_CALLED)
def test_a_piece_that_raises_raises_with_every_way_that_calls_it(
    piece: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_mini(tmp_path, **{piece: f"def {piece}(*_):\n    raise RuntimeError('this {piece} is mine')"})
    options = f"--lag 1 --weights {way} --seeds 1 --steps 5"
    if piece in mini_curve.NOT_CALLED[way]:
        run_mini(path, options, monkeypatch)
    else:
        with pytest.raises(RuntimeError, match=f"^this {piece} is mine$"):
            run_mini(path, options, monkeypatch)
    assert capsys.readouterr().out.startswith(f"Yours, in mini.py: {piece}.\n")


def test_the_ten_solution_cells_pasted_as_they_stand_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a workshop edition, which has no solution to fall back on."""
    path = write_mini(tmp_path, **mini_pieces.solution_cells())
    monkeypatch.setattr(mini_pieces, "solution_cells", dict)
    run_mini(path, "--lag 16 --weights capped --seeds 5", monkeypatch)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == f"Yours, in mini.py: {', '.join(mini_pieces.PIECES)}."
    assert [line.split()[0] for line in printed[-20:]] == [str(step) for step in range(5, 105, 5)]
    first, last = (float(line.split()[1]) for line in (printed[-20], printed[-1]))
    assert last > first + 0.1


def test_a_file_that_is_saved_again_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for answer in ("one", "two"):  # two files of one size in one second
        monkeypatch.setattr(mini_pieces, "MINI", write_mini(tmp_path, ratios=f"def ratios():\n    return '{answer}'"))
        assert mini_pieces.load_mini().ratios() == answer
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "Yours, in mini.py: ratios."
    assert printed[1].startswith("From the solution: capped, sample, log_probs, advantages,")


def test_without_a_solution_a_missing_piece_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mini_pieces, "solution_cells", dict)
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
    run_mini(mini_pieces.MINI, "--lag 2 --weights kept --seeds 2 --steps 10 --engine-bf16", monkeypatch)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Yours, in mini.py: none yet."
    assert lines[2] == "--weights kept does not call: ratios."
    assert [line.split()[0] for line in lines[3:]] == ["step", "5", "10"]


@pytest.mark.parametrize("way", mini_curve.NOT_CALLED)
def test_with_fresh_weights_every_way_is_the_same_training(way: str) -> None:
    """All ratios are 1 to the last digits, so no cap and no band does anything."""
    loaded = mini_pieces.load_mini()
    history = mini_curve.run(loaded, way, lag=0, steps=3, seed=0)
    assert history == pytest.approx(mini_curve.run(loaded, "none", lag=0, steps=3, seed=0), abs=1e-12)
