"""Sketches of the trainer against one whole backward pass per token, and the files of a run that records them."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from sketch_coverage import contains, intervals, matrix_of, task
from tiny import CPU, tiny_config
from transformers import AutoModelForCausalLM, Gemma3TextConfig, LlamaConfig, Qwen3Config
from whole_gradients import along, whole_gradient

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.errors import UsageError
from rlcorr.gradients import kl_losses
from rlcorr.gradients.report import report
from rlcorr.records import runs
from rlcorr.records.runs import list_sketches, sketch_path
from rlcorr.records.sketch_files import read_sketch, read_tensors
from rlcorr.records.verify import verify
from rlcorr.train import loop
from rlcorr.train.config.learning import OptimConfig, SketchConfig
from rlcorr.train.config.rollout import RolloutConfig
from rlcorr.train.config.training import TrainConfig
from rlcorr.train.learner.policy import Policy, load_lm
from rlcorr.train.pretrain import new_moe_lm
from rlcorr.train.sketches.sampled import next_log_probs, token_scores
from rlcorr.train.sketches.token_scores import draw_directions, scored_copy, scores_of
from rlcorr.types import TokenBatch

pytestmark = pytest.mark.slow  # trainings, and a backward pass per token

FEW = SketchConfig(every=2, directions=10)


def some_batch(seed: int = 0) -> TokenBatch:
    """Prompts of 2 to 4 tokens, responses of 1 to 5, random."""
    generator = torch.Generator().manual_seed(seed)
    prompt, response = torch.tensor([2, 4, 3]), torch.tensor([5, 1, 3])
    ids = torch.randint(3, 21, (3, 9), generator=generator)
    mask = torch.arange(5) < response[:, None]
    return TokenBatch(
        response_mask=mask, rollout_log_probs=torch.zeros(mask.shape), prompt_ids=ids[:, :4],
        prompt_mask=torch.arange(4) >= 4 - prompt[:, None], response_ids=ids[:, 4:],
    )  # fmt: skip


def moe() -> Any:
    torch.manual_seed(0)
    return new_moe_lm(21)


SMALL = {
    "vocab_size": 21, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 8, "initializer_range": 0.2,
}  # fmt: skip
MODELS: dict[str, Callable[[Path], Any]] = {
    "biases and a tied head": lambda path: load_lm(path, CPU),
    "mixture of experts": lambda _: moe(),
    "another head": lambda _: AutoModelForCausalLM.from_config(LlamaConfig(**SMALL, tie_word_embeddings=False)),
    "norms of each head": lambda _: AutoModelForCausalLM.from_config(Qwen3Config(**SMALL)),
    "norms of 1 + w, a scaled embedding": lambda _: AutoModelForCausalLM.from_config(Gemma3TextConfig(**SMALL)),
}


@pytest.mark.parametrize("name", MODELS)
def test_scores_are_derivatives_along_the_directions(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Against a whole gradient for each token. Answers of 5 to 9 tokens, of which two at most fit together."""
    torch.manual_seed(0)
    lm, batch = MODELS[name](tiny_model), some_batch()
    with torch.no_grad():
        for weight in lm.parameters():  # norms of 1 and biases of 0 would hide an error
            weight += 0.1 * torch.randn_like(weight)
    directions = draw_directions(lm, seed=3, count=6)
    config = tiny_config(tiny_model, rollout=RolloutConfig(engine="transformers", dtype="float32", temperature=0.7))
    monkeypatch.setattr("rlcorr.train.sketches.token_scores.TOKENS_AT_ONCE", 18)
    got = token_scores(scored_copy(lm), directions, batch, batch.response_mask, config)
    log_probs = Policy(lm, False)(batch, 0.7).log_probs[batch.response_mask]
    expected = torch.stack([along(whole_gradient(lm, value), directions) for value in log_probs])
    assert got.shape == (9, 6)
    assert expected.abs().max() > 1e-3
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


def test_directions_depend_on_the_seed_and_are_signs(tiny_model: Path) -> None:
    lm = load_lm(tiny_model, CPU)
    first, same, other = (draw_directions(lm, seed, 7) for seed in (1, 1, 2))
    assert first.hash == same.hash != other.hash
    for name, weight in lm.named_parameters():
        assert [x.shape for x in first.signs[name]] == [(size, 7) for size in weight.shape]
        assert all(set(x.unique().tolist()) == {-1.0, 1.0} for x in first.signs[name])


@pytest.mark.usefixtures("rewarding")
def test_a_run_with_sketches(tiny_model: Path, local_runs: Path) -> None:
    """Every token that could follow has a score at some places; they weigh up to 0, Σ π ∇ log π = 0."""
    slow = OptimConfig(learning_rate=1e-6, final_learning_rate=1e-6)  # the policy stays close to the reference
    sketch = replace(FEW, places=5, until=5)
    config = tiny_config(tiny_model, steps=6, record_every=100, sketch=sketch, optim=slow)
    run = loop.train(replace(config, steps=4))
    step, first, sketch = runs.read_step(run, 4), read_sketch(run, 2), read_sketch(run, 4)
    assert verify(run).problems == []
    assert (sketch.reference, sketch.scores.shape) == (None, (int(step.batch.response_mask.sum()), 10))
    assert read_tensors(sketch_path(run, 4))[0]["scores"].dtype == torch.int8
    assert sketch.weights_hash != first.weights_hash  # the updates between them
    assert sketch.directions_hash == first.directions_hash
    assert report(step.batch, sketch, CorrectionConfig()).ess.value == pytest.approx(1)
    following = sketch.next_tokens
    assert following is not None
    assert following.scores.shape == (5, 21, 10)
    assert following.ref_log_probs is not None  # PPO here has a KL loss to the reference
    assert following.rollout_log_probs is not None
    torch.testing.assert_close(following.rollout_log_probs, following.log_probs, rtol=0, atol=1e-4)
    assert (following.ref_log_probs - following.log_probs).abs().max() < 0.1
    mean = torch.einsum("pv,pvk->pk", following.log_probs.exp(), following.scores)
    assert following.scores.abs().max() > 0.1
    assert mean.abs().max() < 2e-3 * following.scores.abs().max()  # float16
    check_a_resumed_run_keeps_its_sketches(config, run)
    check_a_sketch_that_cannot_be_read_is_refused(run)


@pytest.mark.usefixtures("rewarding")
def test_a_large_vocabulary_has_the_gradients_of_divergences(
    tiny_model: Path, tmp_path: Path, local_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are those of the run that records every next token, k2 and k3 summed over its scores in float16."""
    reference = another(tiny_model, tmp_path / "reference")
    config = tiny_config(tiny_model, steps=2, sketch=replace(FEW, places=5), reference_model=str(reference))
    config = replace(config, rollout=replace(config.rollout, staleness=1))  # else the engine has the policy's weights
    whole = read_sketch(loop.train(replace(config, run="whole")), 2).next_tokens
    monkeypatch.setattr("rlcorr.train.sketches.sampled.LARGEST_VOCABULARY", 20)
    run = loop.train(replace(config, run="sums"))
    sums = read_sketch(run, 2).kl_gradients
    assert whole is not None
    assert sums is not None
    assert verify(run).problems == []
    for target in ("ref", "rollout"):
        policy, other, _ = kl_losses.kl_gradients(whole, "k2", target)
        for expected, name in ((policy, f"policy_{target}"), (other, f"{target}_policy")):
            largest = float(expected.abs().max())
            assert largest > 0.01
            torch.testing.assert_close(vars(sums)[name], expected, rtol=0, atol=5e-3 * largest, msg=name)
    assert whole.ref_log_probs is not None
    assert (whole.ref_log_probs - whole.log_probs).abs().max() > 0.1  # it is another model


@pytest.mark.usefixtures("local_runs")
def test_a_reference_model_that_does_not_go_with_the_policy(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="reference_model does nothing without"):
        tiny_config(tiny_model, reference_model=str(tiny_model), loss=LossConfig())
    other = tmp_path / "other"
    shutil.copytree(tiny_model, other)
    small: Any = SMALL | {"vocab_size": 23}
    AutoModelForCausalLM.from_config(LlamaConfig(**small)).save_pretrained(other)
    with pytest.raises(UsageError, match="the reference model has 23 tokens in its vocabulary, the policy 21"):
        loop.train(tiny_config(tiny_model, reference_model=str(other)))


def another(model: Path, path: Path) -> Path:
    """Copy a model with changed weights."""
    shutil.copytree(model, path)
    lm = load_lm(model, CPU)
    with torch.no_grad():
        for weight in lm.parameters():
            weight += 0.05 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    lm.save_pretrained(path)
    return path


def check_a_resumed_run_keeps_its_sketches(config: TrainConfig, run: Path) -> None:
    """Also one whose sketches end before it does."""
    before = read_sketch(run, 2)
    for cut_off in ("steps/step_000004.parquet.tmp", "sketch/step_000004.safetensors.gz.tmp"):  # killed while writing
        (run / cut_off).write_bytes(b"PAR1")
    runs.rewind(run, 3)
    assert list_sketches(run) == [2]
    run = loop.train(config, resume=True)  # its checkpoint is of step 4
    assert (list_sketches(run), runs.list_steps(run)) == ([2], [2, 6])
    assert torch.equal(read_sketch(run, 2).scores, before.scores)


def check_a_sketch_that_cannot_be_read_is_refused(run: Path) -> None:
    with pytest.raises(UsageError) as raised:
        read_sketch(run, 6)
    assert "step 6 of tiny has no score sketch (steps that have one: 2)" in str(raised.value)
    path = sketch_path(run, 2)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(runs.DamagedFile, match="cannot be read"):
        read_sketch(run, 2)


# --- intervals ---


@pytest.mark.parametrize(("gap", "reference"), [(0.03, 0), (0.03, 2048), (0.1, 2048)])
def test_95_percent_intervals_contain_the_truth_in_93_percent_of_cases(gap: float, reference: int) -> None:
    """Four presets, six numbers each, 50 draws of 1,024 answers and of 512 directions: 1,200 intervals. Those of one
    draw share their answers, so the share is off by about √(0.95 · 0.05/50 · 6) = 7 % at worst; the seeds are fixed,
    and `make bench ARGS=scores` counts four times as many. Without a reference, seeds 0 to 99 give 92.3 %, 1,000 to
    1,099 give 95.4 %. At the larger gap only a reference of the trained weights' own answers keeps the level."""
    tiny = task(gap)
    assert all(share == pytest.approx(1, abs=1e-4) for share in tiny.exact.answers.coverage.values())
    seeds = range(1000, 1050)
    held = [
        contains(interval, truth)
        for seed in seeds
        for _, interval, truth in intervals(tiny, seed, 1024, 512, reference)
    ]
    assert len(held) == 1200
    assert sum(held) / len(held) >= 0.93


def test_the_matrix_of_directions_gives_the_scores_of_a_backward_pass() -> None:
    tiny = task()
    directions, scored = draw_directions(tiny.lm, 5, 8), scored_copy(tiny.lm)
    _, scores = scores_of(scored, directions, lambda: next_log_probs(scored, [[1, 4, 3]], 1.0).unbind(-1))
    first = (tiny.exact.tree.prompts == 0) & (tiny.exact.tree.parents < 0)
    tokens = tiny.exact.tree.tokens[first]
    torch.testing.assert_close(
        scores[0, tokens], tiny.exact.scores[first] @ matrix_of(directions, tiny.lm), rtol=1e-3, atol=1e-4
    )
