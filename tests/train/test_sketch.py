"""Sketches of the trainer against one backward pass per token."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from allocations import peak
from tiny import CPU, save_tiny_model, tiny_config

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.correction import correct
from rlcorr.errors import UsageError
from rlcorr.gradients import report as gradients
from rlcorr.gradients.contributions import contributions
from rlcorr.gradients.estimates import mean_gradients
from rlcorr.gradients.sketch import Reference, SampledSketch
from rlcorr.losses.objective import policy_loss
from rlcorr.presets import preset
from rlcorr.records import runs
from rlcorr.records.runs import list_sketches, sketch_path
from rlcorr.records.sketch_files import read_sketch, read_tensors, write_tensors
from rlcorr.records.verify import verify
from rlcorr.train import loop
from rlcorr.train.config.learning import AdvantageConfig, OptimConfig, SketchConfig
from rlcorr.train.config.rollout import RolloutConfig
from rlcorr.train.config.training import TrainConfig
from rlcorr.train.learner.policy import Policy, load_lm
from rlcorr.train.pretrain_models import new_moe_lm
from rlcorr.train.sketches import sampled as module
from rlcorr.train.sketches.sampled import (
    directions,
    eager_copy,
    hash_of,
    next_scores,
    random_prefixes,
    sampled_sketch,
    token_scores,
)
from rlcorr.types import TokenBatch

pytestmark = pytest.mark.slow  # trainings, and a backward pass per token

FEW = SketchConfig(every=2, directions=10, reference_prompts=64)


def some_batch(model: Path, seed: int = 0) -> TokenBatch:
    """Prompts of 2 to 4 tokens, responses of 1 to 5, random."""
    generator = torch.Generator().manual_seed(seed)
    prompt, response = torch.tensor([2, 4, 3]), torch.tensor([5, 1, 3])
    ids = torch.randint(3, 21, (3, 9), generator=generator)
    mask = torch.arange(5) < response[:, None]
    return TokenBatch(
        response_mask=mask, rollout_log_probs=torch.zeros(mask.shape), prompt_ids=ids[:, :4],
        prompt_mask=torch.arange(4) >= 4 - prompt[:, None], response_ids=ids[:, 4:],
    )  # fmt: skip


def by_backward(policy: Policy, batch: TokenBatch, chosen: dict[str, torch.Tensor], temperature: float) -> torch.Tensor:
    """⟨∇ log π(token), direction⟩ of every token in float32, one backward pass each, without eager attention."""
    names = [name for name, _ in policy.named_parameters()]
    log_p = policy(batch, temperature).log_probs[batch.response_mask]
    rows = []
    for value in log_p:
        gradients = torch.autograd.grad(value, list(policy.parameters()), retain_graph=True)
        along = [(chosen[name] * gradient).flatten(1).sum(-1) for name, gradient in zip(names, gradients, strict=True)]
        rows.append(torch.stack(along).sum(0))
    return torch.stack(rows)


def test_scores_are_derivatives_along_the_directions(tiny_model: Path) -> None:
    policy, batch = Policy(load_lm(tiny_model, CPU), None), some_batch(tiny_model)
    (chosen,) = directions(dict(policy.named_parameters()), seed=3, count=4)
    config = tiny_config(tiny_model, rollout=RolloutConfig(engine="transformers", dtype="float32", temperature=0.7))
    got = token_scores(eager_copy(policy), batch, config, chosen)
    expected = by_backward(policy, batch, chosen, 0.7)
    assert got.shape == (9, 4)
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))


def test_a_mixture_of_experts_is_differentiated_too() -> None:
    torch.manual_seed(0)
    policy = Policy(new_moe_lm(21), None)
    (chosen,) = directions(dict(policy.named_parameters()), seed=3, count=2)
    config = TrainConfig(rollout=RolloutConfig(engine="transformers"))
    got = token_scores(eager_copy(policy), some_batch(Path()), config, chosen)
    expected = by_backward(policy, some_batch(Path()), chosen, 1.0)
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))


def test_cosines_of_sketches_are_those_of_whole_gradients(tiny_model: Path) -> None:
    """K = 256 of some 90,000 parameters: the gradients of four presets, each by one backward pass of its own loss."""
    policy, batch = Policy(load_lm(tiny_model, CPU), None), some_batch(tiny_model)
    log_p = policy(batch, 1.0).log_probs
    generator = torch.Generator().manual_seed(1)
    batch = batch.replace(
        old_log_probs=log_p.detach(), advantages=torch.randn(log_p.shape, generator=generator),
        rollout_log_probs=(log_p + 0.5 * torch.randn(log_p.shape, generator=generator)).clamp(max=0).detach(),
    )  # fmt: skip
    config = tiny_config(tiny_model)
    passes = [
        token_scores(eager_copy(policy), batch, config, chosen)
        for chosen in directions(dict(policy.named_parameters()), 0, 256)
    ]
    nothing = Reference(*torch.zeros(2, 1, 256), *torch.ones(2, 1))
    sketch = SampledSketch(torch.cat(passes, 1) / 16, nothing)
    whole, seen = [], []
    for name in ("disabled", "decoupled_token_is", "decoupled_seq_is", "decoupled_token_icepop"):
        correction = preset(name)
        loss, _ = policy_loss(log_p, batch, correct(batch, correction), correction, LossConfig())
        gradients = torch.autograd.grad(loss, list(policy.parameters()), retain_graph=True)
        whole.append(-torch.cat([g.flatten() for g in gradients]))
        seen.append(mean_gradients(contributions(batch, sketch, [correction])[0], torch.ones(1, 3))[0])
    for (a, b), (c, d) in zip(itertools.combinations(whole, 2), itertools.combinations(seen, 2), strict=True):
        exact, got = (float(torch.cosine_similarity(*pair, 0)) for pair in ((a, b), (c, d)))
        assert got == pytest.approx(exact, abs=0.05)
    for a, c in zip(whole, seen, strict=True):
        assert float(c.norm() ** 2) == pytest.approx(float(a.norm() ** 2), rel=4 * (2 / 256) ** 0.5)


def test_a_direction_depends_on_its_number_alone() -> None:
    like = {"a": torch.zeros(3, 4), "b": torch.zeros(5)}
    twelve = [torch.cat([group[name] for group in directions(like, 1, 12)]) for name in like]
    first, other = next(directions(like, 1, 3)), next(directions(like, 2, 3))
    for whole, name in zip(twelve, like, strict=True):
        assert whole.shape[0] == 12
        assert torch.equal(whole[:3], first[name])
        assert not torch.equal(whole[:3], other[name])
        assert len({tuple(row.flatten().tolist()) for row in whole}) == 12


@pytest.mark.parametrize(
    ("changes", "gradient_bytes"),
    [({}, 2**29), ({}, 1), ({"advantage": AdvantageConfig(estimator="grpo")}, 2**29)],
    ids=["ppo", "a block at a time", "grpo"],
)
@pytest.mark.usefixtures("rewarding")
def test_the_reference_is_the_gradient_of_an_on_policy_batch(
    changes: dict[str, Any], gradient_bytes: int, tiny_model: Path, local_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every block by token and by sequence, against one backward pass through its own two prompts of two answers."""
    seen: dict[str, Any] = {}
    true_batch, true_step = module.on_policy_batch, sampled_sketch

    def on_policy_batch(session: Any, policy: Policy, step: int) -> TokenBatch:
        seen["batch"] = true_batch(session, policy, step)
        return seen["batch"]

    def kept(session: Any, batch: TokenBatch, step: int, weights: Any) -> SampledSketch:
        seen["policy"] = Policy(eager_copy(session.policy).lm, None)
        return true_step(session, batch, step, weights)

    monkeypatch.setattr(module, "GRADIENT_BYTES", gradient_bytes)
    monkeypatch.setattr(module, "on_policy_batch", on_policy_batch)
    monkeypatch.setattr(loop, "sampled_sketch", kept)
    loop.train(tiny_config(tiny_model, sketch=FEW, **changes))
    batch, policy = seen["batch"], seen["policy"]
    assert len(batch.response_mask) == 64 * 2
    read = read_sketch(local_runs / "tiny", 2).reference
    log_p, mask = policy(batch, 1.0).log_probs, batch.response_mask
    per_response = (batch.advantages * log_p * mask).sum(-1)
    chosen = {
        name: torch.cat([group[name] for group in directions(dict(policy.named_parameters()), 0, 10)])
        for name, _ in policy.named_parameters()
    }
    for values, blocks in ((per_response, read.by_token), (per_response / mask.sum(-1), read.by_sequence)):
        expected = []
        for value in values.view(32, 4).sum(-1):
            gradients = torch.autograd.grad(value, list(policy.parameters()), retain_graph=True)
            along = [(d * g).flatten(1).sum(-1) for d, g in zip(chosen.values(), gradients, strict=True)]
            expected.append(torch.stack(along).sum(0) / 10**0.5)
        along = torch.stack(expected)
        assert along.abs().max() > 1e-3 or not bool(batch.advantages.any())
        torch.testing.assert_close(blocks, along, rtol=1e-3, atol=1e-4 * float(along.abs().max()) + 1e-6)
    assert torch.equal(read.tokens, mask.view(32, -1).sum(-1).float())
    assert read.sequences.tolist() == [4] * 32


def test_the_reference_takes_the_memory_of_some_gradients_not_of_all(
    tmp_path: Path, local_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight directions, a block's two sums, the gradient that is added to them and the copy that samples are twelve
    times the parameters; two for each of 32 blocks would be 64 times."""
    model, peaks = save_tiny_model(tmp_path / "wide", width=192), []

    class Measured(Exception):
        """Nothing else of the training is looked at."""

    def measured(session: Any, *rest: Any) -> SampledSketch:
        policy = eager_copy(session.policy)
        parameters = sum(p.numel() * p.element_size() for p in policy.parameters())
        peaks.append(peak(lambda: module.reference_of(session, policy, 2)) / parameters)
        raise Measured

    monkeypatch.setattr(module, "GRADIENT_BYTES", 1)
    monkeypatch.setattr(loop, "sampled_sketch", measured)
    with pytest.raises(Measured):
        loop.train(tiny_config(model, sketch=FEW))
    assert 8 < peaks[0] < 20


@pytest.mark.usefixtures("rewarding")
def test_a_run_with_sketches(tiny_model: Path, local_runs: Path) -> None:
    run = loop.train(tiny_config(tiny_model, steps=5, record_every=100, sketch=FEW))
    assert runs.list_steps(run) == [2, 4, 5]
    assert list_sketches(run) == [2, 4]
    assert verify(run).problems == []
    step, sketch = runs.read_step(run, 4), read_sketch(run, 4)
    assert sketch.scores.shape == (int(step.batch.response_mask.sum()), 10)
    assert read_tensors(sketch_path(run, 4))[0]["scores"].dtype == torch.int8
    assert sketch.weights_hash != read_sketch(run, 2).weights_hash  # the update between them
    assert sketch.directions_hash == read_sketch(run, 2).directions_hash
    report = gradients.report(step.batch, sketch, CorrectionConfig())
    assert report.ess.value == pytest.approx(1)


def test_the_last_step_that_has_one(tiny_model: Path, local_runs: Path) -> None:
    run = loop.train(tiny_config(tiny_model, steps=5, record_every=100, sketch=replace(FEW, until=3)))
    assert list_sketches(run) == [2]
    assert runs.list_steps(run) == [2, 5]


def test_every_token_that_could_follow(tiny_model: Path, local_runs: Path) -> None:
    """At each place the score of each token is its derivative, and the scores of a place weigh up to 0: Σ π ∇ log π."""
    slow = OptimConfig(learning_rate=1e-6, final_learning_rate=1e-6)  # the policy stays close to the reference
    run = loop.train(tiny_config(tiny_model, sketch=replace(FEW, places=5), optim=slow))
    following = read_sketch(run, 2).next_tokens
    assert following is not None
    assert following.scores.shape == (5, 21, 10)
    assert following.ref_log_probs is not None  # PPO here has a KL loss to the reference
    assert following.rollout_log_probs is not None
    torch.testing.assert_close(following.rollout_log_probs, following.log_probs, rtol=0, atol=1e-5)  # float32
    assert (following.ref_log_probs - following.log_probs).abs().max() < 0.1
    mean = torch.einsum("pv,pvk->pk", following.log_probs.exp(), following.scores)
    assert mean.abs().max() < 2e-3 * following.scores.abs().max()  # float16


def test_next_scores_are_derivatives(tiny_model: Path) -> None:
    policy = eager_copy(Policy(load_lm(tiny_model, CPU), None))
    (chosen,) = directions(dict(policy.named_parameters()), seed=3, count=2)
    prefixes = [[5, 6, 7], [8, 9]]
    got = next_scores(policy.lm, prefixes, 0.7, chosen)
    for row, prefix in enumerate(prefixes):
        log_p = (policy.lm(torch.tensor([prefix])).logits[0, -1] / 0.7).log_softmax(-1)
        for token in (0, 11):
            gradients = torch.autograd.grad(log_p[token], list(policy.lm.parameters()), retain_graph=True)
            named = zip(policy.lm.named_parameters(), gradients, strict=True)
            along = torch.stack([(chosen[f"lm.{name}"] * g).flatten(1).sum(-1) for (name, _), g in named]).sum(0)
            torch.testing.assert_close(got[row, token], along, rtol=1e-3, atol=1e-4)


@pytest.mark.usefixtures("rewarding")
@pytest.mark.parametrize("asynchronous", [False, True])
def test_older_weights_have_the_distributions_of_the_engine_that_had_them(
    asynchronous: bool, tiny_model: Path, local_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a run that is a step behind, under the weights that sampled: those before the first update."""
    seen: dict[str, Any] = {}

    def kept(session: Any, batch: TokenBatch, step: int, weights: Any) -> SampledSketch:
        seen["prefixes"] = random_prefixes(batch, FEW.places, step)
        return sampled_sketch(session, batch, step, weights)

    monkeypatch.setattr(loop, "sampled_sketch", kept)
    rollout = RolloutConfig(engine="transformers", dtype="float32", staleness=1, asynchronous=asynchronous)
    fast = OptimConfig(learning_rate=0.02, final_learning_rate=0.02)
    got = read_sketch(loop.train(tiny_config(tiny_model, rollout=rollout, sketch=FEW, optim=fast)), 2).next_tokens
    assert got is not None
    assert got.rollout_log_probs is not None
    lm = load_lm(tiny_model, CPU)
    with torch.no_grad():
        expected = torch.stack([lm(torch.tensor([p])).logits[0, -1].log_softmax(-1) for p in seen["prefixes"]])
    torch.testing.assert_close(got.rollout_log_probs, expected, rtol=0, atol=1e-4)
    assert (got.rollout_log_probs - got.log_probs).abs().max() > 0.01


def test_sketching_changes_nothing(tiny_model: Path, local_runs: Path) -> None:
    def outcome(run: Path) -> list[dict[str, Any]]:
        rows = runs.read_metrics(run)
        return [{k: v for k, v in row.items() if not k.startswith("timing/") and k != "elapsed"} for row in rows]

    without = loop.train(tiny_config(tiny_model, steps=3, run="without"))
    assert outcome(loop.train(tiny_config(tiny_model, steps=3, run="with", sketch=FEW))) == outcome(without)


def test_a_resumed_run_keeps_its_sketches(tiny_model: Path, local_runs: Path) -> None:
    config = tiny_config(tiny_model, steps=4, sketch=FEW)
    run = loop.train(config)
    before = [read_sketch(run, step) for step in (2, 4)]
    for cut_off in ("steps/step_000004.parquet.tmp", "sketch/step_000004.safetensors.gz.tmp"):  # killed while writing
        (run / cut_off).write_bytes(b"PAR1")
    runs.rewind(run, 3)
    assert list_sketches(run) == [2]
    run = loop.train(replace(config, steps=6), resume=True)  # its checkpoint is of step 4
    assert list_sketches(run) == [2, 6]
    assert torch.equal(read_sketch(run, 2).scores, before[0].scores)


def test_a_step_without_a_sketch_says_how_to_get_one(tiny_model: Path, local_runs: Path) -> None:
    run = loop.train(tiny_config(tiny_model))
    with pytest.raises(UsageError) as raised:
        read_sketch(run, 2)
    assert "step 2 of tiny has no score sketch (steps that have one: none)" in str(raised.value)
    assert f"train --config {run / 'config.yaml'} --run tiny_sketched --sketch.every 2" in str(raised.value)


def test_a_sketch_of_other_weights_is_refused(tiny_model: Path, local_runs: Path) -> None:
    run = loop.train(tiny_config(tiny_model, sketch=FEW))
    path, hashes = sketch_path(run, 2), runs.read_manifest(run).sketches["2"]
    content, _ = read_tensors(path)
    for name, what in (("weights_hash", "weights"), ("directions_hash", "directions")):
        write_tensors(path, content, {**hashes, name: "f" * 64})
        with pytest.raises(UsageError, match=f"made with other {what} than in the manifest: {'f' * 16}… in the file, "
                                             f"{hashes[name][:16]}… in the manifest"):  # fmt: skip
            read_sketch(run, 2)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(runs.DamagedFile, match="cannot be read"):
        read_sketch(run, 2)


def test_a_hash_is_of_names_and_numbers() -> None:
    one = {"a": torch.zeros(2), "b": torch.ones(2)}
    assert hash_of(one) == hash_of(dict(reversed(one.items())))
    assert len({hash_of(one), hash_of({"a": torch.zeros(2)}), hash_of({"c": torch.zeros(2), "b": torch.ones(2)})}) == 3


def test_several_ranks_are_refused(tiny_model: Path, local_runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "start_ranks", lambda: replace(loop.Ranks(0, 2, 0, CPU)))
    monkeypatch.setattr(loop, "stop_ranks", lambda ranks: None)
    with pytest.raises(UsageError, match="sketches are made by one process"):
        loop.train(tiny_config(tiny_model, sketch=FEW))
