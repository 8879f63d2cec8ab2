"""Answers without a reward are left out of the loss; answers that hit the length limit are counted."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import CPU, tiny_config

from rlcorr.config import LossConfig
from rlcorr.errors import UsageError
from rlcorr.records import runs
from rlcorr.records.verify import verify
from rlcorr.train.config.learning import AdvantageConfig, OptimConfig
from rlcorr.train.config.training import TrainConfig
from rlcorr.train.inputs.jsonl_task import jsonl_task
from rlcorr.train.inputs.tasks import TASKS, Example
from rlcorr.train.inputs.tokenizer import EOS_ID
from rlcorr.train.learner.bad_numbers import summary
from rlcorr.train.loop import train
from rlcorr.train.rollout.collect import Collected, batch_of, judge, scored
from rlcorr.train.rollout.engine import Samples


def collected() -> Collected:
    """Two prompts with two answers each: the second has no reward, the third and the last are truncated."""
    routes = [torch.full((rows, 1, 1), rows) for rows in (2, 3, 4, 3)]
    return Collected(
        prompt_ids=[[1], [1], [1, 2], [1, 2]],
        samples=Samples([[5, EOS_ID], [6, 7, EOS_ID], [5, 6, 7], [8, 9]], [[-1.0] * n for n in (2, 3, 3, 2)], routes),
        prompts=["a", "a", "b", "b"],
        responses=["p", "q", "r", "s"],
        rewards=[1.0, None, 0.5, math.nan],
        groups=[0, 0, 1, 1],
        truncated=[False, False, True, True],
        version=3,
        seconds={},
    )


def test_an_answer_without_a_reward_is_taken_out_with_all_that_belongs_to_it() -> None:
    given = collected()
    kept = scored(given)
    assert kept.prompt_ids == [[1], [1, 2], [1, 2]]
    assert kept.samples.response_ids == [[5, EOS_ID], [5, 6, 7], [8, 9]]
    assert [len(row) for row in kept.samples.log_probs] == [2, 3, 2]
    assert [len(experts) for experts in kept.samples.routed_experts or []] == [2, 4, 3]
    assert (kept.prompts, kept.responses) == (["a", "b", "b"], ["p", "r", "s"])
    assert (kept.groups, kept.truncated) == ([0, 1, 1], [False, True, True])
    assert kept.rewards[:2] == [1.0, 0.5]
    assert batch_of(kept, CPU).tensors()["group_ids"].tolist() == [0, 1, 1]
    assert scored(kept) is kept


def test_what_is_counted() -> None:
    """A reward of None is no bad number, a reward function that raised is. Something can be learned from the first."""
    answers = collected()
    unscored = [reward is None for reward in answers.rewards]
    row = summary(batch_of(answers, CPU), unscored=unscored, truncated=answers.truncated)
    assert (row["unscored"], row["truncated"], row["bad/rewards"], row["bad/no_answers"]) == (1, 2, 1, 0)
    assert row["reward"] == pytest.approx(0.75)
    row = summary(batch_of(answers, CPU), unscored=[True] * 4, truncated=[False] * 4)
    assert (row["bad/no_answers"], row["reward"]) == (1, pytest.approx(0.75))


def test_none_is_an_answer_of_a_reward_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "def judge(prompt, text, answer):\n    return {'y': 1}.get(text)\n"
    (tmp_path / "sparse_judge.py").write_text(lines)
    monkeypatch.syspath_prepend(tmp_path)
    lines = "".join(f'{{"prompt": "p{i}", "answer": "a"}}\n' for i in range(40))
    (tmp_path / "data.jsonl").write_text(lines)
    task = jsonl_task(tmp_path / "data.jsonl", reward="sparse_judge:judge", max_tokens=4)
    example = Example("p", "a")
    assert [judge(task, example, text) for text in ("y", "n")] == [1.0, None]


# --- trained ---


def reward_with(monkeypatch: pytest.MonkeyPatch, reward: Callable[[str], float | None]) -> None:
    monkeypatch.setitem(TASKS, "addition", replace(TASKS["addition"], reward=lambda _, response: reward(response)))


def small(model: Path, **changes: Any) -> TrainConfig:
    base = tiny_config(model, steps=2, optim=OptimConfig(learning_rate=1e-4), eval_prompts=1, tensorboard=False)
    grpo = AdvantageConfig(estimator="grpo")
    return replace(base, prompts_per_step=8, samples_per_prompt=4, advantage=grpo, loss=LossConfig(), **changes)


@pytest.mark.slow  # a training run
def test_truncated_answers_are_counted(tiny_model: Path, local_runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reward_with(monkeypatch, lambda response: len(response) / 5)
    run = train(small(tiny_model))
    for step, row in enumerate(runs.read_metrics(run), 1):
        batch = runs.read_step(run, step).batch
        ids, mask = batch.tensors()["response_ids"], batch.response_mask
        ended = torch.stack([line[real][-1] == EOS_ID for line, real in zip(ids, mask, strict=True)])
        assert 0 < row["truncated"] == int((~ended).sum()) < 32, step
        assert row["rollout_corr/tokens"] == int(mask.sum()), step


@pytest.mark.slow
def test_answers_without_a_reward_cost_no_step(
    tiny_model: Path, local_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers with a 1 cannot be judged; neither the record nor a reader of it meets them."""
    reward_with(monkeypatch, lambda response: None if "1" in response else len(response) / 5)
    run = train(small(tiny_model))
    assert (verify(run).status, verify(run).problems) == ("complete", [])
    for step, row in enumerate(runs.read_metrics(run), 1):
        record = runs.read_step(run, step)
        rewards = record.batch.tensors()["rewards"]
        assert 0 < row["unscored"] == 32 - len(rewards) < 32, step
        assert not any("1" in text for text in record.responses)
        assert bool(rewards.isfinite().all())
        assert row["reward"] == pytest.approx(float(rewards.double().mean())), step
        assert row["grad_norm"] > 0
        assert {name: row[name] for name in row if name.startswith("bad/") and row[name]} == {}


@pytest.mark.slow
def test_a_step_without_an_answer_to_learn_from_is_skipped(
    tiny_model: Path, local_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reward_with(monkeypatch, lambda _: None)
    with pytest.raises(UsageError, match=r"in 2 steps in a row; .* because each has a reward of None"):
        train(small(tiny_model, steps=9, max_bad_steps=2))
    rows = runs.read_metrics(local_runs / "tiny")
    assert [(row["bad/no_answers"], row["unscored"]) for row in rows] == [(1, 32)] * 2
    assert verify(local_runs / "tiny").problems == []
