"""Exact sketches of the trainer: every likely answer by a plain loop, and a forward and backward pass per prefix."""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from outcome import outcome
from tiny import CPU, tiny_config
from torch import Tensor

from rlcorr.errors import UsageError
from rlcorr.gradients.answers import AnswerTree, answers_of
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
from rlcorr.train.inputs.tasks import TASKS, Example
from rlcorr.train.inputs.tokenizer import EOS_ID, load_tokenizer
from rlcorr.train.learner.policy import load_lm
from rlcorr.train.learner.router_replay import replayed
from rlcorr.train.learner.score import with_advantages
from rlcorr.train.pretrain import new_moe_lm
from rlcorr.train.sketches.answer_tree import Distributions, grow
from rlcorr.train.sketches.exact import _as_sampled, _first_uses, drawn_from, expected_advantages
from rlcorr.train.sketches.sampled import next_log_probs, token_scores
from rlcorr.train.sketches.token_scores import draw_directions, scored_copy, scores_of
from rlcorr.types import TokenBatch

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("rewarding")]  # training runs, a backward pass per token

PROMPTS = [[1, 5, 6], [1, 7, 4, 9], [1, 8]]
LETTERS, LONGEST, SMALLEST = 21, 3, 0.002
Lm = Any


def disturbed(lm: Lm) -> Lm:
    """Another model of the same kind, for the engine."""
    other = load_lm(Path(lm.name_or_path), CPU)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1 + 0.3 * torch.randn_like(parameter))
    return other


def grown(old: Lm, engine: Lm, prompts: list[list[int]], smallest: float, most: int = 10**6) -> AnswerTree:
    @torch.no_grad()
    def evaluate(prefixes: list[list[int]]) -> Distributions:
        of_old, of_engine = (next_log_probs(lm, prefixes, 1.0) for lm in (old, engine))
        return Distributions(of_old, of_engine, of_engine)

    tree, experts = grow(prompts, evaluate, eos_ids=[EOS_ID], max_tokens=LONGEST, smallest=smallest, most_nodes=most)
    assert experts == []
    return tree


def prefixes_of(tree: AnswerTree, prompts: list[list[int]]) -> list[list[int]]:
    """Return the ids before each node."""
    before: list[list[int]] = []
    parents, tokens = tree.parents.tolist(), tree.tokens.tolist()
    for prompt, parent in zip(tree.prompts.tolist(), parents, strict=True):
        before.append(prompts[prompt] if parent < 0 else [*before[parent], tokens[parent]])
    return before


def plain(lm: Lm, prefix: list[int], temperature: float = 1.0) -> Tensor:
    return (lm(torch.tensor([prefix])).logits[0, -1] / temperature).log_softmax(-1)


# --- growing ---


@torch.no_grad()
def all_answers(lm: Lm, prompt: list[int]) -> dict[tuple[int, ...], float]:
    """Every answer there is, with its probability: nothing is left out on the way."""
    answers, going = {}, {(): 1.0}
    for length in range(1, LONGEST + 1):
        before, going = going, {}
        for tokens, chance in before.items():
            following = plain(lm, [*prompt, *tokens]).exp().tolist()
            for token in range(LETTERS):
                ends = token == EOS_ID or length == LONGEST
                (answers if ends else going)[*tokens, token] = chance * following[token]
    return answers


def test_the_tree_has_every_likely_answer_and_no_other(tiny_model: Path) -> None:
    """Likely under one of the two policies; what is within rounding of the bound may be either way. Two of the prompts
    are there to be grown together with the first one."""
    old = load_lm(tiny_model, CPU)
    engine = disturbed(old)
    got = answers_of(grown(old, engine, PROMPTS, SMALLEST))
    ids = got.batch.tensors()["response_ids"]
    rows = (got.prompts == 0).nonzero()[:, 0].tolist()
    answers = {tuple(ids[row][got.batch.response_mask[row]].tolist()): row for row in rows}
    wanted, unsure, of_engine_alone = set(), set(), 0
    of_old, of_engine = (all_answers(lm, PROMPTS[0]) for lm in (old, engine))
    for tokens, p in of_old.items():
        q = of_engine[tokens]
        if max(p, q) > SMALLEST:
            wanted.add(tokens)
            of_engine_alone += p <= SMALLEST
        if max(p, q) == pytest.approx(SMALLEST, rel=1e-3):
            unsure.add(tokens)
        elif tokens in answers:
            assert float(got.sampled[answers[tokens]]) == pytest.approx(q, rel=1e-3)
            assert float(got.trained[answers[tokens]]) == pytest.approx(p, rel=1e-3)
    assert set(answers) - unsure == wanted - unsure
    assert len(wanted) > 20
    assert of_engine_alone > 3


def test_what_cannot_be_grown(tiny_model: Path) -> None:
    old = load_lm(tiny_model, CPU)
    with pytest.raises(UsageError, match="needs a token that ends an answer, and this model names none"):
        grow(
            PROMPTS,
            lambda _: Distributions(torch.zeros(0), torch.zeros(0), torch.zeros(0)),
            eos_ids=[],
            max_tokens=3,
            smallest=0.1,
            most_nodes=9,
        )
    with pytest.raises(UsageError, match="to 3 prompts have more than 25 tokens, which is all that fits"):
        grown(old, old, PROMPTS, 0.02, 25)
    with pytest.raises(UsageError, match=r"no answer that is more likely than 0\.9: lower"):
        grown(old, old, PROMPTS, 0.9)
    raw = RolloutConfig(log_probs="raw", trainer_temperature=1.0)
    log_p = torch.randn(2, 5).log_softmax(-1)
    for cut in (replace(raw, top_p=0.9), replace(raw, top_k=3)):
        with pytest.raises(UsageError, match=r"needs --rollout\.log-probs processed, or top_p 1"):
            drawn_from(log_p, cut)
    torch.testing.assert_close(drawn_from(log_p, replace(raw, temperature=0.5)), (2 * log_p).log_softmax(-1))
    assert torch.equal(drawn_from(log_p, RolloutConfig(top_p=0.9)), log_p)


def chosen_by_an_engine(prefix: list[int]) -> Tensor:
    """Two of eight experts in three layers for each token, from what stands before it: (tokens, 3, 2)."""
    rows = []
    for count in range(1, len(prefix) + 1):
        generator = torch.Generator().manual_seed(hash(tuple(prefix[:count])) % 2**31)
        rows.append(torch.rand(3, 8, generator=generator).argsort(-1)[:, :2])
    return torch.stack(rows)


def test_a_mixture_is_scored_with_the_engines_experts(tiny_model: Path) -> None:
    """Experts at random, which the trainer would not choose: without them the log-probs are others. The scores of all
    nodes are those of a pass for each node alone."""
    torch.manual_seed(0)
    lm = new_moe_lm(LETTERS)
    with torch.no_grad():
        for parameter in lm.parameters():
            parameter.mul_(4)  # a fresh one hardly tells its tokens apart

    @torch.no_grad()
    def evaluate(prefixes: list[list[int]]) -> Distributions:
        experts = [chosen_by_an_engine(prefix) for prefix in prefixes]
        log_p = next_log_probs(lm, prefixes, 1.0, experts)
        return Distributions(log_p, log_p, log_p, experts)

    tree, experts = grow(PROMPTS, evaluate, eos_ids=[EOS_ID], max_tokens=3, smallest=0.02, most_nodes=1000)
    before, answers = prefixes_of(tree, PROMPTS), answers_of(tree)
    assert [x.tolist() for x in experts] == [chosen_by_an_engine(prefix).tolist() for prefix in before]
    worker = SimpleNamespace(task=TASKS["addition"], tokenizer=load_tokenizer(tiny_model), eos_ids=[EOS_ID])
    session: Any = SimpleNamespace(worker=worker, ranks=SimpleNamespace(device=CPU))
    batch = _as_sampled(session, answers, [Example("1+1=", "2")] * 3, PROMPTS, experts)
    first, scored, directions = _first_uses(answers, len(tree.tokens)), scored_copy(lm), draw_directions(lm, 3, 3)
    config: Any = SimpleNamespace(rollout=SimpleNamespace(router_replay=True, scored_temperature=0.7))
    got = token_scores(scored, directions, batch, first, config)
    nodes = answers.nodes[first[answers.batch.response_mask]].tolist()
    assert sorted(nodes) == list(range(len(tree.tokens)))
    for node, along in zip(nodes, got, strict=True):
        with replayed(scored, experts[node][None], torch.ones(1, len(before[node]), dtype=torch.bool)):
            _, expected = scores_of(
                scored, directions, lambda node=node: [plain(scored, before[node], 0.7)[tree.tokens[node], None]]
            )
        torch.testing.assert_close(along, expected[0, 0], rtol=2e-3, atol=1e-3 * float(got.abs().max()))
    assert (plain(lm, PROMPTS[0])[tree.tokens[0]] - tree.rollout_log_probs[0]).abs() > 1e-3
    worker.task = replace(worker.task, reward=lambda *_: 1 / 0)
    with pytest.raises(UsageError, match="reward function raised on a likely answer, or returned None for it"):
        _as_sampled(session, answers, [Example("1+1=", "2")] * 3, PROMPTS, experts)


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
    scaled = [x / math.sqrt(v) for x, v in zip(centred, [0.19] * 3 + [0.0756] * 3, strict=True)]
    for config, expected in (
        (AdvantageConfig(estimator="rloo"), centred),
        (AdvantageConfig(estimator="grpo", norm_by_std=False), centred),
        (AdvantageConfig(estimator="grpo"), scaled),
    ):
        got = expected_advantages(batch, probability, config)
        assert got[:, 0].tolist() == pytest.approx(expected, rel=1e-4)
        assert torch.equal(got, torch.where(batch.response_mask, got[:, :1], 0))


def test_expected_advantages_are_those_of_a_large_sample() -> None:
    """40,000 answers, half to each prompt, through what a run does with them: means are known to 0.5/√20,000 = 0.0035,
    and advantages in units of a deviation of a quarter or more, to 0.015."""
    batch, probability = with_rewards()
    generator = torch.Generator().manual_seed(4)
    rows = torch.cat(
        [3 * n + torch.multinomial(probability[3 * n : 3 * n + 3], 20_000, True, generator=generator) for n in (0, 1)]
    )
    for config in (AdvantageConfig(gae_lambda=0.9), AdvantageConfig("rloo"), AdvantageConfig("reinforce_pp")):
        sampled = with_advantages(batch.rows(rows), config)
        advantages = sampled.tensors()["advantages"]
        if not config.grouped:
            advantages = whiten(advantages, sampled.response_mask)
        got = expected_advantages(batch, probability, config)
        for answer in range(6):
            torch.testing.assert_close(got[answer], advantages[rows == answer].mean(0), rtol=0, atol=0.03)
        assert got.abs().max() > 0.3


# --- runs ---

FEW = SketchConfig(every=2, directions=10, places=4, exact_prompts=8, smallest_probability=5e-3)


@dataclass
class Watched:
    """What `exact_sketch` was given and gave, step by step."""

    sketches: list[ExactSketch] = field(default_factory=list)
    weights: list[dict[str, Tensor]] = field(default_factory=list)
    policies: list[Lm] = field(default_factory=list)
    prompts: list[list[int]] = field(default_factory=list)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    seen, true_sketch = Watched(), loop.exact_sketch
    true_grow = true_sketch.__globals__["grow"]

    def growing(prompts: list[list[int]], *rest: Any, **named: Any) -> Any:
        seen.prompts = prompts
        return true_grow(prompts, *rest, **named)

    def exact_sketch(session: Any, weights: list[tuple[str, Tensor]]) -> ExactSketch:
        seen.weights.append({name: tensor.clone() for name, tensor in weights})
        seen.policies.append(scored_copy(session.policy.lm))
        seen.sketches.append(true_sketch(session, weights))
        return seen.sketches[-1]

    monkeypatch.setitem(true_sketch.__globals__, "grow", growing)
    monkeypatch.setattr(loop, "exact_sketch", exact_sketch)
    return seen


@torch.no_grad()
def check_log_probs(seen: Watched, lm: Lm, temperature: float, which: str) -> None:
    """Of every node of the last sketch, against one plain pass of this model for each."""
    tree = seen.sketches[-1].tree
    for before, token, value in zip(prefixes_of(tree, seen.prompts), tree.tokens, getattr(tree, which), strict=True):
        assert float(value) == pytest.approx(float(plain(lm, before, temperature)[token]), abs=2e-4), which


AHEAD = RolloutConfig(engine="transformers", dtype="float32", staleness=2, asynchronous=True)


def test_a_run_ahead_is_recorded_and_read_back(tiny_model: Path, local_runs: Path, watched: Watched) -> None:
    """The engine's numbers are of the weights that sampled; those of the trainer have moved on. The run is the same as
    without sketches. Scores in the file are off by at most half a unit, a 15th of the largest of their row, which is
    rounded by 1/512 at most; log-probs by nothing."""
    fast = OptimConfig(learning_rate=0.02, final_learning_rate=0.02)
    config = tiny_config(tiny_model, steps=4, rollout=AHEAD, sketch=replace(FEW, smallest_probability=0.02), optim=fast)
    run = loop.train(config)
    assert verify(run).problems == []
    lm = load_lm(tiny_model, CPU)
    lm.load_state_dict(watched.weights[-1], strict=False)
    lm.tie_weights()
    check_log_probs(watched, lm, 1.0, "rollout_log_probs")
    check_log_probs(watched, watched.policies[-1], 1.0, "old_log_probs")
    before, sketch, sampled = watched.sketches[-1], read_gradients(run, 4)[1], read_sketch(run, 4)
    assert isinstance(sketch, ExactSketch)
    assert (before.tree.old_log_probs - before.tree.rollout_log_probs).abs().max() > 0.01
    assert sampled.next_tokens is not None
    assert sampled.next_tokens.rollout_log_probs is not None
    assert (sampled.next_tokens.rollout_log_probs - sampled.next_tokens.log_probs).abs().max() > 0.01
    assert read_tensors(sketch_path(run, 4))[0]["exact_scores"].dtype == torch.int8
    half = before.scores.abs().amax(-1, keepdim=True) / 15 / 2
    assert ((sketch.scores - before.scores).abs() <= half * (1 + 2 / 512)).all()
    assert sketch.scores.abs().max() > 0
    for name in ("old_log_probs", "rollout_log_probs", "sampled_log_probs", "tokens", "parents", "prompts"):
        assert torch.equal(getattr(sketch.tree, name), getattr(before.tree, name).to(getattr(sketch.tree, name)))
    torch.testing.assert_close(sketch.advantages, before.advantages, rtol=1e-3, atol=1e-3)
    assert sketch.answers.prompt_count == 8
    assert 0 < sketch.answers.coverage["old"] < 1
    assert (sketch.task_prompts, sketch.finite_population_factor) == (None, 1)
    assert (sketch.weights_hash, sketch.directions_hash) == (sampled.weights_hash, sampled.directions_hash)
    without = loop.train(replace(config, run="without", sketch=SketchConfig()))
    assert outcome(run)[0] == outcome(without)[0]


def test_a_run_on_few_prompts_has_them_all(tiny_model: Path, local_runs: Path) -> None:
    """Two steps of four prompts go through them once."""
    run = loop.train(tiny_config(tiny_model, sketch=FEW, train_prompts=8))
    batch, sketch = read_gradients(run, 2)
    assert isinstance(sketch, ExactSketch)
    assert (sketch.task_prompts, sketch.finite_population_factor, sketch.answers.prompt_count) == (8, 0, 8)
    assert 0 <= report(batch, sketch, preset("disabled")).relative_bias.value < 1e-3  # an engine in float32
    ids = [runs.read_step(run, step).batch.tensors()["prompt_ids"] for step in (1, 2)]
    assert len({tuple(row) for of_step in ids for row in of_step.tolist()}) == 8


def test_raw_log_probs_are_not_what_is_drawn_from(tiny_model: Path, local_runs: Path, watched: Watched) -> None:
    """The engine draws at temperature 0.7 and reports at 1."""
    raw = RolloutConfig(
        engine="transformers", dtype="float32", temperature=0.7, log_probs="raw", trainer_temperature=1.0
    )
    run = loop.train(tiny_config(tiny_model, rollout=raw, sketch=FEW))
    check_log_probs(watched, watched.policies[0], 1.0, "rollout_log_probs")
    check_log_probs(watched, watched.policies[0], 0.7, "sampled_log_probs")
    assert "tree_sampled_log_probs" in read_tensors(sketch_path(run, 2))[0]


def test_what_ends_a_run(tiny_model: Path, local_runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"sketch.exact_prompts is 8, but the task has only 7 prompts"):
        loop.train(tiny_config(tiny_model, sketch=FEW, train_prompts=7))
    monkeypatch.setattr(loop, "start_ranks", lambda: replace(loop.Ranks(0, 2, 0, CPU)))
    monkeypatch.setattr(loop, "stop_ranks", lambda ranks: None)
    with pytest.raises(UsageError, match="sketches are made by one process"):
        loop.train(tiny_config(tiny_model, sketch=FEW, run="ranks"))
