"""Exact sketches of the trainer: every likely answer by a plain loop, and a forward and backward pass per prefix."""

import itertools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from outcome import outcome
from tiny import CPU, tiny_config
from torch import Tensor

from rlcorr.errors import UsageError
from rlcorr.gradients.report import report
from rlcorr.gradients.sketch import ExactSketch
from rlcorr.losses.advantages import whiten
from rlcorr.presets import preset
from rlcorr.records import runs
from rlcorr.records.runs import sketch_path
from rlcorr.records.sketch_files import read_gradients, read_sketch, read_tensors
from rlcorr.records.verify import verify
from rlcorr.train import loop
from rlcorr.train.config.learning import AdvantageConfig, OptimConfig, SketchConfig
from rlcorr.train.config.rollout import RolloutConfig
from rlcorr.train.inputs.tasks import TASKS, examples
from rlcorr.train.inputs.tokenizer import EOS_ID, encode, load_tokenizer
from rlcorr.train.learner.policy import Policy, load_lm
from rlcorr.train.learner.router_replay import replayed
from rlcorr.train.learner.score import with_advantages
from rlcorr.train.pretrain import new_moe_lm
from rlcorr.train.sketches.answer_tree import Distributions, Tree, grow
from rlcorr.train.sketches.exact import drawn_from, expected_advantages
from rlcorr.train.sketches.sampled import OTHER_PROMPTS, next_log_probs
from rlcorr.train.sketches.token_scores import draw_directions, scored_copy, scores_of
from rlcorr.train.sketches.tree_scores import node_log_probs, pack_trees
from rlcorr.types import TokenBatch

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("rewarding")]  # training runs, a backward pass per token

PROMPTS = [[1, 5, 6], [1, 7, 4, 9], [1, 8]]
Lm = Any


def disturbed(lm: Lm, size: float = 0.3) -> Lm:
    """Another model of the same kind, for the engine."""
    other = Policy(load_lm(Path(lm.name_or_path), CPU), False).lm
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1 + size * torch.randn_like(parameter))
    return other


def between(old: Lm, engine: Lm) -> Callable[[list[list[int]]], Distributions]:
    def evaluate(prefixes: list[list[int]]) -> Distributions:
        of_old, of_engine = (next_log_probs(lm, prefixes, 1.0).detach() for lm in (old, engine))
        return Distributions(of_old, of_engine, of_engine)

    return evaluate


def plain(lm: Lm, prefix: list[int]) -> Tensor:
    return lm(torch.tensor([prefix])).logits[0, -1].log_softmax(-1)


def path_of(tree: Tree, number: int) -> list[int]:
    """The numbers of the nodes from an answer's first token to this one."""
    path = []
    while number >= 0:
        path.insert(0, number)
        number = tree.nodes[number].parent
    return path


def answers_in(tree: Tree) -> dict[tuple[int, tuple[int, ...]], int]:
    """(prompt, tokens) → number of the last node."""
    return {
        (node.prompt, tuple(tree.nodes[n].token for n in path_of(tree, number))): number
        for number, node in enumerate(tree.nodes)
        if node.ends
    }


# --- growing ---

LETTERS = 21
"""Tokens of the tiny model."""


@torch.no_grad()
def all_answers(lm: Lm, prompt: list[int], longest: int) -> dict[tuple[int, ...], float]:
    """Every answer there is, with its probability: nothing is left out on the way."""
    answers, going = {}, {(): 1.0}
    for length in range(1, longest + 1):
        before, going = going, {}
        for tokens, chance in before.items():
            following = plain(lm, [*prompt, *tokens]).exp().tolist()
            for token in range(LETTERS):
                ends = token == EOS_ID or length == longest
                (answers if ends else going)[*tokens, token] = chance * following[token]
    return answers


LONGEST, SMALLEST = 3, 0.002


def grown(old: Lm, engine: Lm, prompts: list[list[int]], smallest: float = SMALLEST, most: int = 10**6) -> Tree:
    with torch.no_grad():
        return grow(
            prompts, between(old, engine), eos_ids=[EOS_ID], max_tokens=LONGEST, smallest=smallest, most_nodes=most
        )


def test_the_tree_has_every_likely_answer_and_no_other(tiny_model: Path) -> None:
    """Likely under one of the two policies; what is within rounding of the bound may be either way."""
    old = load_lm(tiny_model, CPU)
    engine = disturbed(old)
    tree = grown(old, engine, PROMPTS[:1])
    answers = answers_in(tree)
    assert {number for number, node in enumerate(tree.nodes) if node.ends} == set(range(len(tree.nodes))) - {
        node.parent for node in tree.nodes
    }
    wanted, unsure, of_engine_alone = set(), set(), 0
    of_old, of_engine = (all_answers(lm, PROMPTS[0], LONGEST) for lm in (old, engine))
    for tokens, p in of_old.items():
        q = of_engine[tokens]
        if max(p, q) > SMALLEST:
            wanted.add((0, tokens))
            of_engine_alone += p <= SMALLEST
        if max(p, q) == pytest.approx(SMALLEST, rel=1e-3):
            unsure.add((0, tokens))
        elif (0, tokens) in answers:
            path = path_of(tree, answers[0, tokens])
            assert math.exp(sum(tree.nodes[n].rollout_log_prob for n in path)) == pytest.approx(q, rel=1e-3)
    assert set(answers) - unsure == wanted - unsure
    assert len(wanted) > 20
    assert of_engine_alone > 3


def test_prompts_grow_alone_and_together_alike(tiny_model: Path) -> None:
    """More prompts than are evaluated together, of unequal length."""
    old = load_lm(tiny_model, CPU)
    engine, many = disturbed(old), [[1, 3 + n, *[5] * (n % 4)] for n in range(11)]
    together = grown(old, engine, many, 0.02)
    alone = [grown(old, engine, [prompt], 0.02) for prompt in many]
    expected = {(n, tokens) for n, tree in enumerate(alone) for _, tokens in answers_in(tree)}
    assert set(answers_in(together)) == expected
    assert all(node.parent < number for number, node in enumerate(together.nodes))
    assert all(node.parent < 0 or together.nodes[node.parent].prompt == node.prompt for node in together.nodes)


@pytest.mark.parametrize("most", [10, 25, 60])
def test_a_tree_that_is_too_large_names_the_prompts_that_fit(most: int, tiny_model: Path) -> None:
    """So many fit, and not one more."""
    old = load_lm(tiny_model, CPU)
    many = [[1, 3 + n] for n in range(12)]
    with pytest.raises(UsageError, match=f"have more than {most} tokens, which is all that fits") as raised:
        grown(old, old, many, 0.02, most)
    fit = int(re.findall(r"those to (\d+) prompts fit", str(raised.value))[0])
    assert 0 < len(grown(old, old, many[:fit], 0.02, most).nodes) <= most if fit else most == 10
    with pytest.raises(UsageError, match=f"those to {fit} prompts fit"):
        grown(old, old, many[: fit + 1], 0.02, most)


def test_what_cannot_be_grown(tiny_model: Path) -> None:
    old = load_lm(tiny_model, CPU)
    with pytest.raises(UsageError, match="needs a token that ends an answer, and this model names none"):
        grow(PROMPTS, between(old, old), eos_ids=[], max_tokens=3, smallest=0.1, most_nodes=100)
    for smallest in (0.0, -1e-3, 1.0):
        with pytest.raises(UsageError, match=r"sketch.smallest_probability must be above 0 and below 1"):
            SketchConfig(smallest_probability=smallest)
    with pytest.raises(UsageError, match=r"sketch.exact_prompts must be 0 or ≥ 8"):
        SketchConfig(exact_prompts=4)


# --- log-probs and scores of the nodes ---


def check_packed(lm: Lm, tree: Tree, experts: Callable[[list[int]], Tensor] | None, temperature: float = 0.7) -> None:
    """One plain forward pass and its scores for each node, on everything that stands before it."""
    scored, directions = scored_copy(lm), draw_directions(lm, seed=3, count=3)
    got, scores = torch.full((len(tree.nodes),), torch.nan), torch.full((len(tree.nodes), 3), torch.nan)
    for packed in pack_trees(tree, CPU):
        got[packed.nodes], scores[packed.nodes] = scores_of(
            scored, directions, lambda packed=packed: node_log_probs(scored, packed, temperature)
        )
    for number, node in enumerate(tree.nodes):
        before = tree.prompts[node.prompt] + [tree.nodes[n].token for n in path_of(tree, node.parent)]

        def alone(before: list[int] = before, token: int = node.token) -> Tensor:
            routes = None if experts is None else experts(before)[None]
            with replayed(scored, routes, torch.ones(1, len(before), dtype=torch.bool)):
                logits = scored(torch.tensor([before])).logits[0, -1]
            return (logits / temperature).log_softmax(-1)[token, None]

        value, along = scores_of(scored, directions, alone)
        assert float(got[number]) == pytest.approx(value.item(), abs=1e-4)
        torch.testing.assert_close(scores[number], along[0], rtol=2e-3, atol=1e-3 * float(scores.abs().max()))


def test_scores_in_one_pass_are_those_of_every_prefix_alone(tiny_model: Path) -> None:
    lm = load_lm(tiny_model, CPU)
    tree = grown(lm, lm, PROMPTS, 0.02)
    assert max(len(path_of(tree, number)) for number in range(len(tree.nodes))) == LONGEST
    check_packed(lm, tree, None)


def chosen_by_an_engine(prefix: list[int]) -> Tensor:
    """Two of eight experts in three layers for each token, from what stands before it: (tokens, 3, 2)."""
    rows = []
    for count in range(1, len(prefix) + 1):
        generator = torch.Generator().manual_seed(hash(tuple(prefix[:count])) % 2**31)
        rows.append(torch.rand(3, 8, generator=generator).argsort(-1)[:, :2])
    return torch.stack(rows)


def test_a_mixture_with_the_engines_experts() -> None:
    """Experts at random, which the trainer would not choose: without them the log-probs are others."""
    torch.manual_seed(0)
    lm = new_moe_lm(21)
    with torch.no_grad():
        for parameter in lm.parameters():
            parameter.mul_(4)  # a fresh one hardly tells its tokens apart

    @torch.no_grad()
    def evaluate(prefixes: list[list[int]]) -> Distributions:
        experts = [chosen_by_an_engine(prefix) for prefix in prefixes]
        log_p = next_log_probs(lm, prefixes, 1.0, experts)
        return Distributions(log_p, log_p, log_p, experts)

    tree = grow(PROMPTS, evaluate, eos_ids=[EOS_ID], max_tokens=3, smallest=0.02, most_nodes=1000)
    assert len(tree.nodes) > 10
    check_packed(lm, tree, chosen_by_an_engine)
    (first, *_), (packed, *_) = [n for n in range(len(tree.nodes)) if tree.nodes[n].parent < 0], pack_trees(tree, CPU)
    token, prompt = tree.nodes[first].token, tree.prompts[tree.nodes[first].prompt]
    by_itself = plain(lm, prompt)[token].item()
    assert abs(by_itself - tree.nodes[first].rollout_log_prob) > 1e-3
    assert packed.experts is not None


# --- advantages ---


def with_rewards() -> tuple[TokenBatch, Tensor]:
    """Two prompts with three answers each, of one to three tokens, and their probabilities."""
    lengths = torch.tensor([1, 2, 3, 2, 2, 1])
    mask = torch.arange(3) < lengths[:, None]
    generator = torch.Generator().manual_seed(2)
    numbers = {
        name: torch.where(mask, -torch.rand(mask.shape, generator=generator), 0)
        for name in ("rollout_log_probs", "old_log_probs", "ref_log_probs", "values")
    }
    rewards, prompts = torch.tensor([1.0, 0.0, 0.5, 0.2, 0.8, 0.2]), torch.tensor([0, 0, 0, 1, 1, 1])
    batch = TokenBatch(response_mask=mask, rewards=rewards, group_ids=prompts, **numbers)
    return batch, torch.tensor([0.5, 0.3, 0.2, 0.6, 0.3, 0.1], dtype=torch.float64)


def test_expected_advantages_by_hand() -> None:
    """Prompt 0: E r = .6, σ² = .5 · .16 + .3 · .36 + .2 · .01 = .19. Prompt 1: .38, .7 · .0324 + .3 · .1764 = .0756."""
    batch, probability = with_rewards()
    centred = [0.4, -0.6, -0.1, -0.18, 0.42, -0.18]
    for config, expected in (
        (AdvantageConfig(estimator="rloo"), centred),
        (AdvantageConfig(estimator="grpo", norm_by_std=False), centred),
        (
            AdvantageConfig(estimator="grpo"),
            [x / math.sqrt(v) for x, v in zip(centred, [0.19] * 3 + [0.0756] * 3, strict=True)],
        ),
    ):
        got = expected_advantages(batch, probability, config)
        assert got[:, 0].tolist() == pytest.approx(expected, rel=1e-4)
        assert torch.equal(got, torch.where(batch.response_mask, got[:, :1], 0))


@pytest.mark.parametrize(
    "config",
    [
        AdvantageConfig(estimator="gae", gae_lambda=0.9),
        AdvantageConfig(estimator="grpo"),
        AdvantageConfig(estimator="rloo"),
        AdvantageConfig(estimator="reinforce_pp"),
    ],
    ids=lambda config: f"{config.estimator}-{config.gae_lambda}-{config.norm_by_std}",
)
def test_expected_advantages_are_those_of_a_large_sample(config: AdvantageConfig) -> None:
    """40,000 answers, half to each prompt, through what a run does with them: means are known to 0.5/√20,000 = 0.0035,
    and advantages in units of a deviation of a quarter or more, to 0.015."""
    batch, probability = with_rewards()
    generator = torch.Generator().manual_seed(4)
    rows = torch.cat(
        [3 * n + torch.multinomial(probability[3 * n : 3 * n + 3], 20_000, True, generator=generator) for n in (0, 1)]
    )
    sampled = with_advantages(batch.rows(rows), config)
    assert sampled.advantages is not None
    advantages = sampled.advantages
    if not config.grouped:
        advantages = whiten(advantages, sampled.response_mask)
    got = expected_advantages(batch, probability, config)
    for answer in range(6):
        seen = advantages[rows == answer].mean(0)
        torch.testing.assert_close(got[answer], seen, rtol=0, atol=0.03)
    assert got.abs().max() > 0.3


# --- a run ---

NONE = SketchConfig()
FEW = SketchConfig(every=2, directions=10, places=4, exact_prompts=8, smallest_probability=1e-3)


@dataclass
class Watched:
    """What `exact_sketch` was given and gave, step by step."""

    sketches: list[ExactSketch] = field(default_factory=list)
    weights: list[dict[str, Tensor]] = field(default_factory=list)
    policies: list[Lm] = field(default_factory=list)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    seen, true_sketch = Watched(), loop.exact_sketch

    def exact_sketch(session: Any, weights: list[tuple[str, Tensor]]) -> ExactSketch:
        seen.weights.append({name: tensor.clone() for name, tensor in weights})
        seen.policies.append(scored_copy(session.policy.lm))
        seen.sketches.append(true_sketch(session, weights))
        return seen.sketches[-1]

    monkeypatch.setattr(loop, "exact_sketch", exact_sketch)
    return seen


def test_a_run_is_recorded_and_read_back(tiny_model: Path, local_runs: Path, watched: Watched) -> None:
    """Scores are off by at most half a unit, a 15th of the largest of their row, which is rounded by 1/512 at most;
    log-probs by nothing."""
    run = loop.train(tiny_config(tiny_model, steps=4, sketch=FEW))
    assert verify(run).problems == []
    assert read_tensors(sketch_path(run, 4))[0]["exact_scores"].dtype == torch.int8
    for step, before in zip((2, 4), watched.sketches, strict=True):
        sketch = read_gradients(run, step)[1]
        assert isinstance(sketch, ExactSketch)
        half = before.scores.abs().amax(-1, keepdim=True) / 15 / 2
        assert ((sketch.scores - before.scores).abs() <= half * (1 + 2 / 512)).all()
        assert sketch.scores.abs().max() > 0
        for name in ("old_log_probs", "rollout_log_probs", "sampled_log_probs", "tokens", "parents", "prompts"):
            assert torch.equal(getattr(sketch.tree, name), getattr(before.tree, name).to(getattr(sketch.tree, name)))
        torch.testing.assert_close(sketch.advantages, before.advantages, rtol=1e-3, atol=1e-3)
        assert sketch.answers.prompt_count == 8
        assert sketch.answers.coverage == pytest.approx(before.answers.coverage)
        assert 0 < sketch.answers.coverage["old"] < 1
        assert (sketch.weights_hash, sketch.directions_hash) == (
            read_sketch(run, step).weights_hash, read_sketch(run, step).directions_hash
        )  # fmt: skip
    batch, sketch = read_gradients(run, 4)
    assert isinstance(sketch, ExactSketch)
    assert 0 <= report(batch, sketch, preset("disabled")).relative_bias.value < 1e-3  # an engine in float32


def test_a_training_on_few_prompts_has_them_all(tiny_model: Path, local_runs: Path) -> None:
    """Two steps of four prompts go through them once."""
    run = loop.train(tiny_config(tiny_model, sketch=FEW, train_prompts=8))
    sketch = read_gradients(run, 2)[1]
    assert isinstance(sketch, ExactSketch)
    assert (sketch.task_prompts, sketch.finite_population_factor, sketch.answers.prompt_count) == (8, 0, 8)
    ids = [runs.read_step(run, step).batch.prompt_ids for step in (1, 2)]
    assert len({tuple(row) for of_step in ids if of_step is not None for row in of_step.tolist()}) == 8
    infinite = read_gradients(loop.train(tiny_config(tiny_model, sketch=FEW, run="infinite")), 2)[1]
    assert isinstance(infinite, ExactSketch)
    assert (infinite.task_prompts, infinite.finite_population_factor) == (None, 1)


def test_more_prompts_than_the_training_has(tiny_model: Path, local_runs: Path) -> None:
    with pytest.raises(UsageError, match=r"sketch.exact_prompts is 8, but the task has only 7 prompts"):
        loop.train(tiny_config(tiny_model, sketch=FEW, train_prompts=7))
    with pytest.raises(UsageError, match=r"train_prompts must be ≥ 0"):
        tiny_config(tiny_model, train_prompts=-1)


@torch.no_grad()
def check_log_probs(sketch: ExactSketch, prompts: list[list[int]], lm: Lm, temperature: float, which: str) -> None:
    """Of every node, against one plain pass of this model for each."""
    parents, tokens = sketch.tree.parents.tolist(), sketch.tree.tokens.tolist()
    for number, value in enumerate(getattr(sketch.tree, which).tolist()):
        before, node = [], parents[number]
        while node >= 0:
            before.insert(0, tokens[node])
            node = parents[node]
        prefix = torch.tensor([[*prompts[int(sketch.tree.prompts[number])], *before]])
        log_p = (lm(prefix).logits[0, -1] / temperature).log_softmax(-1)
        assert value == pytest.approx(float(log_p[tokens[number]]), abs=2e-4), which


def prompts_of(config: Any, model: Path) -> list[list[int]]:
    drawn = itertools.islice(examples(TASKS["addition"], config.seed + OTHER_PROMPTS), FEW.exact_prompts)
    return [encode(load_tokenizer(model), example.prompt) for example in drawn]


ENGINES = {
    "on time": RolloutConfig(engine="transformers", dtype="float32"),
    "stale": RolloutConfig(engine="transformers", dtype="float32", staleness=2),
    "asynchronous": RolloutConfig(engine="transformers", dtype="float32", staleness=2, asynchronous=True),
}


@pytest.mark.parametrize("mode", ENGINES)
def test_the_engines_numbers_are_of_the_weights_that_sampled(
    mode: str, tiny_model: Path, local_runs: Path, watched: Watched
) -> None:
    """Every node and every place, by a model with these weights; those of the trainer have moved on since."""
    few = replace(FEW, every=4, smallest_probability=0.05)
    fast = OptimConfig(learning_rate=0.02, final_learning_rate=0.02)
    config = tiny_config(tiny_model, steps=5, rollout=ENGINES[mode], sketch=few, optim=fast)
    run = loop.train(config)
    (sketch,), (weights,), (policy,) = watched.sketches, watched.weights, watched.policies
    lm = load_lm(tiny_model, CPU)
    lm.load_state_dict({name: tensor.cpu() for name, tensor in weights.items()}, strict=False)
    lm.tie_weights()
    prompts = prompts_of(config, tiny_model)
    check_log_probs(sketch, prompts, lm, 1.0, "rollout_log_probs")
    check_log_probs(sketch, prompts, policy, 1.0, "old_log_probs")
    apart = (sketch.tree.old_log_probs - sketch.tree.rollout_log_probs).abs().max()
    assert apart < 1e-4 if mode == "on time" else apart > 0.01
    places = read_sketch(run, 4).next_tokens
    assert places is not None
    assert places.rollout_log_probs is not None
    assert ((places.rollout_log_probs - places.log_probs).abs().max() < 1e-4) == (mode == "on time")


def test_raw_log_probs_are_not_what_is_drawn_from(tiny_model: Path, local_runs: Path, watched: Watched) -> None:
    """The engine draws at temperature 0.7 and reports at 1."""
    raw = RolloutConfig(
        engine="transformers", dtype="float32", temperature=0.7, log_probs="raw", trainer_temperature=1.0
    )
    config = tiny_config(tiny_model, rollout=raw, sketch=replace(FEW, smallest_probability=3e-3))
    run = loop.train(config)
    sketch, prompts = read_gradients(run, 2)[1], prompts_of(config, tiny_model)
    assert isinstance(sketch, ExactSketch)
    check_log_probs(sketch, prompts, watched.policies[0], 1.0, "rollout_log_probs")
    check_log_probs(sketch, prompts, watched.policies[0], 0.7, "sampled_log_probs")
    assert "tree_sampled_log_probs" in read_tensors(sketch_path(run, 2))[0]
    reported = sketch.tree.rollout_log_probs - sketch.tree.sampled_log_probs
    assert reported.abs().max() > 0.1
    assert sketch.answers.coverage["rollout"] != pytest.approx(sketch.answers.coverage["old"], rel=0.05)


def test_what_raw_log_probs_do_not_say() -> None:
    raw = RolloutConfig(log_probs="raw", trainer_temperature=1.0)
    log_p = torch.randn(2, 5).log_softmax(-1)
    for cut in (replace(raw, top_p=0.9), replace(raw, top_k=3)):
        with pytest.raises(UsageError, match=r"needs --rollout\.log-probs processed, or top_p 1"):
            drawn_from(log_p, cut)
    torch.testing.assert_close(drawn_from(log_p, replace(raw, temperature=0.5)), (2 * log_p).log_softmax(-1))
    assert torch.equal(drawn_from(log_p, RolloutConfig(top_p=0.9)), log_p)


def test_tokens_that_sampling_cuts_off(tiny_model: Path, local_runs: Path, watched: Watched) -> None:
    """The trainer still likes them: they are in the tree, and are never drawn."""
    cut = RolloutConfig(engine="transformers", dtype="float32", top_p=0.5)
    run = loop.train(tiny_config(tiny_model, rollout=cut, sketch=FEW))
    sketch = read_gradients(run, 2)[1]
    assert isinstance(sketch, ExactSketch)
    assert (sketch.tree.rollout_log_probs == -math.inf).any()
    assert (sketch.answers.sampled == 0).any()
    got = report(sketch.answers.batch, sketch, preset("decoupled_token_is"))
    assert all(math.isfinite(share.value) for share in got.progress)


def test_a_reward_that_raises_is_refused(tiny_model: Path, local_runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a likely answer that no batch has sampled: only the sketch meets it."""
    true_sketch = loop.exact_sketch

    def refuse(_: Any, response: str) -> float:
        raise ValueError("an answer like this was not foreseen")

    def exact_sketch(session: Any, weights: Any) -> ExactSketch:
        task = replace(session.worker.task, reward=refuse)
        return true_sketch(replace(session, worker=replace(session.worker, task=task)), weights)

    monkeypatch.setattr(loop, "exact_sketch", exact_sketch)
    with pytest.raises(UsageError, match="reward function raised on a likely answer, or returned None for it"):
        loop.train(tiny_config(tiny_model, sketch=replace(FEW, smallest_probability=3e-3)))


def test_too_little_memory(tiny_model: Path, local_runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1 MiB holds 2**20/(4 · 10 + 20,000) = 52 tokens of ten directions, if a node takes 20 kB beside its scores."""
    monkeypatch.setattr("rlcorr.train.sketches.exact.NODE_BYTES", 20_000)
    monkeypatch.setattr("rlcorr.train.sketches.exact.TREE_MIB", 1)
    with pytest.raises(UsageError, match=r"to 8 prompts have more than 52 tokens, .* those to \d prompts fit"):
        loop.train(tiny_config(tiny_model, sketch=FEW))


def test_sketches_change_nothing(tiny_model: Path, local_runs: Path) -> None:
    ahead, fewer = tiny_config(tiny_model, rollout=ENGINES["asynchronous"]), replace(FEW, smallest_probability=3e-3)
    rows = [outcome(loop.train(replace(ahead, run=name, sketch=of)))[0] for name, of in (("a", fewer), ("b", NONE))]
    assert rows[0] == rows[1]
