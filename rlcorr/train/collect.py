"""From prompts to a batch: sample, judge, pad."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerFast

from rlcorr.train.rollout import RolloutEngine, to_batch
from rlcorr.train.tasks import Example, Task
from rlcorr.train.tokenizer import decode, encode
from rlcorr.types import TokenBatch


@dataclass(frozen=True)
class Collected:
    batch: TokenBatch  # ids, masks, rollout_log_probs, rewards, group_ids, policy_versions
    prompts: list[str]
    responses: list[str]


def collect(
    engine: RolloutEngine,
    tokenizer: PreTrainedTokenizerFast,
    task: Task,
    stream: Iterator[Example],
    *,
    prompts: int,
    samples: int,
    temperature: float,
    version: int,
    device: torch.device,
) -> Collected:
    """`prompts` · `samples` responses, in the order of the prompts; each group of samples shares a group id."""
    drawn = list(itertools.islice(stream, prompts))
    ids = [encode(tokenizer, example.prompt) for example in drawn]
    sampled = engine.generate(ids, n=samples, max_tokens=task.max_tokens, temperature=temperature)
    groups = [group for group in range(prompts) for _ in range(samples)]
    responses = [decode(tokenizer, row) for row in sampled.response_ids]
    rewards = [task.reward(drawn[group], text) for group, text in zip(groups, responses, strict=True)]
    batch = to_batch([ids[group] for group in groups], sampled, device).replace(
        rewards=torch.tensor(rewards, dtype=torch.float32, device=device),
        group_ids=torch.tensor(groups, device=device),
        policy_versions=torch.full((len(groups),), version, device=device),
    )
    return Collected(batch, [drawn[group].prompt for group in groups], responses)


def greedy_accuracy(
    engine: RolloutEngine, tokenizer: PreTrainedTokenizerFast, task: Task, examples: list[Example]
) -> float:
    """Share of the examples that greedy decoding answers completely."""
    ids = [encode(tokenizer, example.prompt) for example in examples]
    sampled = engine.generate(ids, n=1, max_tokens=task.max_tokens, temperature=0.0)
    answers = zip(examples, (decode(tokenizer, row) for row in sampled.response_ids), strict=True)
    return sum(task.reward(example, answer) == 1 for example, answer in answers) / len(examples)
