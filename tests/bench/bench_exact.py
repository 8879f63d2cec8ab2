"""Exact sketches against plain sampling: the same weights, the same prompts, and 20,000 answers of the engine."""

import itertools
from collections.abc import Iterator

import torch
from exact_training import trained
from torch import Tensor

from rlcorr import PRESETS, TokenBatch
from rlcorr.config import LossConfig
from rlcorr.gradients.contributions import contributions
from rlcorr.gradients.sketch import ExactSketch, SampledSketch
from rlcorr.records.recipes import find_recipe
from rlcorr.train.inputs.tasks import examples
from rlcorr.train.inputs.tokenizer import encode
from rlcorr.train.rollout.engine import Samples
from rlcorr.train.session.session import Session
from rlcorr.train.sketches.reference import OTHER_PROMPTS

ANSWERS = 20_000
COMPARED = ("disabled", "decoupled_token_is", "decoupled_k3_rs")


def main() -> None:
    for name in ("kv_fp8", "stale_4"):
        exact, samples = trained(find_recipe(name).options, sampled)
        print(f"{name}: exact against {ANSWERS:,} sampled answers, in standard errors of the sample")
        for line in lines(exact, samples):
            print(f"  {line}", flush=True)


def sampled(session: Session) -> Samples:
    """As many answers to each prompt of the sketch; the engine still has the weights that sampled."""
    config, worker = session.config, session.worker
    count = config.sketch.exact_prompts
    prompts = [
        encode(worker.tokenizer, example.prompt)
        for example in itertools.islice(examples(worker.task, config.seed + OTHER_PROMPTS), count)
    ]

    def generate() -> Samples:
        return worker.engine.generate(
            prompts, n=ANSWERS // count, max_tokens=worker.task.max_tokens, sampling=config.rollout.sampling, seed=7
        )

    return session.queue.run_exclusive(generate)


def lines(exact: ExactSketch, samples: Samples) -> Iterator[str]:
    answers = exact.answers
    rows_of = {key: row for row, key in enumerate(keys_of(answers.batch))}
    per_prompt = len(samples.response_ids) // answers.prompt_count
    asked = [(number // per_prompt, tuple(ids)) for number, ids in enumerate(samples.response_ids)]
    inside = [number for number, key in enumerate(asked) if key in rows_of]
    yield f"answers that the tree leaves out: {1 - len(inside) / len(asked):.2%}; its coverage says {answers.coverage}"
    rows = torch.tensor([rows_of[asked[number]] for number in inside])
    batch = answers.batch.rows(rows)
    reported = batch.rollout_log_probs.clone()
    reported[batch.response_mask] = torch.tensor(
        list(itertools.chain.from_iterable(samples.log_probs[number] for number in inside))
    )
    batch = batch.replace(rollout_log_probs=reported)
    sketch = SampledSketch(exact.scores[nodes_of(exact)[rows][batch.response_mask]])
    for name in COMPARED:
        config = PRESETS[name].config
        (of_sample,) = contributions(batch, sketch, [config], LossConfig())
        (of_all,) = contributions(answers.batch, exact, [config], LossConfig())
        gradient = of_all.u.sum(0) / of_all.n.sum()
        moved = (of_sample.u - of_sample.n[:, None] * gradient) / of_sample.n.sum()
        prompts = batch.tensors()["group_ids"]
        means = torch.zeros(answers.prompt_count, moved.shape[1]).index_add(0, prompts, moved)
        means = means / prompts.bincount(minlength=answers.prompt_count)[:, None]
        noise = (moved - means[prompts]).square().sum()
        apart = (of_sample.u.sum(0) / of_sample.n.sum() - gradient).square().sum()
        error = float((noise / gradient.square().sum()).sqrt())
        yield f"{name:<20} {float((apart / noise).sqrt()):.2f}   (one is {error:.1%} of the gradient)"


def keys_of(batch: TokenBatch) -> Iterator[tuple[int, tuple[int, ...]]]:
    tensors = batch.tensors()
    for prompt, ids, mask in zip(
        tensors["group_ids"].tolist(), tensors["response_ids"], batch.response_mask, strict=True
    ):
        yield prompt, tuple(ids[mask].tolist())


def nodes_of(exact: ExactSketch) -> Tensor:
    """(A, T): the node of each token of each answer; 0 after its end."""
    mask = exact.answers.batch.response_mask
    return torch.zeros(mask.shape, dtype=torch.int64).masked_scatter(mask, exact.answers.nodes)
