"""Which policies enter which ratio, what a step writes, and what happens to bad settings."""

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny import tiny_config

from rlcorr import runs
from rlcorr.correction import correct
from rlcorr.errors import UsageError
from rlcorr.losses import token_mean
from rlcorr.train.config import RolloutConfig, TrainConfig
from rlcorr.train.model import Scores
from rlcorr.train.ppo import policy_loss, train
from rlcorr.train.rollout import TransformersEngine
from rlcorr.train.tasks import TASKS
from rlcorr.types import TokenBatch

# One sequence of two tokens; probabilities of the sampled tokens under the three policies, advantage 1.
ROLLOUT, OLD, NEW = (0.5, 0.4), (0.25, 0.6), (0.275, 0.9)


def logs(probabilities: tuple[float, float]) -> torch.Tensor:
    return torch.tensor([[math.log(p) for p in probabilities]])


def per_token_loss(tiny_model: Path, preset: str) -> list[float]:
    batch = TokenBatch(
        response_mask=torch.ones(1, 2, dtype=torch.bool),
        rollout_log_probs=logs(ROLLOUT),
        old_log_probs=logs(OLD),
        advantages=torch.ones(1, 2),
    )
    config = tiny_config(tiny_model, preset=preset)
    scores = Scores(log_probs=logs(NEW), values=torch.zeros(1, 2), entropy=torch.zeros(1, 2))
    loss, keep = policy_loss(config, batch, scores, correct(batch, config.correction))
    return torch.where(keep, loss, torch.nan).flatten().tolist()


def test_decoupled_clips_new_over_old_and_weighs_old_over_rollout(tiny_model: Path) -> None:
    # ratios new/old: 1.1 and 1.5, the second clipped at 1.2; weights old/rollout: 0.5 and 1.5
    assert per_token_loss(tiny_model, "decoupled_token_is") == pytest.approx([-1.1 * 0.5, -1.2 * 1.5])


def test_without_weights_decoupled_is_plain_ppo(tiny_model: Path) -> None:
    assert per_token_loss(tiny_model, "disabled") == pytest.approx([-1.1, -1.2])


def test_bypass_clips_new_over_rollout_without_weights(tiny_model: Path) -> None:
    # new/rollout: 0.55 (below the clip, and the unclipped branch is the larger loss) and 2.25, clipped at 1.2
    assert per_token_loss(tiny_model, "bypass_ppo_clip") == pytest.approx([-0.55, -1.2])


def test_bypass_policy_gradient_weighs_new_over_rollout(tiny_model: Path) -> None:
    # sequence weight: 0.55 · 2.25 = 1.2375, below the cap of 2; loss −A log π_θ · w
    expected = [-math.log(p) * 1.2375 for p in NEW]
    assert per_token_loss(tiny_model, "bypass_pg_is") == pytest.approx(expected)


def test_bypass_rejects_on_new_over_rollout(tiny_model: Path) -> None:
    # geometric mean of new/rollout: √1.2375 = 1.11, outside 1 ± 0.001. Of old/rollout: √0.75, outside too; so the
    # k3 rule decides: mean k3 of log(0.55), log(2.25) is (0.148 + 0.439)/2 = 0.29 > 0.01
    assert all(map(math.isnan, per_token_loss(tiny_model, "bypass_ppo_clip_k3_rs")))


@pytest.mark.parametrize(
    "preset", ["decoupled_geo_rs_token_tis", "bypass_ppo_clip_geo_rs", "bypass_pg_geo_rs_token_tis"]
)
@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_a_rejected_bad_log_prob_leaves_the_gradient_finite(tiny_model: Path, preset: str, bad: float) -> None:
    log_probs = torch.tensor([[-1.0, -2.0], [-1.0, -2.0]], requires_grad=True)
    agreed = log_probs.detach().clone()
    batch = TokenBatch(
        response_mask=torch.ones(2, 2, dtype=torch.bool),
        rollout_log_probs=torch.tensor([[-1.0, bad], [-1.0, -2.0]]),
        old_log_probs=agreed,
        advantages=torch.ones(2, 2),
    )
    config = tiny_config(tiny_model, preset=preset)
    result = correct(batch, config.correction)
    scores = Scores(log_probs=log_probs, values=torch.zeros(2, 2), entropy=torch.zeros(2, 2))
    loss, keep = policy_loss(config, batch, scores, result)
    token_mean(loss, keep, batch.response_mask, "fixed").backward()
    assert keep.tolist() == [[False, False], [True, True]]  # one bad token takes its sequence with it
    assert log_probs.grad is not None
    # The kept row agrees exactly: ratio and weight 1, so each of its two tokens gives −A/4, the others nothing.
    assert log_probs.grad.tolist() == [[0.0, 0.0], [-0.25, -0.25]]


def test_a_run_is_recorded_and_verifies(tiny_model: Path, local_runs: Path) -> None:
    path = train(tiny_config(tiny_model))
    assert path == local_runs / "tiny"
    report = runs.verify(path)
    assert (report.status, report.problems, report.readable_steps, report.metric_rows) == ("complete", [], 2, 2)
    rows = runs.read_metrics(path)
    assert [row["step"] for row in rows] == [1, 2]
    assert all(math.isfinite(value) for row in rows for value in row.values())
    assert {"reward", "kl_ref", "grad_norm", "timing/generate", "timing/sync", "rollout_corr/k3_kl"} <= set(rows[0])
    assert "accuracy" in rows[-1]


def test_recorded_pairs_agree_in_float32(tiny_model: Path, local_runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine computes in float32 as the trainer does, so after each sync only summation order is left."""
    long_is_good = replace(TASKS["addition"], reward=lambda _, response: len(response) / 5)
    monkeypatch.setitem(TASKS, "addition", long_is_good)  # a random model never answers right: nothing would move
    path = train(tiny_config(tiny_model, steps=3, learning_rate=1e-2))
    for step in (1, 2, 3):
        record = runs.read_step(path, step)
        mask = record.batch.response_mask
        d = record.batch.tensors()["old_log_probs"][mask].double() - record.batch.rollout_log_probs[mask].double()
        assert float((d.exp() - 1 - d).mean()) < 1e-7
    assert runs.read_metrics(path)[-1]["kl_ref"] > 0  # the weights did move


def test_a_sync_that_fails_later_stops_a_float32_run(
    tiny_model: Path, local_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long_is_good = replace(TASKS["addition"], reward=lambda _, response: len(response) / 5)
    monkeypatch.setitem(TASKS, "addition", long_is_good)
    true_sync, calls = TransformersEngine.sync, itertools.count()
    # The proof at the start syncs twice and the first step once; after that the engine keeps what it has.
    monkeypatch.setattr(TransformersEngine, "sync", lambda *given: next(calls) < 3 and true_sync(*given))
    with pytest.raises(UsageError, match="did not take the weights of the last step"):
        train(tiny_config(tiny_model, steps=5, learning_rate=1e-2))
    report = runs.verify(local_runs / "tiny")
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


def test_an_existing_run_is_not_overwritten(tiny_model: Path, local_runs: Path) -> None:
    train(tiny_config(tiny_model, steps=1))
    with pytest.raises(UsageError, match="already holds a run"):
        train(tiny_config(tiny_model, steps=1))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"preset": "decoupled_tokens"}, "unknown preset 'decoupled_tokens'.*Did you mean"),
        ({"task": "multiplication"}, "unknown task 'multiplication'.*Known: addition, running_sum"),
        ({"model": Path("nowhere")}, "no model at nowhere"),
        ({"kl_estimator": "k4"}, "unknown KL estimator 'k4'"),
        ({"run": "../elsewhere"}, "plain name"),
        ({"steps": 0}, "steps must be > 0; got 0"),
        ({"gamma": 1.5}, "gamma must be between 0 and 1; got 1.5"),
        ({"minibatches": 9}, "minibatches must be at most"),
    ],
)
def test_wrong_settings_are_refused_at_once(tiny_model: Path, changes: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        replace(tiny_config(tiny_model), **changes)


def test_wrong_engine_settings_are_refused_at_once() -> None:
    with pytest.raises(UsageError, match="temperature must be > 0; got 0"):
        RolloutConfig(temperature=0)
    with pytest.raises(UsageError, match="unknown dtype 'int8'"):
        RolloutConfig(dtype="int8")  # pyright: ignore[reportArgumentType]


def test_defaults_are_a_complete_configuration() -> None:
    assert TrainConfig().correction.rollout_is == "token"
