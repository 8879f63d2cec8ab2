"""Reference gradients of a run against a whole gradient for each token, and sketches that were interrupted."""

import errno
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from outcome import outcome
from tiny import tiny_config
from torch import Tensor
from whole_gradients import along, whole_gradient

from rlcorr.command.gradients import gradient_table
from rlcorr.config import CorrectionConfig
from rlcorr.errors import UsageError
from rlcorr.gradients.bootstrap import mean_gradients
from rlcorr.gradients.contributions import contributions
from rlcorr.gradients.sketch import SampledSketch
from rlcorr.records import disk, runs, sketch_files
from rlcorr.records.sketch_files import kept, read_gradients, read_tensors, unfinished
from rlcorr.records.verify import verify
from rlcorr.train import loop
from rlcorr.train.config.learning import AdvantageConfig, OptimConfig, SketchConfig
from rlcorr.train.config.rollout import RolloutConfig
from rlcorr.train.config.training import TRAINER_LOSS, TrainConfig
from rlcorr.train.learner.policy import Policy
from rlcorr.train.sketches import reference
from rlcorr.train.sketches.token_scores import draw_directions, scored_copy
from rlcorr.types import TokenBatch

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("rewarding")]  # training runs, a backward pass per token

ONCE = OptimConfig(epochs=1, minibatches=1, learning_rate=0.02, final_learning_rate=0.02)
SKETCH = SketchConfig(every=2, directions=10, places=3, reference_answers=20)


def config_of(model: Path, **changes: Any) -> TrainConfig:
    """GRPO at temperature 0.7. The reference has 24 answers: three parts of four prompts with two answers."""
    rollout = RolloutConfig(engine="transformers", dtype="float32", temperature=0.7)
    base = tiny_config(
        model, rollout=rollout, optim=ONCE, sketch=SKETCH, advantage=AdvantageConfig("grpo"),
        loss=replace(TRAINER_LOSS, use_kl_loss=False),
    )  # fmt: skip
    return replace(base, **changes)


@dataclass
class Watched:
    """The policy and the sketch of the last step that has one, and the batches of its reference."""

    policy: Any = None
    sketch: SampledSketch | None = None
    batches: list[TokenBatch] = field(default_factory=list)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    seen, true_sketch, true_batch = Watched(), loop.sampled_sketch, reference.batch_of

    def sampled_sketch(session: Any, *rest: Any) -> SampledSketch:
        seen.policy = scored_copy(session.policy.lm).requires_grad_(True)
        seen.sketch = true_sketch(session, *rest)
        return seen.sketch

    def batch_of(*given: Any) -> TokenBatch:
        seen.batches.append(true_batch(*given))
        return seen.batches[-1]

    monkeypatch.setattr(loop, "sampled_sketch", sampled_sketch)
    monkeypatch.setattr(reference, "batch_of", batch_of)
    return seen


def by_hand(rewards: Tensor) -> Tensor:
    """GRPO's advantages of pairs: (r − mean)/(σ + 10⁻⁶) with σ = |r₁ − r₂|/√2."""
    pairs = rewards.view(-1, 2)
    centred = pairs - pairs.mean(-1, keepdim=True)
    return (centred / ((pairs[:, :1] - pairs[:, 1:]).abs() / 2**0.5 + 1e-6)).flatten()


def test_a_reference_is_the_gradient_of_the_trained_weights(
    tiny_model: Path, local_runs: Path, watched: Watched
) -> None:
    """Every block against whole gradients of its two answers, which the updated weights have sampled at 0.7. The step's
    own scores add up to the gradient whose norm the trainer has computed."""
    run = loop.train(config_of(tiny_model))
    lm, sketch = watched.policy, watched.sketch
    assert sketch is not None
    assert sketch.reference is not None
    directions = draw_directions(lm, 0, 10)
    expected = []
    for batch in watched.batches:
        log_probs = Policy(lm, False)(batch, 0.7).log_probs
        mask, columns = batch.response_mask, batch.tensors()
        torch.testing.assert_close(batch.rollout_log_probs[mask], log_probs.detach()[mask], rtol=0, atol=1e-4)
        weighted = (by_hand(columns["rewards"])[:, None] * log_probs * mask).sum(-1)
        expected += [along(whole_gradient(lm, value), directions) for value in weighted]
    answers = torch.stack(expected)
    lengths = torch.cat([batch.response_mask.sum(-1) for batch in watched.batches]).float()
    got = sketch.reference
    assert answers.abs().max() > 0.1
    for blocks, of_answers in ((got.by_token, answers), (got.by_sequence, answers / lengths[:, None])):
        largest = float(of_answers.abs().max())
        torch.testing.assert_close(blocks, of_answers.view(12, 2, 10).sum(1), rtol=1e-4, atol=1e-4 * largest)
    assert (got.tokens.tolist(), got.sequences.tolist()) == (lengths.view(12, 2).sum(1).tolist(), [2.0] * 12)

    batch, read = read_gradients(run, 2)
    assert isinstance(read, SampledSketch)
    assert read.reference is not None
    rounding = got.by_token.abs().amax(-1, keepdim=True) / 127 * 0.51  # half a unit, which is itself rounded
    assert ((read.reference.by_token - got.by_token).abs() <= rounding).all()
    log_probs = Policy(lm, False)(batch, 0.7).log_probs
    whole = whole_gradient(lm, (batch.tensors()["advantages"] * log_probs)[batch.response_mask].mean())
    norm = sum(float(gradient.square().sum()) for gradient in whole.values()) ** 0.5
    assert runs.read_metrics(run)[-1]["grad_norm"] == pytest.approx(norm, rel=1e-4)
    (parts,) = contributions(batch, sketch, [CorrectionConfig()])
    mean = mean_gradients(parts, torch.ones(1, len(parts.n)))[0]
    torch.testing.assert_close(mean, along(whole, directions), rtol=1e-3, atol=1e-4 * norm)
    assert verify(run).problems == []


def stopping_at(call: int, error: BaseException) -> Callable[[Path, bytes], None]:
    """Return a `write_whole` whose disk raises at this call."""
    calls = iter(range(1000))

    def fsync(_: int) -> None:
        raise error

    def write_whole(path: Path, content: bytes) -> None:
        with pytest.MonkeyPatch.context() as patch:
            if next(calls) == call:
                patch.setattr(disk.os, "fsync", fsync)
            disk.write_whole(path, content)

    return write_whole


@pytest.mark.parametrize(("estimator", "step"), [("grpo", 2), ("gae", 1)])
def test_an_interrupted_sketch_goes_on(
    tiny_model: Path, local_runs: Path, monkeypatch: pytest.MonkeyPatch, watched: Watched, estimator: Any, step: int
) -> None:
    """It is killed while it writes the third part of its reference. Then the disk is full after the first answers. What
    is done is not made again, and the run is the same as without interruptions."""
    monkeypatch.setattr("rlcorr.train.sketches.token_scores.TOKENS_AT_ONCE", 40)
    sketch = replace(SKETCH, every=step, until=step)
    config = config_of(tiny_model, advantage=AdvantageConfig(estimator), sketch=sketch)
    whole, run = loop.train(replace(config, run="whole")), local_runs / "tiny"
    assert not unfinished(whole, step).exists()
    full = OSError(errno.ENOSPC, "No space left on device")
    with monkeypatch.context() as patch:
        patch.setattr(sketch_files, "write_whole", stopping_at(2, KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            loop.train(config)
        assert parts_of(run, step) == ["reference_1_of_3", "reference_2_of_3"]
        patch.setattr(sketch_files, "write_whole", stopping_at(2, full))
        with pytest.raises(UsageError, match=r"/answers_2_of_\d\.safetensors\.gz cannot be written: No space left on "):
            loop.train(config, resume=True)
    assert (runs.read_manifest(run).status, len(parts_of(run, step))) == ("interrupted", 4)
    sampled = len(watched.batches)
    damaged = unfinished(run, step) / f"{parts_of(run, step)[0]}.safetensors.gz"
    damaged.write_bytes(damaged.read_bytes()[:50])  # is made again
    assert loop.train(config, resume=True) == run
    assert len(watched.batches) == sampled
    assert not unfinished(run, step).exists()
    (made, about), (expected, about_expected) = (read_tensors(runs.sketch_path(path, step)) for path in (run, whole))
    assert (about, made.keys()) == (about_expected, expected.keys())
    assert all(torch.equal(made[name], expected[name]) for name in expected)
    assert outcome(run) == outcome(whole)
    assert verify(run).problems == []


def parts_of(run: Path, step: int) -> list[str]:
    return sorted(path.name.partition(".")[0] for path in unfinished(run, step).glob("*.gz"))


def test_parts_of_other_weights_are_made_again(tmp_path: Path) -> None:
    made = [kept(tmp_path / "parts", key, "a", lambda key=key: {"x": torch.full((2,), float(key))}) for key in "1221"]
    assert [float(part["x"][0]) for part in made] == [1, 2, 2, 1]
    again = kept(tmp_path / "parts", "1", "a", lambda: {"x": torch.zeros(2)})
    assert float(again["x"][0]) == 1


def test_a_table_of_presets_names_its_reference(tiny_model: Path, local_runs: Path) -> None:
    """A float32 engine makes no gap, so nothing has a bias, and nothing can be distinguished."""
    sketch = replace(SKETCH, reference_answers=256, directions=64)
    run = loop.train(config_of(tiny_model, prompts_per_step=16, sketch=sketch))
    text = " ".join(gradient_table(run, names=["disabled", "decoupled_token_is"]))
    assert "The on-policy gradient is that of 256 answers of the trained weights, in 64 blocks." in text
    assert text.count(" 0.000 [0.000, 0.000] ") >= 2
    assert re.search(r"does not differ significantly from that of no correction: .*about \d+ sampled answers", text)


def test_what_a_reference_cannot_be_made_of(
    tiny_model: Path, local_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for wrong in ({"sketch": replace(SKETCH, exact_prompts=8)}, {"rollout": RolloutConfig(router_replay=True)}):
        with pytest.raises(UsageError, match=r"goes without sketch\.exact_prompts, which is exact, and without router"):
            config_of(tiny_model, **wrong)
    with pytest.raises(UsageError, match="reference_answers must be"):
        replace(SKETCH, reference_answers=-1)
    true_collect = reference.collect
    monkeypatch.setattr(reference, "collect", lambda *a, **b: replace(true_collect(*a, **b), rewards=[math.nan] * 8))
    with pytest.raises(UsageError, match=r"no number for an answer of the reference gradient.*kept for --resume"):
        loop.train(config_of(tiny_model))
