"""Numbers that are not finite, and batches of which nothing is kept: counted, skipped, and in the end refused."""

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import tiny_config
from torch import Tensor

from rlcorr.command.cli import main
from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.errors import UsageError
from rlcorr.presets import PRESETS, Preset
from rlcorr.records import runs
from rlcorr.records.verify import verify
from rlcorr.rules import RejectionRule
from rlcorr.train.config.learning import AdvantageConfig, OptimConfig
from rlcorr.train.config.rollout import RolloutConfig
from rlcorr.train.inputs.tasks import TASKS
from rlcorr.train.loop import train
from rlcorr.train.rollout.engine import RolloutEngine, Samples
from rlcorr.train.rollout.start import start_engine
from rlcorr.train.session import session

pytestmark = pytest.mark.slow  # a real engine, and training runs

UPDATES = 4
"""Optimizer steps of one training step: two epochs of two mini-batches."""
Spoil = Callable[[int, Samples], Samples]


@dataclass
class Watched:
    """The transformers engine, which tells what it was given for each step, and may spoil what it reports."""

    spoil: Spoil
    engine: Any = None
    step: int = 0  # that was sampled for last; 0: the proof, the probe and the evaluations
    synced: dict[str, Tensor] = field(default_factory=dict)
    used: dict[int, dict[str, Tensor]] = field(default_factory=dict)  # step → weights

    def start(self, *given: Any) -> RolloutEngine:
        self.engine = start_engine(*given)
        for name in ("description", "fingerprints", "close"):
            setattr(self, name, getattr(self.engine, name))
        return self  # pyright: ignore[reportReturnType]

    def generate(self, prompts: list[list[int]], *, seed: int = 0, **settings: Any) -> Samples:
        self.step = seed >> 8  # the trainer's seeds are 256 times the step
        self.used[self.step] = self.synced
        return self.spoil(self.step, self.engine.generate(prompts, seed=seed, **settings))

    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        self.synced = {name: tensor.clone() for name, tensor in weights}
        self.engine.sync(self.synced.items())

    def moved(self) -> list[bool]:
        """Whether each of the steps 1 to 3 changed the weights: the next one was sampled with others."""
        pairs = [(self.used[step], self.used[step + 1]) for step in (1, 2, 3)]
        return [any(not torch.equal(before[name], after[name]) for name in before) for before, after in pairs]


def log_probs_at(number: float, *steps: int) -> Spoil:
    """Replace the first two log-probs of the first response in these steps."""

    def spoil(step: int, samples: Samples) -> Samples:
        if step not in steps:
            return samples
        first, *others = samples.log_probs
        return replace(samples, log_probs=[[number] * 2 + first[2:], *others])

    return spoil


@dataclass
class Lab:
    """Four steps of the tiny model, whose engine is watched. What is rewarded depends on the response alone."""

    model: Path
    patch: pytest.MonkeyPatch
    engine: Watched = field(init=False)
    run: Path = field(init=False)

    def watch(self, spoil: Spoil = lambda _, samples: samples) -> None:
        self.engine = Watched(spoil)
        self.patch.setattr(session, "start_engine", self.engine.start)

    def reward(self, reward: Callable[[str], float]) -> None:
        task = replace(TASKS["addition"], reward=lambda _, response: reward(response))
        self.patch.setitem(TASKS, "addition", task)

    def rows(self, resume: bool = False, **changes: Any) -> list[dict[str, Any]]:
        """Train, and return the metrics as a strict reader of JSON sees them; Python's own lets NaN and Infinity in."""
        small = {"steps": 4, "optim": OptimConfig(learning_rate=1e-2), "eval_prompts": 1, "tensorboard": False}
        self.run = train(tiny_config(self.model, **{**small, **changes}), resume=resume)
        return strict_rows(self.run)


def strict_rows(run: Path) -> list[dict[str, Any]]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line, parse_constant=refuse) for line in lines]


@pytest.fixture
def lab(tiny_model: Path, local_runs: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    lab = Lab(tiny_model, monkeypatch)
    lab.watch()
    lab.reward(lambda response: len(response) / 5)  # a random model never answers right
    return lab


def bad(rows: list[dict[str, Any]]) -> list[dict[str, float]]:
    """What was counted in each step."""
    return [
        {name.removeprefix("bad/"): value for name, value in row.items() if name.startswith("bad/") and value}
        for row in rows
    ]


ONE_STEP = [True, False, True]
"""The second step is left out, the others move the weights."""


# --- from the engine ---


@pytest.mark.parametrize("number", [math.nan, -math.inf, math.inf])
def test_log_probs_that_are_not_finite_cost_one_step(number: float, lab: Lab) -> None:
    lab.watch(log_probs_at(number, 2))
    rows = lab.rows()
    assert bad(rows) == [{}, {"log_probs": 2}, {}, {}]
    assert lab.engine.moved() == ONE_STEP
    assert "grad_norm" not in rows[1]
    assert runs.list_steps(lab.run) == [1, 3, 4]  # a run holds pairs of numbers
    assert verify(lab.run).problems == []


def test_a_finite_but_absurd_log_prob_leaves_the_metrics_readable(lab: Lab) -> None:
    """exp(2000) is no float; perplexities and χ² of such a batch are infinite."""
    lab.watch(log_probs_at(-2000.0, 2))
    rows = lab.rows(rollout=RolloutConfig(engine="transformers", dtype="bfloat16"))
    assert bad(rows) == [{}, {}, {}, {}]
    assert all(math.isfinite(value) for row in rows for value in row.values())


# --- from the reward function ---


@pytest.mark.parametrize("fault", ["raises", "nan", "inf"])
def test_a_reward_that_is_no_number_costs_one_step(fault: str, lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    def reward(response: str) -> float:
        if lab.engine.step != 2:
            return len(response) / 5
        if fault == "raises":
            raise ValueError("no such answer")
        return float(fault)

    lab.reward(reward)
    rows = lab.rows()
    assert bad(rows) == [{}, {"rewards": 8}, {}, {}]  # 4 prompts × 2 samples
    assert rows[1]["reward"] == 0
    assert lab.engine.moved() == ONE_STEP
    assert runs.list_steps(lab.run) == [1, 3, 4]
    assert capsys.readouterr().out.count("raised ValueError: no such answer") == (8 if fault == "raises" else 0)


def test_a_reward_that_raises_in_the_evaluation_is_a_wrong_answer(lab: Lab) -> None:
    lab.reward(lambda _: 1.0 if lab.engine.step else 1 / 0)
    rows = lab.rows(steps=1)
    assert rows[0]["accuracy"] == 0
    assert bad(rows) == [{}]


# --- from the update ---

IMPOSSIBLE = Preset(
    "test", CorrectionConfig(rollout_rs=(RejectionRule.named("token_k1", lower=10.0, upper=11.0),)), "", ""
)


# Differences of rewards of ±3e38 are beyond float32. With 1e25 only the squares in the gradient's norm are.
@pytest.mark.parametrize(("size", "fault"), [(3e38, "loss"), (1e25, "gradient")])
def test_a_loss_or_gradient_that_is_not_finite_costs_its_updates(size: float, fault: str, lab: Lab) -> None:
    """The advantages of rloo have the size of the rewards."""
    lab.reward(lambda response: size * (-1) ** len(response) if lab.engine.step == 2 else len(response) / 5)
    rows = lab.rows(advantage=AdvantageConfig(estimator="rloo"), loss=LossConfig())
    assert bad(rows) == [{}, {fault: UPDATES}, {}, {}]
    assert lab.engine.moved() == ONE_STEP


@pytest.mark.parametrize("bypass", [False, True], ids=["decoupled", "bypass"])
@pytest.mark.parametrize("estimator", ["gae", "grpo"])
def test_a_batch_that_is_rejected_whole_changes_nothing(bypass: bool, estimator: Any, lab: Lab) -> None:
    preset = replace(IMPOSSIBLE, config=replace(IMPOSSIBLE.config, bypass_mode=bypass))
    lab.patch.setitem(PRESETS, "impossible", preset)
    rows = lab.rows(preset="impossible", advantage=AdvantageConfig(estimator=estimator))
    assert bad(rows) == [{"all_rejected": UPDATES}] * 4
    assert lab.engine.moved() == [False] * 3
    assert all(row["rollout_corr/kept_fraction"] == 0 for row in rows)


# --- in the end ---


def test_a_streak_stops_the_run_with_what_to_do(lab: Lab, local_runs: Path) -> None:
    lab.watch(log_probs_at(math.nan, 2, 3, 4))
    sentence = "updates were skipped in 3 steps in a row.*stops at step 4: the engine reports log-probs that are not"
    with pytest.raises(UsageError, match=sentence):
        lab.rows(steps=9, max_bad_steps=3)
    report = verify(local_runs / "tiny")
    assert (report.status, report.problems, report.readable_steps) == ("interrupted", [], 1)
    assert bad(strict_rows(local_runs / "tiny")) == [{}] + [{"log_probs": 2}] * 3


def test_a_good_step_ends_the_streak(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    lab.watch(log_probs_at(math.nan, 1, 2, 4, 5))
    rows = lab.rows(steps=6, max_bad_steps=3)
    assert bad(rows) == [{"log_probs": 2}] * 2 + [{}] + [{"log_probs": 2}] * 2 + [{}]
    assert "bad=8" in capsys.readouterr().err.split("\r")[-1]  # on the bar


def test_a_streak_goes_on_after_resuming(lab: Lab) -> None:
    lab.watch(log_probs_at(math.nan, 1, 2, 3, 4))
    with pytest.raises(UsageError, match="in 2 steps in a row"):
        lab.rows(steps=9, max_bad_steps=2)
    with pytest.raises(UsageError, match="in 3 steps in a row"):
        lab.rows(steps=9, max_bad_steps=3, resume=True)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ((), "the reward function failed on all 4 answers of the first step"),
        (("--preset", "impossible"), "at step 2: the correction rejects every token: widen the bounds"),
    ],
    ids=["rewards", "rejected"],
)
def test_the_command_line_says_it_in_one_line(
    more: tuple[str, ...], sentence: str, lab: Lab, local_runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lab.patch.setitem(PRESETS, "impossible", IMPOSSIBLE)
    if not more:
        lab.reward(lambda _: math.nan)
    options = (
        *("--model", str(lab.model), "--run", "r", "--rollout.engine", "transformers", "--max-bad-steps", "2"),
        *("--prompts-per-step", "4", "--eval-prompts", "1", "--no-tensorboard", *more),
    )
    with pytest.raises(SystemExit) as ended:
        main(["train", *options])
    assert ended.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("rlcorr: ")
    assert sentence in last
    assert verify(local_runs / "r").status == "interrupted"
