"""Numbers that are not finite, and batches of which nothing is kept: counted, skipped, and in the end refused."""

import contextlib
import io
import itertools
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
from rlcorr.train.config.training import TrainConfig
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

    def moved(self, steps: int) -> list[bool]:
        """Whether each of the first steps changed the weights: the next one was sampled with others."""
        pairs = [(self.used[step], self.used[step + 1]) for step in range(1, steps + 1)]
        return [any(not torch.equal(before[name], after[name]) for name in before) for before, after in pairs]


def strict_rows(run: Path) -> list[dict[str, Any]]:
    """Return the metrics as a strict reader of JSON sees them; Python's own lets NaN and Infinity in."""

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


def small(model: Path, **changes: Any) -> TrainConfig:
    fast = OptimConfig(learning_rate=1e-2)
    return tiny_config(model, **{"optim": fast, "eval_prompts": 1, "tensorboard": False, **changes})


def reward_with(patch: pytest.MonkeyPatch, reward: Callable[[str], float]) -> None:
    """Reward a response alone: a random model never answers right."""
    patch.setitem(TASKS, "addition", replace(TASKS["addition"], reward=lambda _, response: reward(response)))


def spoilt(log_probs: dict[int, float]) -> Spoil:
    """Replace the first two log-probs of the first response in these steps."""

    def spoil(step: int, samples: Samples) -> Samples:
        if step not in log_probs:
            return samples
        first, *others = samples.log_probs
        return replace(samples, log_probs=[[log_probs[step]] * 2 + first[2:], *others])

    return spoil


# --- one run in which every fault happens once, and three bad steps in a row would end it ---

FAULTS: dict[int, dict[str, float]] = {
    2: {"log_probs": 2},  # NaN
    3: {"log_probs": 2},  # −∞
    5: {"rewards": 8},  # the function raises; 4 prompts × 2 samples
    6: {"rewards": 8},  # it returns NaN
    8: {"loss": UPDATES},  # differences of rewards of ±3e38 are beyond float32
    9: {"gradient": UPDATES},  # with 1e25 only the squares in the gradient's norm are
}
ABSURD = 10
"""A step with a finite log-prob of −2000: exp(2000) is no float, so perplexities and χ² of the batch are infinite."""


@dataclass(frozen=True)
class Faulty:
    run: Path
    rows: list[dict[str, Any]]
    engine: Watched
    said: str


@pytest.fixture(scope="module")
def faulty(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Faulty:
    engine = Watched(spoilt({2: math.nan, 3: -math.inf, ABSURD: -2000.0}))

    signs = itertools.cycle((1, -1))

    def reward(response: str) -> float:
        if engine.step in (0, 5):  # 0: the evaluations
            raise ValueError("no such answer")
        sign = next(signs)
        return {6: math.nan, 8: 3e38 * sign, 9: 1e25 * sign}.get(engine.step, len(response) / 5)

    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said):
        patch.setattr(runs, "LOCAL", tmp_path_factory.mktemp("local"))
        patch.setattr(session, "start_engine", engine.start)
        reward_with(patch, reward)
        run = train(
            small(
                tiny_model, steps=ABSURD + 1, max_bad_steps=3, advantage=AdvantageConfig(estimator="rloo"),
                loss=LossConfig(), rollout=RolloutConfig(engine="transformers", dtype="bfloat16"),
            )
        )  # fmt: skip
        return Faulty(run, strict_rows(run), engine, said.getvalue())


def test_each_fault_costs_one_step_and_is_counted(faulty: Faulty) -> None:
    assert bad(faulty.rows) == [FAULTS.get(step, {}) for step in range(1, ABSURD + 2)]
    assert faulty.engine.moved(ABSURD) == [step not in FAULTS for step in range(1, ABSURD + 1)]
    assert all(math.isfinite(value) for row in faulty.rows for value in row.values())
    assert "grad_norm" not in faulty.rows[1]
    assert faulty.rows[4]["reward"] == 0


def test_only_steps_with_numbers_are_recorded(faulty: Faulty) -> None:
    assert runs.list_steps(faulty.run) == [1, 4, 7, 8, 9, 10, 11]
    assert verify(faulty.run).problems == []


def test_a_reward_that_raises_in_the_evaluation_is_a_wrong_answer(faulty: Faulty) -> None:
    assert faulty.rows[-1]["accuracy"] == 0
    assert faulty.said.count("raised ValueError: no such answer") == 8 + 3  # and one prompt at three evaluations


# --- in the end ---


def test_a_streak_stops_the_run_with_what_to_do_and_goes_on_after_resuming(
    tiny_model: Path, local_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reward_with(monkeypatch, lambda response: len(response) / 5)
    monkeypatch.setattr(session, "start_engine", Watched(spoilt(dict.fromkeys((2, 3, 4), math.nan))).start)
    with pytest.raises(UsageError, match="in 2 steps in a row"):
        train(small(tiny_model, steps=9, max_bad_steps=2))
    sentence = "updates were skipped in 3 steps in a row.*stops at step 4: the engine reports log-probs that are not"
    with pytest.raises(UsageError, match=sentence):
        train(small(tiny_model, steps=9, max_bad_steps=3), resume=True)
    report = verify(local_runs / "tiny")
    assert (report.status, report.problems, report.readable_steps) == ("interrupted", [], 1)
    assert bad(strict_rows(local_runs / "tiny")) == [{}] + [{"log_probs": 2}] * 3


IMPOSSIBLE = Preset(
    "test", CorrectionConfig(rollout_rs=(RejectionRule.named("token_k1", lower=10.0, upper=11.0),)), "", ""
)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ((), "the reward function failed on all 4 answers of the first step"),
        (("--preset", "impossible"), "at step 2: the correction rejects every token: widen the bounds"),
    ],
    ids=["rewards", "rejected"],
)
def test_the_command_line_says_it_in_one_line(
    more: tuple[str, ...], sentence: str, tiny_model: Path, local_runs: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setitem(PRESETS, "impossible", IMPOSSIBLE)
    reward_with(monkeypatch, lambda response: len(response) / 5 if more else math.nan)
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
