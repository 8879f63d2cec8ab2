"""Answers that are drawn for a sketch, against the weights that must have drawn them and one backward pass."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import CPU, tiny_config
from torch import Tensor

from rlcorr.errors import UsageError
from rlcorr.gradients.report import report
from rlcorr.gradients.sketch import DrawnAnswers, SampledSketch
from rlcorr.presets import preset
from rlcorr.records import runs
from rlcorr.records.runs import sketch_path
from rlcorr.records.sketch_files import read_exact, read_gradients, read_sketch, read_tensors
from rlcorr.records.verify import verify
from rlcorr.train import loop
from rlcorr.train.config.learning import AdvantageConfig, OptimConfig, SketchConfig
from rlcorr.train.config.rollout import RolloutConfig
from rlcorr.train.config.training import TrainConfig
from rlcorr.train.inputs.tasks import TASKS
from rlcorr.train.inputs.tokenizer import PAD_ID
from rlcorr.train.learner.policy import Policy, load_lm
from rlcorr.train.sketches.sampled import directions, eager_copy

FEW = SketchConfig(every=2, directions=10, reference_prompts=64, places=4, answers=24, answer_directions=6)
slow = pytest.mark.slow  # trainings


@dataclass
class Watched:
    """What `drawn_answers` gave, and the policy that it was given."""

    answers: list[DrawnAnswers] = field(default_factory=list)
    policies: list[Policy] = field(default_factory=list)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    seen, true_draw = Watched(), loop.drawn_answers

    def drawn_answers(session: Any, request: Any) -> DrawnAnswers:
        seen.policies.append(Policy(eager_copy(session.policy).lm, None))
        seen.answers.append(true_draw(session, request))
        return seen.answers[-1]

    monkeypatch.setattr(loop, "drawn_answers", drawn_answers)
    return seen


@slow
@pytest.mark.usefixtures("rewarding")
def test_a_run_is_recorded_and_read_back(tiny_model: Path, local_runs: Path, watched: Watched) -> None:
    """Scores are off by at most half a unit, a 31st of the largest of their row; log-probs by nothing."""
    run = loop.train(tiny_config(tiny_model, steps=4, sketch=FEW))
    assert verify(run).problems == []
    assert read_tensors(sketch_path(run, 4))[0]["drawn_scores"].dtype == torch.int8
    for step, before in zip((2, 4), watched.answers, strict=True):
        batch, sketch = read_gradients(run, step)
        assert isinstance(sketch, SampledSketch)
        mask = before.batch.response_mask
        assert mask.shape[0] == 24  # 12 prompts, two answers to each
        assert torch.equal(batch.response_mask, mask)
        for name in ("old_log_probs", "rollout_log_probs"):
            assert torch.equal(getattr(batch, name)[mask], getattr(before.batch, name)[mask])
        assert batch.advantages is not None
        assert before.batch.advantages is not None
        torch.testing.assert_close(batch.advantages[mask], before.batch.advantages[mask], rtol=1e-3, atol=1e-3)
        half = before.scores.abs().amax(-1, keepdim=True) / 15 / 2
        assert ((sketch.scores - before.scores).abs() <= half * (1 + 2 / 512)).all()
        assert read_exact(run, step) is None
        of_step = read_sketch(run, step)  # of the step's own answers, in all directions
        assert of_step.scores.shape == (int(runs.read_step(run, step).batch.response_mask.sum()), 10)
        assert sketch.weights_hash == of_step.weights_hash
        # A projection on K directions is divided by √K: the first 6 of 10 count √(10/6) as much.
        torch.testing.assert_close(sketch.reference.by_token, of_step.reference.by_token[:, :6] * (10 / 6) ** 0.5)
        torch.testing.assert_close(sketch.reference.by_sequence, of_step.reference.by_sequence[:, :6] * (10 / 6) ** 0.5)
    # In float32 both policies are one but for rounding: without a correction the gradient has no bias.
    assert report(*read_gradients(run, 4), preset("disabled")).relative_bias.high < 1e-2


@slow
@pytest.mark.usefixtures("rewarding")
@pytest.mark.parametrize("asynchronous", [False, True])
def test_answers_are_drawn_with_the_weights_that_sampled(
    asynchronous: bool, tiny_model: Path, local_runs: Path, watched: Watched
) -> None:
    """Of a run that is a step behind, at its second step: those before the first update. The trainer has later ones."""
    rollout = RolloutConfig(engine="transformers", dtype="float32", staleness=1, asynchronous=asynchronous)
    fast = OptimConfig(learning_rate=0.02, final_learning_rate=0.02)
    loop.train(tiny_config(tiny_model, rollout=rollout, sketch=FEW, optim=fast))
    (batch,) = (answers.batch for answers in watched.answers)
    mask = batch.response_mask
    with torch.no_grad():
        first, present = Policy(load_lm(tiny_model, CPU), None)(batch, 1.0), watched.policies[0](batch, 1.0)
    assert batch.old_log_probs is not None
    torch.testing.assert_close(batch.rollout_log_probs[mask], first.log_probs[mask], rtol=0, atol=1e-4)
    torch.testing.assert_close(batch.old_log_probs[mask], present.log_probs[mask], rtol=0, atol=1e-4)
    assert (first.log_probs - present.log_probs)[mask].abs().max() > 0.01


@slow
@pytest.mark.usefixtures("rewarding")
def test_scores_are_derivatives_along_the_first_directions(
    tiny_model: Path, local_runs: Path, watched: Watched
) -> None:
    """Their sum with the advantages, against one backward pass of Σ advantage · log π. Without the answers in which the
    random model wrote padding, whose embedding no backward pass sees."""
    loop.train(tiny_config(tiny_model, sketch=FEW))
    (answers,), (policy,) = watched.answers, watched.policies
    batch, mask = answers.batch, answers.batch.response_mask
    assert batch.response_ids is not None
    assert batch.advantages is not None
    written = ~((batch.response_ids == PAD_ID) & mask).any(-1, keepdim=True) & mask
    weighed = torch.where(written, batch.advantages, 0)
    gradients = torch.autograd.grad((weighed * policy(batch, 1.0).log_probs).sum(), list(policy.parameters()))
    named = dict(policy.named_parameters())
    along: list[Tensor] = []
    for group in directions(named, 0, 10):
        parts = [(group[name] * g).flatten(1).sum(-1) for name, g in zip(named, gradients, strict=True)]
        along.append(torch.stack(parts).sum(0))
    expected = torch.cat(along)[:6] / 6**0.5
    assert expected.abs().max() > 1e-2
    got = (weighed[mask][:, None] * answers.scores).sum(0)
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


@slow
@pytest.mark.usefixtures("rewarding")
@pytest.mark.parametrize("estimator", ["gae", "grpo"])
def test_advantages_are_those_of_an_update(
    estimator: Any, tiny_model: Path, local_runs: Path, watched: Watched
) -> None:
    """Of PPO with mean 0 and variance 1 over all tokens; of GRPO with mean 0 over the two answers to a prompt."""
    loop.train(tiny_config(tiny_model, sketch=FEW, advantage=AdvantageConfig(estimator=estimator)))
    (batch,) = (answers.batch for answers in watched.answers)
    advantages, mask = batch.advantages, batch.response_mask
    assert advantages is not None
    assert advantages[mask].abs().max() > 0.1
    if estimator == "gae":
        assert float(advantages[mask].mean()) == pytest.approx(0, abs=1e-5)
        assert float(advantages[mask].var()) == pytest.approx(1, abs=1e-2)
    else:
        pairs = advantages[:, 0].view(12, 2)  # the same at each token of an answer
        torch.testing.assert_close(pairs[:, 0], -pairs[:, 1], rtol=0, atol=1e-5)


@slow
@pytest.mark.usefixtures("rewarding")
def test_drawing_changes_nothing_else(tiny_model: Path, local_runs: Path) -> None:
    """Neither the training nor what is recorded of its steps, in an asynchronous run that is a step ahead as well; but
    for rounding, which two threads that compute side by side do not repeat on every processor."""

    def outcome(run: Path) -> list[dict[str, Any]]:
        rows = runs.read_metrics(run)
        return [{k: v for k, v in row.items() if not k.startswith("timing/") and k != "elapsed"} for row in rows]

    rollout = RolloutConfig(engine="transformers", dtype="float32", staleness=1, asynchronous=True)
    config = tiny_config(tiny_model, steps=4, rollout=rollout)
    without = loop.train(replace(config, run="without", sketch=replace(FEW, answers=0)))
    drawn = loop.train(replace(config, run="with", sketch=FEW))
    assert [row["grad_norm"] > 0 for row in outcome(without)] == [True] * 4
    for row, expected in zip(outcome(drawn), outcome(without), strict=True):
        assert row == pytest.approx(expected, rel=1e-3, abs=1e-4)
    for step in (2, 4):
        batch, expected = runs.read_step(drawn, step).batch, runs.read_step(without, step).batch
        assert batch.response_ids is not None
        assert expected.response_ids is not None
        assert torch.equal(batch.response_ids, expected.response_ids)
        torch.testing.assert_close(batch.rollout_log_probs, expected.rollout_log_probs, rtol=0, atol=1e-4)
        torch.testing.assert_close(batch.old_log_probs, expected.old_log_probs, rtol=0, atol=1e-4)
        scores = read_sketch(without, step).scores
        torch.testing.assert_close(
            read_sketch(drawn, step).scores, scores, rtol=0, atol=2e-2 * float(scores.abs().max())
        )


@slow
def test_a_reward_that_raises_is_refused(tiny_model: Path, local_runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On an answer that only the sketch meets."""
    true_draw, sketching = loop.drawn_answers, []

    def drawn_answers(*given: Any) -> DrawnAnswers:
        sketching.append(True)
        return true_draw(*given)

    def reward(_: Any, response: str) -> float:
        if sketching:
            raise ValueError("an answer like this was not foreseen")
        return len(response) / 5

    monkeypatch.setitem(TASKS, "addition", replace(TASKS["addition"], reward=reward))
    monkeypatch.setattr(loop, "drawn_answers", drawn_answers)
    with pytest.raises(UsageError, match="step 2: some answers drawn for its sketch have no reward"):
        loop.train(tiny_config(tiny_model, sketch=FEW))


@pytest.mark.parametrize(
    ("sketch", "message"),
    [
        ({"answers": 7}, "sketch.answers must be 0 or at least 8, the answers of a step; got 7"),
        ({"answers": 9}, "sketch.answers must be a multiple of samples_per_prompt, 2; got 9"),
        ({"answers": -1}, "sketch.answers must be ≥ 0; got -1"),
        ({"answer_directions": 257}, "between 0 and sketch.directions, which is 256; got 257"),
        ({"answer_directions": -1}, "between 0 and sketch.directions, which is 256; got -1"),
        (
            {"answers": 8, "exact_prompts": 8},
            "on 8 sampled answers or on every likely answer to 8 prompts",
        ),
    ],
)
def test_what_does_not_fit_is_refused(sketch: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        TrainConfig(prompts_per_step=4, samples_per_prompt=2, sketch=SketchConfig(every=2, **sketch))


def test_as_many_as_the_step_has_are_enough() -> None:
    sketch = SketchConfig(every=2, answers=8, answer_directions=256)
    assert TrainConfig(prompts_per_step=4, samples_per_prompt=2, sketch=sketch).sketch.answers == 8
