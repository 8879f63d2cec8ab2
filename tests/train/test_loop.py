"""What a step writes, and what happens to bad settings."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from outcome import outcome
from tiny import CPU, tiny_config

from rlcorr.config import LossConfig
from rlcorr.errors import UsageError
from rlcorr.presets import preset
from rlcorr.records import runs
from rlcorr.records.held_out import read_answers
from rlcorr.records.verify import verify
from rlcorr.train.config.learning import AdvantageConfig, OptimConfig
from rlcorr.train.config.rollout import RolloutConfig
from rlcorr.train.config.training import TrainConfig
from rlcorr.train.inputs.jsonl_task import jsonl_task
from rlcorr.train.inputs.tasks import TASKS, Example, is_held_out
from rlcorr.train.inputs.tokenizer import EOS_ID
from rlcorr.train.learner.bad_numbers import summary
from rlcorr.train.loop import train
from rlcorr.train.rollout.collect import Collected, batch_of, judge, scored
from rlcorr.train.rollout.engine import Samples
from rlcorr.train.rollout.transformers_engine import TransformersEngine


@pytest.fixture(scope="module")
def twice(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The same run of two steps, made twice."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "LOCAL", tmp_path_factory.mktemp("twice") / "local")
        return [train(tiny_config(tiny_model, run=name)) for name in ("first", "second")]


def test_a_run_is_recorded_and_verifies(twice: list[Path]) -> None:
    assert twice[0].parts[-2:] == ("local", "first")
    report = verify(twice[0])
    assert (report.status, report.problems, report.readable_steps, report.metric_rows) == ("complete", [], 2, 2)
    rows = runs.read_metrics(twice[0])
    assert [row["step"] for row in rows] == [1, 2]
    assert all(math.isfinite(value) for row in rows for value in row.values())
    names = {"reward", "actor/kl_loss", "grad_norm", "timing/generate", "timing/sync", "rollout_corr/k3_kl"}
    assert names <= set(rows[0])
    assert "accuracy" in rows[-1]


def test_the_same_seed_gives_the_same_run(twice: list[Path]) -> None:
    assert outcome(twice[0]) == outcome(twice[1])


def test_manifest_says_what_made_the_run(twice: list[Path]) -> None:
    manifest = json.loads((twice[0] / "manifest.json").read_text())
    assert manifest["engine"] == "transformers"
    assert manifest["trainer_dtype"] == "float32"
    assert manifest["config"]["rollout"]["dtype"] == "float32"
    assert manifest["versions"]["torch"].startswith("2.")
    assert str(Path.home()) not in json.dumps(manifest)


def test_an_existing_run_is_not_overwritten(
    tiny_model: Path, twice: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "LOCAL", twice[0].parent)
    with pytest.raises(UsageError, match="already contains a run"):
        train(tiny_config(tiny_model, run="first"))


def test_the_same_held_out_prompts_are_answered_over_the_run(tiny_model: Path, local_runs: Path) -> None:
    """Before the first update, and at each evaluation; a greedy answer is judged like any other."""
    answers = read_answers(train(tiny_config(tiny_model, steps=3, eval_every=2)))
    assert [answer.step for answer in answers] == [step for step in (0, 2, 3) for _ in range(3)]
    prompts = [answer.prompt for answer in answers[:3]]
    assert len(set(prompts)) == 3
    assert all(is_held_out(prompt) for prompt in prompts)
    assert [answer.prompt for answer in answers] == prompts * 3
    for answer in answers:
        a, b = answer.prompt.removesuffix("=").split("+")
        assert answer.reward == float(answer.response == str(int(a) + int(b)))


@pytest.mark.usefixtures("rewarding")
def test_recorded_pairs_agree_in_float32(tiny_model: Path, local_runs: Path) -> None:
    """The engine computes in float32 as the trainer does, so after each sync only summation order is left."""
    path = train(tiny_config(tiny_model, steps=3, optim=OptimConfig(learning_rate=1e-2)))
    for step in (1, 2, 3):
        record = runs.read_step(path, step)
        mask = record.batch.response_mask
        d = record.batch.tensors()["old_log_probs"][mask].double() - record.batch.rollout_log_probs[mask].double()
        assert float((d.exp() - 1 - d).mean()) < 1e-7
    assert runs.read_metrics(path)[-1]["actor/kl_loss"] > 0  # the weights did move


@pytest.mark.usefixtures("rewarding")
def test_the_age_of_the_weights_is_told_apart_from_the_engine(tiny_model: Path, local_runs: Path) -> None:
    """The float32 engine adds nothing but another order of sums; all of the gap is the age of the weights, which is 0
    at the first step and grows. The recorded pairs have all three log-probs."""
    config = tiny_config(tiny_model, steps=4, optim=OptimConfig(learning_rate=1e-2), record_every=1)
    path = train(replace(config, rollout=replace(config.rollout, staleness=2, score_sampled=True)))
    for row in runs.read_metrics(path):
        assert row["rollout_corr/engine_k3_kl"] < 1e-7
        assert row["rollout_corr/age_k3_kl"] == pytest.approx(row["rollout_corr/k3_kl"], rel=0.05, abs=1e-7)
    assert row["rollout_corr/age_k3_kl"] > 1e-4
    first, last = (runs.read_step(path, step).batch for step in (1, 4))
    assert first.sampled_log_probs is not None
    assert last.sampled_log_probs is not None
    assert torch.equal(first.sampled_log_probs, first.tensors()["old_log_probs"])
    torch.testing.assert_close(last.sampled_log_probs, last.rollout_log_probs, rtol=0, atol=1e-4)


@pytest.mark.usefixtures("rewarding")
def test_a_sync_that_fails_later_stops_a_float32_run(
    tiny_model: Path, local_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    true_sync = TransformersEngine.sync

    def sync(*given: Any) -> None:
        if len(runs.list_steps(local_runs / "tiny")) < 2:  # after two steps the engine keeps what it has
            true_sync(*given)

    monkeypatch.setattr(TransformersEngine, "sync", sync)
    with pytest.raises(UsageError, match="did not take the weights of the last step"):
        train(tiny_config(tiny_model, steps=5, optim=OptimConfig(learning_rate=1e-2)))
    report = verify(local_runs / "tiny")
    assert (report.status, report.readable_steps, report.problems) == ("interrupted", 2, [])


def test_a_run_to_be_committed_holds_no_weights(tiny_model: Path, local_runs: Path) -> None:
    run = train(tiny_config(tiny_model, steps=1, save_model=False, checkpoint_every=0, tensorboard=False))
    names = ["answers.jsonl", "config.yaml", "manifest.json", "metrics.jsonl", "steps"]
    assert sorted(path.name for path in run.iterdir()) == names
    assert verify(run).problems == []


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"preset": "decoupled_tokens"}, "unknown preset 'decoupled_tokens'.*Did you mean"),
    ({"task": "multiplication"}, "unknown task 'multiplication'.*Known: addition, "),
    ({"model": "nowhere"}, "no model at nowhere"),
    ({"preset": "verl_dppo_tv", "loss": LossConfig(clip_ratio_low=0.3)}, "verl_dppo_tv sets clip_ratio_low=0.15"),
    ({"loss_type": "ppo_clips"}, "unknown loss_type 'ppo_clips'"),
    ({"preset": "bypass_pg_is", "loss_type": "kl_cov"}, "double correction"),
    ({"preset": "disabled", "batch_normalize": True}, "nothing to normalise"),
    ({"run": "../elsewhere"}, "name of a run must be plain"),
    ({"steps": 0}, "steps must be > 0; got 0"),
    ({"advantage": AdvantageConfig(estimator="grpo"), "samples_per_prompt": 1}, "samples_per_prompt must be at least"),
]


def test_wrong_settings_are_refused_at_once(tiny_model: Path) -> None:
    for changes, message in WRONG:
        with pytest.raises(UsageError, match=message):
            replace(tiny_config(tiny_model), **changes)
    for make, message in (
        (lambda: RolloutConfig(temperature=0), "temperature must be > 0; got 0"),
        (lambda: AdvantageConfig(gae_lambda=1.5), "gae_lambda must be between 0 and 1"),
    ):
        with pytest.raises(UsageError, match=message):
            make()


def test_a_preset_brings_its_own_numbers(tiny_model: Path) -> None:
    """prime-rl holds π_θ near π_rollout by k2 with twice its coefficient; the term to π_ref is the trainer's."""
    loss = tiny_config(tiny_model, preset="prime_rl_dppo").policy_loss
    assert (loss.use_rollout_kl_loss, loss.rollout_kl_loss_coef, loss.use_kl_loss) == (True, 2e-3, True)


def test_what_is_asked_for_beside_a_preset_changes_nothing_else(tiny_model: Path) -> None:
    config = tiny_config(tiny_model, preset="decoupled_seq_is", batch_normalize=True, loss_type="kl_cov")
    expected = replace(preset("decoupled_seq_is"), rollout_is_batch_normalize=True, loss_type="kl_cov")
    assert config.correction == expected


@pytest.mark.parametrize("name", ["prime_rl_dppo", "trl_opsm"])
def test_presets_of_every_kind_train(tiny_model: Path, local_runs: Path, name: str) -> None:
    """With terms and rules that the cells of test_grid.py have not."""
    row = runs.read_metrics(train(tiny_config(tiny_model, preset=name, steps=1)))[0]
    assert all(math.isfinite(value) for value in row.values())
    assert ("rollout_kl" in row) == (name == "prime_rl_dppo")


def test_defaults_are_a_complete_configuration() -> None:
    assert TrainConfig().correction.rollout_is == "token"


# --- answers without a reward are left out of the loss; answers that hit the length limit are counted ---


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
    assert scored(kept).rewards == kept.rewards


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
