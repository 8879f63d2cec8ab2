"""Numbers that are not finite, and batches of which nothing is kept: counted, skipped, and in the end refused."""

import json
import math
from collections.abc import Callable, Iterable, Iterator
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
from rlcorr.train.config.rollout import RolloutConfig, Sampling
from rlcorr.train.config.training import TrainConfig
from rlcorr.train.inputs.tasks import TASKS
from rlcorr.train.loop import train
from rlcorr.train.rollout.engine import RolloutEngine, Samples
from rlcorr.train.rollout.start import start_engine
from rlcorr.train.session import session

pytestmark = pytest.mark.slow  # a real engine, and trainings

UPDATES = 4
"""Optimizer steps of one training step: two epochs of two mini-batches."""


@dataclass
class Watched:
    """The transformers engine, which tells what it was given for each step, and may spoil what it reports."""

    engine: RolloutEngine
    spoil: Callable[[int, Samples], Samples]
    step: int = 0  # that was sampled for last; 0: the proof, the probe and the evaluations
    synced: dict[str, Tensor] = field(default_factory=dict)
    used: dict[int, dict[str, Tensor]] = field(default_factory=dict)  # step → weights

    @property
    def description(self) -> dict[str, Any]:
        return self.engine.description

    def generate(
        self, prompts: list[list[int]], *, n: int, max_tokens: int, sampling: Sampling, seed: int = 0
    ) -> Samples:
        self.step = seed >> 8  # the trainer's seeds are 256 times the step
        self.used[self.step] = self.synced
        samples = self.engine.generate(prompts, n=n, max_tokens=max_tokens, sampling=sampling, seed=seed)
        return self.spoil(self.step, samples)

    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        self.synced = {name: tensor.clone() for name, tensor in weights}
        self.engine.sync(self.synced.items())

    def fingerprints(self) -> dict[str, Tensor]:
        return self.engine.fingerprints()

    def close(self) -> None:
        self.engine.close()

    def moved(self, step: int) -> bool:
        """Whether this step changed the weights: the next one was sampled with others."""
        before, after = self.used[step], self.used[step + 1]
        return any(not torch.equal(before[name], after[name]) for name in before)


def log_probs_at(steps: dict[int, float]) -> Callable[[int, Samples], Samples]:
    """Replace the first two log-probs of the first response in these steps."""

    def spoil(step: int, samples: Samples) -> Samples:
        if step not in steps:
            return samples
        first, *others = samples.log_probs
        return replace(samples, log_probs=[[steps[step]] * 2 + first[2:], *others])

    return spoil


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Watched]:
    """Puts the engine of the next training under watch."""

    def watch(spoil: Callable[[int, Samples], Samples] = lambda _, samples: samples) -> Watched:
        watcher = Watched(None, spoil)  # pyright: ignore[reportArgumentType]

        def start(*given: Any) -> Watched:
            watcher.engine = start_engine(*given)
            return watcher

        monkeypatch.setattr(session, "start_engine", start)
        return watcher

    return watch


def reward_with(monkeypatch: pytest.MonkeyPatch, reward: Callable[[str], float]) -> None:
    """A random model never answers right: what is rewarded here depends on the response alone."""
    monkeypatch.setitem(TASKS, "addition", replace(TASKS["addition"], reward=lambda _, response: reward(response)))


@pytest.fixture(autouse=True)
def rewarding(monkeypatch: pytest.MonkeyPatch) -> None:
    reward_with(monkeypatch, lambda response: len(response) / 5)


def small(model: Path, **changes: Any) -> TrainConfig:
    base = tiny_config(model, steps=4, optim=OptimConfig(learning_rate=1e-2), eval_prompts=1, tensorboard=False)
    return replace(base, **changes)


def strict_rows(run: Path) -> list[dict[str, Any]]:
    """The metrics as a strict reader of JSON sees them: Python's own would let NaN and Infinity in."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line, parse_constant=refuse) for line in lines]


def bad(rows: list[dict[str, Any]]) -> list[dict[str, float]]:
    """What was counted in each step."""
    return [
        {name.removeprefix("bad/"): value for name, value in row.items() if name.startswith("bad/") and value}
        for row in rows
    ]


# --- from the engine ---


@pytest.mark.parametrize("number", [math.nan, -math.inf, math.inf])
def test_log_probs_that_are_not_finite_cost_one_step(
    number: float, tiny_model: Path, local_runs: Path, watched: Callable[..., Watched]
) -> None:
    engine = watched(log_probs_at({2: number}))
    run = train(small(tiny_model))
    rows = strict_rows(run)
    assert bad(rows) == [{}, {"log_probs": 2}, {}, {}]
    assert [engine.moved(step) for step in (1, 2, 3)] == [True, False, True]
    assert "grad_norm" not in rows[1]
    assert runs.list_steps(run) == [1, 3, 4]  # a run holds pairs of numbers
    assert verify(run).problems == []


def test_a_finite_but_absurd_log_prob_leaves_the_metrics_readable(
    tiny_model: Path, local_runs: Path, watched: Callable[..., Watched]
) -> None:
    """exp(2000) is no float; perplexities and χ² of such a batch are infinite."""
    watched(log_probs_at({2: -2000.0}))
    rollout = RolloutConfig(engine="transformers", dtype="bfloat16")
    rows = strict_rows(train(small(tiny_model, rollout=rollout)))
    assert bad(rows) == [{}, {}, {}, {}]
    assert all(math.isfinite(value) for row in rows for value in row.values())


# --- from the reward function ---


@pytest.mark.parametrize("fault", ["raises", "nan", "inf"])
def test_a_reward_that_is_no_number_costs_one_step(
    fault: str,
    tiny_model: Path,
    local_runs: Path,
    monkeypatch: pytest.MonkeyPatch,
    watched: Callable[..., Watched],
    capsys: pytest.CaptureFixture[str],
) -> None:
    engine = watched()

    def reward(response: str) -> float:
        if engine.step != 2:
            return len(response) / 5
        if fault == "raises":
            raise ValueError("no such answer")
        return float(fault)

    reward_with(monkeypatch, reward)
    run = train(small(tiny_model))
    rows = strict_rows(run)
    assert bad(rows) == [{}, {"rewards": 8}, {}, {}]  # 4 prompts × 2 samples
    assert rows[1]["reward"] == 0
    assert [engine.moved(step) for step in (1, 2, 3)] == [True, False, True]
    assert runs.list_steps(run) == [1, 3, 4]
    assert capsys.readouterr().out.count("raised ValueError: no such answer") == (8 if fault == "raises" else 0)


def test_a_reward_that_raises_in_the_evaluation_is_a_wrong_answer(
    tiny_model: Path, local_runs: Path, monkeypatch: pytest.MonkeyPatch, watched: Callable[..., Watched]
) -> None:
    engine = watched()

    def reward(response: str) -> float:
        return 1.0 if engine.step else 1 / 0

    reward_with(monkeypatch, reward)
    rows = strict_rows(train(small(tiny_model, steps=1)))
    assert rows[0]["accuracy"] == 0
    assert bad(rows) == [{}]


# --- from the update ---

PLAIN = AdvantageConfig(estimator="reinforce_pp", whiten=False)
"""Advantages are the rewards, so that the size of the loss is theirs."""
IMPOSSIBLE = Preset(
    "test", CorrectionConfig(rollout_rs=(RejectionRule.named("token_k1", lower=10.0, upper=11.0),)), "", ""
)


@pytest.mark.parametrize(
    ("size", "fault"),
    # Sums of rewards of 3e38 are beyond float32. With 1e25 the loss is not, but the squares in the gradient's norm are.
    [(3e38, "loss"), (1e25, "gradient")],
)
def test_a_loss_or_gradient_that_is_not_finite_costs_its_updates(
    size: float,
    fault: str,
    tiny_model: Path,
    local_runs: Path,
    monkeypatch: pytest.MonkeyPatch,
    watched: Callable[..., Watched],
) -> None:
    engine = watched()
    reward_with(monkeypatch, lambda response: size if engine.step == 2 else len(response) / 5)
    rows = strict_rows(train(small(tiny_model, advantage=PLAIN, loss=LossConfig())))
    assert bad(rows) == [{}, {fault: UPDATES}, {}, {}]
    assert [engine.moved(step) for step in (1, 2, 3)] == [True, False, True]


@pytest.mark.parametrize("bypass", [False, True], ids=["decoupled", "bypass"])
@pytest.mark.parametrize("estimator", ["gae", "grpo"])
def test_a_batch_that_is_rejected_whole_changes_nothing(
    bypass: bool,
    estimator: Any,
    tiny_model: Path,
    local_runs: Path,
    monkeypatch: pytest.MonkeyPatch,
    watched: Callable[..., Watched],
) -> None:
    engine = watched()
    preset = replace(IMPOSSIBLE, config=replace(IMPOSSIBLE.config, bypass_mode=bypass))
    monkeypatch.setitem(PRESETS, "impossible", preset)
    config = small(tiny_model, preset="impossible", advantage=AdvantageConfig(estimator=estimator))
    rows = strict_rows(train(config))
    assert bad(rows) == [{"all_rejected": UPDATES}] * 4
    assert [engine.moved(step) for step in (1, 2, 3)] == [False] * 3
    assert all(row["rollout_corr/kept_fraction"] == 0 for row in rows)


# --- in the end ---


@pytest.fixture
def steps_with_nan(watched: Callable[..., Watched]) -> Callable[..., Watched]:
    return lambda *steps: watched(log_probs_at(dict.fromkeys(steps, math.nan)))


def test_a_streak_stops_the_run_with_what_to_do(
    tiny_model: Path, local_runs: Path, steps_with_nan: Callable[..., Watched]
) -> None:
    steps_with_nan(2, 3, 4)
    sentence = "updates were skipped in 3 steps in a row.*stops at step 4: the engine reports log-probs that are not"
    with pytest.raises(UsageError, match=sentence):
        train(small(tiny_model, steps=9, max_bad_steps=3))
    run = local_runs / "tiny"
    report = verify(run)
    assert (report.status, report.problems, report.readable_steps) == ("interrupted", [], 1)
    assert bad(strict_rows(run)) == [{}] + [{"log_probs": 2}] * 3


def test_a_good_step_ends_the_streak(
    tiny_model: Path, local_runs: Path, steps_with_nan: Callable[..., Watched]
) -> None:
    steps_with_nan(1, 2, 4, 5)
    run = train(small(tiny_model, steps=6, max_bad_steps=3))
    assert bad(strict_rows(run)) == [{"log_probs": 2}] * 2 + [{}] + [{"log_probs": 2}] * 2 + [{}]


def test_a_streak_goes_on_after_resuming(
    tiny_model: Path, local_runs: Path, steps_with_nan: Callable[..., Watched]
) -> None:
    steps_with_nan(1, 2, 3, 4)
    config = small(tiny_model, steps=9, max_bad_steps=2)
    with pytest.raises(UsageError, match="in 2 steps in a row"):
        train(config)
    with pytest.raises(UsageError, match="in 3 steps in a row"):
        train(replace(config, max_bad_steps=3), resume=True)


REFUSALS: dict[str, tuple[tuple[str, ...], str]] = {
    "rewards": ((), "the reward function failed on all 4 answers of the first step"),
    "all_rejected": (("--preset", "impossible"), "at step 2: the correction rejects every token: widen the bounds"),
}


@pytest.mark.parametrize("fault", REFUSALS)
def test_the_command_line_says_it_in_one_line(
    fault: str,
    tiny_model: Path,
    local_runs: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    more, sentence = REFUSALS[fault]
    monkeypatch.setitem(PRESETS, "impossible", IMPOSSIBLE)
    if fault == "rewards":
        reward_with(monkeypatch, lambda _: math.nan)
    options = (
        *("--model", str(tiny_model), "--run", "r", "--rollout.engine", "transformers", "--max-bad-steps", "2"),
        *("--prompts-per-step", "4", "--eval-prompts", "1", "--no-tensorboard", *more),
    )
    with pytest.raises(SystemExit) as ended:
        main(["train", *options])
    assert ended.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("rlcorr: ")
    assert sentence in last
    assert verify(local_runs / "r").status == "interrupted"


def counted(run: Path) -> Iterator[float]:
    return (sum(counts.values()) for counts in bad(strict_rows(run)))


def test_the_bar_counts_what_was_bad(
    tiny_model: Path, local_runs: Path, steps_with_nan: Callable[..., Watched], capsys: pytest.CaptureFixture[str]
) -> None:
    steps_with_nan(2, 3)
    run = train(small(tiny_model))
    assert f"bad={sum(counted(run)):.0f}" in capsys.readouterr().err.split("\r")[-1]
