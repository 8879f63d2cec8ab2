"""The trainer in float32, bfloat16 and float16: sizes of errors, the scale of the loss, what is recorded."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from engines import mismatch
from learners import hand_gradient, learner, one_update, scored_batch, small_policy, train_config, weights
from tiny import CPU, tiny_config

from rlcorr import CorrectionConfig
from rlcorr.correction import correct
from rlcorr.errors import UsageError
from rlcorr.records import runs
from rlcorr.train import loop
from rlcorr.train.config.learning import OptimConfig, Precision
from rlcorr.train.config.rollout import RolloutConfig
from rlcorr.train.inputs.tokenizer import EOS_ID
from rlcorr.train.learner.policy import Policy, load_lm
from rlcorr.train.learner.update import update
from rlcorr.train.rollout.probe import format_of, rounding_sentence
from rlcorr.train.rollout.sync_proof import prove_step, prove_sync
from rlcorr.train.rollout.transformers_engine import TransformersEngine
from rlcorr.train.session.checkpoint import read_checkpoint

ROUNDED: tuple[Precision, ...] = ("bfloat16", "float16")
UNIT = {"bfloat16": 2.0**-9, "float16": 2.0**-12}
"""Largest relative error of one rounding: 8 and 11 bits of significand."""
SCALED = OptimConfig(epochs=1, minibatches=1, max_grad_norm=1e9, precision="float16")
FLOAT32 = RolloutConfig(engine="transformers", dtype="float32")
PROMPTS = [[1, 5, 6], [1, 7], [1, 4, 8, 9, 10]] * 4


@pytest.mark.parametrize("precision", ROUNDED)
def test_an_update_has_the_gradient_of_float32_but_for_rounding(
    precision: Precision, monkeypatch: pytest.MonkeyPatch
) -> None:
    """−Σ A ∇log π_θ / N of the whole batch, without importance weights; a scaled loss leaves no factor behind."""
    policy = small_policy()
    batch = scored_batch(policy)
    assert batch.advantages is not None
    correction = CorrectionConfig(loss_type="gpg")
    config = train_config(monkeypatch, correction, optim=replace(SCALED, precision=precision))
    mask = batch.response_mask
    factors = [(-row[real] / mask.sum()).tolist() for row, real in zip(batch.advantages, mask, strict=True)]
    expected = hand_gradient(policy, batch, factors)
    policy.precision = precision
    got, _ = one_update(policy, config, batch)
    assert (got - expected).norm() < 20 * UNIT[precision] * expected.norm()
    assert not torch.equal(got, expected)


# --- float16: the scale of the loss ---


def test_an_overflow_is_skipped_and_counted_and_lowers_the_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scale of 2^40 is beyond float16 whatever the gradient is. Each skipped step halves it, until one fits."""
    policy = small_policy()
    batch = scored_batch(policy)
    config = train_config(monkeypatch, CorrectionConfig(), optim=SCALED)
    policy.precision = "float16"
    adam = torch.optim.AdamW(policy.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    steps = replace(learner(policy, config, adam), scaler=scaler)
    result, before, skipped = correct(batch, config.correction), weights(policy), 0
    while update(steps, batch, result)["bad/gradient"]:
        skipped += 1
        assert torch.equal(weights(policy), before)
        assert scaler.get_scale() == 2.0 ** (40 - skipped)
        assert skipped < 40
    assert skipped > 10  # float16 ends at 2^16; the loss itself is float32, and of size 1
    assert bool(weights(policy).isfinite().all())
    assert not torch.equal(weights(policy), before)
    assert scaler.get_scale() == 2.0 ** (40 - skipped)


@pytest.mark.usefixtures("rewarding")
def test_a_run_in_float16_says_it_and_goes_on_with_its_scale(tiny_model: Path, local_runs: Path) -> None:
    """The scale grows after 2,000 steps in a row without an overflow, so a checkpoint holds how many there were. Both
    scores round: the reference's log-probs are those of π_old before the first update."""
    optim = OptimConfig(learning_rate=1e-2, precision="float16")
    config = tiny_config(tiny_model, steps=3, optim=optim, tensorboard=False)
    manifest = runs.read_manifest(loop.train(replace(config, stop_at_accuracy=0.0)))  # after the first step
    assert manifest.trainer_dtype == manifest.config["optim"]["precision"] == "float16"
    assert manifest.story.endswith("the trainer computes in float16.")
    batch = runs.read_step(local_runs / "tiny", 1).batch
    assert torch.equal(batch.tensors()["ref_log_probs"], batch.tensors()["old_log_probs"])
    gap = (batch.tensors()["old_log_probs"] - batch.rollout_log_probs)[batch.response_mask].abs().max()
    assert float(gap) > 1e-5
    assert read_checkpoint(local_runs / "tiny", CPU).scaler["_growth_tracker"] == 4
    loop.train(config, resume=True)
    state = read_checkpoint(local_runs / "tiny", CPU).scaler
    assert (state["_growth_tracker"], state["scale"]) == (12, 2.0**16)
    assert [row["bad/gradient"] for row in runs.read_metrics(local_runs / "tiny")] == [0, 0, 0]


# --- what knows of it ---


@pytest.mark.parametrize("precision", ROUNDED)
def test_the_proof_of_a_sync_leaves_the_trainers_rounding_out(precision: Precision, tiny_model: Path) -> None:
    """It scores in float32, so only the engine's format is on trial."""
    lm = load_lm(tiny_model, CPU)
    engine, policy = TransformersEngine(FLOAT32, lm, [EOS_ID]), Policy(lm, False, precision)
    assert prove_sync(engine, policy, FLOAT32).k3 <= 1e-7
    assert mismatch(engine, policy, PROMPTS) > 1e-7


def test_a_step_is_checked_only_if_both_sides_are_in_float32() -> None:
    prove_step(1.9e-6, FLOAT32, "float32")  # published for a GPU
    prove_step(1e-3, FLOAT32, "bfloat16")
    prove_step(1e-3, replace(FLOAT32, dtype="bfloat16"), "float32")
    with pytest.raises(UsageError, match="the engine did not take the weights of the last sync"):
        prove_step(1e-3, FLOAT32, "float32")


def test_the_coarsest_format_of_both_sides_is_the_one_that_rounds() -> None:
    plain = RolloutConfig(engine="vllm", dtype="float32")
    cases: list[tuple[RolloutConfig, Precision, str]] = [
        (plain, "float32", "float32"),
        (plain, "bfloat16", "bfloat16"),
        (replace(plain, dtype="float16"), "float16", "float16"),
        (replace(plain, dtype="float16"), "bfloat16", "bfloat16"),
        (replace(plain, dtype="bfloat16", kv_cache_dtype="fp8"), "bfloat16", "fp8_kv"),
        (replace(plain, dtype="bfloat16", weights="int4"), "float32", "int4_weights"),
    ]
    for config, precision, coarsest in cases:
        assert format_of(config, precision) == coarsest, config


@torch.no_grad()
def test_the_probe_says_whose_rounding_it_is() -> None:
    """Log-probs of the trainer itself in float32: all of the gap is the trainer's."""
    policy = small_policy()
    batch = scored_batch(policy)
    batch = batch.replace(rollout_log_probs=policy(batch, 1.0).log_probs)
    said = rounding_sentence(policy, FLOAT32, batch, torch.zeros_like(batch.rollout_log_probs))
    assert said is not None
    assert said.startswith("rounding in float32 has been measured to make")
    policy.precision = "bfloat16"
    gap = policy(batch, 1.0).log_probs - batch.rollout_log_probs
    said = rounding_sentence(policy, FLOAT32, batch, gap.where(batch.response_mask, 0))
    assert said is not None
    assert "rounding in bfloat16" in said
    assert said.endswith("with the trainer in float32 it would be k3 0.0e+00.")
