"""How often intervals from sampled sketches contain the truth, on a transformer whose answers can all be listed.

The truth comes from an exact sketch whose scores are whole gradients instead of projections, of all answers to all
prompts of the task. A draw samples answers, draws directions, and reports on them alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from rlcorr.gradients.answers import answers_of
from rlcorr.gradients.bootstrap import Interval
from rlcorr.gradients.report import GradientReport, compare
from rlcorr.gradients.sketch import ExactSketch, Reference, SampledSketch
from rlcorr.presets import preset
from rlcorr.train.sketches.answer_tree import Distributions, grow
from rlcorr.train.sketches.sampled import next_log_probs
from rlcorr.train.sketches.token_scores import Directions, draw_directions

NAMES = ("disabled", "decoupled_token_is", "decoupled_geo_rs", "decoupled_token_icepop")
SIZES = (64, 1024)
NUMBERS = ("relative_bias", "cosine", "scale", "variance")
PROMPTS = [[1, 4, 3], [1, 2], [1, 3, 3, 2], [1, 4]]


@dataclass(frozen=True)
class Task:
    """A model, its gradients, and the truth about every preset."""

    lm: Qwen2ForCausalLM
    exact: ExactSketch  # whose scores are whole gradients, (E, parameters)
    truths: list[GradientReport]


def task(gap: float = 0.3) -> Task:
    """A transformer of 1,500 parameters over five tokens. The engine has its weights with relative noise of `gap`."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=5, hidden_size=8, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=16, initializer_range=0.5, tie_word_embeddings=True,
    )  # fmt: skip
    lm, engine = Qwen2ForCausalLM(config).eval(), Qwen2ForCausalLM(config).eval()
    engine.load_state_dict({name: x * (1 + gap * torch.randn_like(x)) for name, x in lm.state_dict().items()})

    @torch.no_grad()
    def evaluate(prefixes: list[list[int]]) -> Distributions:
        old, rollout = (next_log_probs(model, prefixes, 1.0) for model in (lm, engine))
        return Distributions(old, rollout, rollout)

    nodes, _ = grow(PROMPTS, evaluate, eos_ids=[0], max_tokens=3, smallest=1e-12, most_nodes=10**6)
    gradients, prefixes = [], []
    for prompt, parent, token in zip(
        nodes.prompts.tolist(), nodes.parents.tolist(), nodes.tokens.tolist(), strict=True
    ):
        before = PROMPTS[prompt] if parent < 0 else prefixes[parent]
        log_prob = next_log_probs(lm, [before], 1.0)[0, token]
        gradients.append(torch.cat([g.flatten() for g in torch.autograd.grad(log_prob, list(lm.parameters()))]))
        prefixes.append([*before, token])
    bare = ExactSketch(nodes, torch.zeros(0), torch.stack(gradients), task_prompts=len(PROMPTS))
    mask = answers_of(nodes).batch.response_mask
    generator = torch.Generator().manual_seed(1)
    advantages = torch.randn(len(mask), 1, generator=generator).expand_as(mask)[mask]
    exact = replace(bare, advantages=advantages)
    truths = compare(exact.answers.batch, exact, list(map(preset, NAMES)), batch_sizes=SIZES, replicates=1).reports
    return Task(lm, exact, truths)


def intervals(
    of: Task, seed: int, answers: int, directions: int, reference: int = 0
) -> Iterator[tuple[str, Interval, float]]:
    """Report on new answers in new directions. Yield the name of each number, its interval, and the truth.

    With a `reference`, so many answers of the trained weights are in 256 blocks.
    """
    exact = of.exact
    chances, generator = exact.answers.sampled, torch.Generator().manual_seed(seed)
    rows = torch.multinomial(chances, answers, replacement=True, generator=generator)
    batch, mask = exact.answers.batch, exact.answers.batch.response_mask
    numbers = torch.zeros(mask.shape, dtype=torch.int64).masked_scatter(mask, exact.answers.nodes)
    projected = exact.scores @ matrix_of(draw_directions(of.lm, seed, directions), of.lm)
    sketch = SampledSketch(projected[numbers[rows][mask[rows]]])
    if reference:
        others = torch.multinomial(exact.answers.trained, reference, replacement=True, generator=generator)
        advantages = torch.where(mask, batch.tensors()["advantages"], 0)
        gradients = torch.einsum("at,atk->ak", advantages, projected[numbers])[others]
        lengths = mask.sum(-1).float()[others]
        columns = gradients, gradients / lengths[:, None], lengths, torch.ones_like(lengths)
        sketch = replace(sketch, reference=Reference(*(x.unflatten(0, (256, -1)).sum(1) for x in columns)))
    configs = list(map(preset, NAMES))
    for report, truth, name in zip(
        compare(batch.rows(rows), sketch, configs, batch_sizes=SIZES, seed=seed).reports, of.truths, NAMES, strict=True
    ):
        for number in NUMBERS:
            yield f"{name} {number}", getattr(report, number), getattr(truth, number).value
        for size, eta, exact_eta in zip(SIZES, report.progress, truth.progress, strict=True):
            yield f"{name} η({size})", eta, exact_eta.value


def matrix_of(directions: Directions, lm: Qwen2ForCausalLM) -> Tensor:
    """Return the directions as a matrix, (parameters, K), divided by √K."""
    columns = []
    for name, _ in lm.named_parameters():
        product = directions.signs[name][0]
        for signs in directions.signs[name][1:]:
            product = (product[:, None] * signs).flatten(0, 1)
        columns.append(product)
    return torch.cat(columns) * directions.count**-0.5


def contains(interval: Interval, truth: float) -> bool:
    return interval.low - 1e-4 <= truth <= interval.high + 1e-4
