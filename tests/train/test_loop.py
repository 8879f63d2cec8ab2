"""What a step writes, and what happens to bad settings."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import tiny_config

from rlcorr.config import LossConfig, LossType
from rlcorr.errors import UsageError
from rlcorr.presets import preset
from rlcorr.records import runs
from rlcorr.records.held_out import read_answers
from rlcorr.records.verify import verify
from rlcorr.train.config.learning import AdvantageConfig, OptimConfig
from rlcorr.train.config.rollout import RolloutConfig
from rlcorr.train.config.training import TrainConfig
from rlcorr.train.inputs.tasks import TASKS, is_held_out
from rlcorr.train.loop import train
from rlcorr.train.rollout.transformers_engine import TransformersEngine


def test_a_run_is_recorded_and_verifies(tiny_model: Path, local_runs: Path) -> None:
    path = train(tiny_config(tiny_model))
    assert path == local_runs / "tiny"
    report = verify(path)
    assert (report.status, report.problems, report.readable_steps, report.metric_rows) == ("complete", [], 2, 2)
    rows = runs.read_metrics(path)
    assert [row["step"] for row in rows] == [1, 2]
    assert all(math.isfinite(value) for row in rows for value in row.values())
    assert {"reward", "actor/kl_loss", "grad_norm", "timing/generate", "timing/sync", "rollout_corr/k3_kl"} <= set(
        rows[0]
    )
    assert "accuracy" in rows[-1]


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


def test_recorded_pairs_agree_in_float32(tiny_model: Path, local_runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine computes in float32 as the trainer does, so after each sync only summation order is left."""
    long_is_good = replace(TASKS["addition"], reward=lambda _, response: len(response) / 5)
    monkeypatch.setitem(TASKS, "addition", long_is_good)  # a random model never answers right: nothing would move
    path = train(tiny_config(tiny_model, steps=3, optim=OptimConfig(learning_rate=1e-2)))
    for step in (1, 2, 3):
        record = runs.read_step(path, step)
        mask = record.batch.response_mask
        d = record.batch.tensors()["old_log_probs"][mask].double() - record.batch.rollout_log_probs[mask].double()
        assert float((d.exp() - 1 - d).mean()) < 1e-7
    assert runs.read_metrics(path)[-1]["actor/kl_loss"] > 0  # the weights did move


def test_the_age_of_the_weights_is_told_apart_from_the_engine(
    tiny_model: Path, local_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The float32 engine adds nothing but another order of sums; all of the gap is the age of the weights, which is 0
    at the first step and grows. The recorded pairs have all three log-probs."""
    long_is_good = replace(TASKS["addition"], reward=lambda _, response: len(response) / 5)
    monkeypatch.setitem(TASKS, "addition", long_is_good)
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


def test_a_sync_that_fails_later_stops_a_float32_run(
    tiny_model: Path, local_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long_is_good = replace(TASKS["addition"], reward=lambda _, response: len(response) / 5)
    monkeypatch.setitem(TASKS, "addition", long_is_good)
    true_sync = TransformersEngine.sync

    def sync(*given: Any) -> None:
        if len(runs.list_steps(local_runs / "tiny")) < 2:  # after two steps the engine keeps what it has
            true_sync(*given)

    monkeypatch.setattr(TransformersEngine, "sync", sync)
    with pytest.raises(UsageError, match="did not take the weights of the last step"):
        train(tiny_config(tiny_model, steps=5, optim=OptimConfig(learning_rate=1e-2)))
    report = verify(local_runs / "tiny")
    assert (report.status, report.readable_steps, report.problems) == ("interrupted", 2, [])


def test_the_same_seed_gives_the_same_run(tiny_model: Path, local_runs: Path) -> None:
    first = train(tiny_config(tiny_model, run="first"))
    second = train(tiny_config(tiny_model, run="second"))
    for step in (1, 2):
        assert runs.read_step(first, step).responses == runs.read_step(second, step).responses
    without_timing = [
        [{k: v for k, v in row.items() if not k.startswith(("timing/", "elapsed"))} for row in runs.read_metrics(run)]
        for run in (first, second)
    ]
    assert without_timing[0] == without_timing[1]


def test_manifest_says_what_made_the_run(tiny_model: Path, local_runs: Path) -> None:
    manifest = json.loads((train(tiny_config(tiny_model)) / "manifest.json").read_text())
    assert manifest["engine"] == "transformers"
    assert manifest["trainer_dtype"] == "float32"
    assert manifest["config"]["rollout"]["dtype"] == "float32"
    assert manifest["versions"]["torch"].startswith("2.")
    assert str(Path.home()) not in json.dumps(manifest)


def test_a_run_to_be_committed_holds_no_weights(tiny_model: Path, local_runs: Path) -> None:
    run = train(tiny_config(tiny_model, steps=1, save_model=False, checkpoint_every=0, tensorboard=False))
    names = ["answers.jsonl", "config.yaml", "manifest.json", "metrics.jsonl", "steps"]
    assert sorted(path.name for path in run.iterdir()) == names
    assert verify(run).problems == []


def test_an_existing_run_is_not_overwritten(tiny_model: Path, local_runs: Path) -> None:
    train(tiny_config(tiny_model, steps=1))
    with pytest.raises(UsageError, match="already contains a run"):
        train(tiny_config(tiny_model, steps=1))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"preset": "decoupled_tokens"}, "unknown preset 'decoupled_tokens'.*Did you mean"),
        ({"task": "multiplication"}, "unknown task 'multiplication'.*Known: addition, "),
        ({"model": "nowhere"}, "no model at nowhere"),
        (
            {"preset": "verl_dppo_tv", "loss": LossConfig(clip_ratio_low=0.3)},
            "preset verl_dppo_tv sets clip_ratio_low=0.15",
        ),
        ({"loss_type": "ppo_clips"}, "unknown loss_type 'ppo_clips'"),
        ({"preset": "bypass_pg_is", "loss_type": "kl_cov"}, "double correction"),
        ({"preset": "disabled", "batch_normalize": True}, "nothing to normalise"),
        ({"run": "../elsewhere"}, "name of a run must be plain"),
        ({"steps": 0}, "steps must be > 0; got 0"),
        ({"optim": OptimConfig(minibatches=9)}, "minibatches must be at most"),
        (
            {"advantage": AdvantageConfig(estimator="grpo"), "samples_per_prompt": 1},
            "samples_per_prompt must be at least 2",
        ),
    ],
)
def test_wrong_settings_are_refused_at_once(tiny_model: Path, changes: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        replace(tiny_config(tiny_model), **changes)


def test_wrong_engine_settings_are_refused_at_once() -> None:
    with pytest.raises(UsageError, match="temperature must be > 0; got 0"):
        RolloutConfig(temperature=0)
    with pytest.raises(UsageError, match="gamma must be between 0 and 1"):
        AdvantageConfig(gamma=1.5)
    with pytest.raises(UsageError, match="unknown dtype 'int8'"):
        RolloutConfig(dtype="int8")  # pyright: ignore[reportArgumentType]


def test_a_preset_brings_its_own_numbers(tiny_model: Path) -> None:
    """prime-rl holds π_θ near π_rollout by k2 with twice its coefficient; the term to π_ref is the trainer's."""
    loss = tiny_config(tiny_model, preset="prime_rl_dppo").policy_loss
    assert (loss.use_rollout_kl_loss, loss.rollout_kl_loss_coef, loss.use_kl_loss) == (True, 2e-3, True)


def test_weights_of_a_preset_are_normalised_if_asked_for(tiny_model: Path) -> None:
    """Nothing else of the preset changes."""
    config = tiny_config(tiny_model, preset="decoupled_seq_is", batch_normalize=True)
    assert config.correction == replace(preset("decoupled_seq_is"), rollout_is_batch_normalize=True)


@pytest.mark.parametrize("name", ["verl_dppo_tv", "prime_rl_dppo", "slime_mis", "trl_opsm"])
def test_presets_of_every_kind_train(tiny_model: Path, local_runs: Path, name: str) -> None:
    row = runs.read_metrics(train(tiny_config(tiny_model, preset=name, steps=1)))[0]
    assert all(math.isfinite(value) for value in row.values())
    assert ("rollout_kl" in row) == (name == "prime_rl_dppo")


@pytest.mark.parametrize("loss_type", ["clip_cov", "kl_cov"])
def test_a_loss_that_no_preset_names_trains(tiny_model: Path, local_runs: Path, loss_type: LossType) -> None:
    config = tiny_config(tiny_model, preset="decoupled_token_is", loss_type=loss_type, steps=1)
    assert config.correction == replace(preset("decoupled_token_is"), loss_type=loss_type)
    assert all(math.isfinite(value) for value in runs.read_metrics(train(config))[0].values())


def test_defaults_are_a_complete_configuration() -> None:
    assert TrainConfig().correction.rollout_is == "token"
