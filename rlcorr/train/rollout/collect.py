"""Make a batch from prompts: sample answers, judge them, pad them."""

import math
import time
from dataclasses import dataclass, replace

import torch
from transformers import PreTrainedTokenizerFast

from rlcorr.train.config.rollout import GREEDY, Sampling
from rlcorr.train.inputs.tasks import Example, Task, prompt_text
from rlcorr.train.inputs.tokenizer import decode, encode
from rlcorr.train.rollout.engine import RolloutEngine, Samples, joined, right_padded, to_batch
from rlcorr.types import TokenBatch


@dataclass(frozen=True)
class Collected:
    """Samples of one rank before they are padded into a batch. Plain values, so that ranks can exchange them."""

    prompt_ids: list[list[int]]  # one per response
    samples: Samples
    prompts: list[str]
    responses: list[str]
    rewards: list[float | None]  # NaN if the reward function raised, None if it could not judge
    groups: list[int]
    truncated: list[bool]  # the response hit a length limit: its last token is not an ending one
    version: int
    seconds: dict[str, float]


@dataclass(frozen=True)
class RolloutWorker:
    """An engine, with the task and the tokenizer that turn its tokens into judged answers."""

    engine: RolloutEngine
    tokenizer: PreTrainedTokenizerFast
    task: Task
    eos_ids: list[int]  # ids that end a response


def encode_example(tokenizer: PreTrainedTokenizerFast, task: Task, example: Example) -> list[int]:
    """Return the ids of a prompt with the instruction and the system message of its task."""
    return encode(tokenizer, example.prompt, task.instruction, task.system_message)


def collect(
    worker: RolloutWorker,
    examples: list[Example],
    *,
    samples: int,
    sampling: Sampling,
    version: int,
    seed: int,
    first_group: int = 0,
) -> Collected:
    """Sample and judge `samples` responses to each example, in the order of the examples; each example is a group."""
    task = worker.task
    ids = [encode_example(worker.tokenizer, task, example) for example in examples]
    start = time.perf_counter()
    sampled = worker.engine.generate(ids, n=samples, max_tokens=task.max_tokens, sampling=sampling, seed=seed)
    seconds = {"generate": time.perf_counter() - start}
    return judged(worker, examples, ids, sampled, version=version, first_group=first_group, seconds=seconds)


def judged(
    worker: RolloutWorker,
    examples: list[Example],
    ids: list[list[int]],
    sampled: Samples,
    *,
    version: int,
    first_group: int,
    seconds: dict[str, float],
) -> Collected:
    """Judge the responses to each example, whose prompt has these ids; all examples have as many responses."""
    task, samples = worker.task, len(sampled.response_ids) // max(len(examples), 1)
    groups = [group for group in range(len(examples)) for _ in range(samples)]
    responses = [decode(worker.tokenizer, row, worker.eos_ids) for row in sampled.response_ids]
    return Collected(
        prompt_ids=[ids[group] for group in groups],
        samples=sampled,
        prompts=[prompt_text(examples[group].prompt) for group in groups],
        responses=responses,
        rewards=[judge(task, examples[group], text) for group, text in zip(groups, responses, strict=True)],
        groups=[first_group + group for group in groups],
        truncated=[bool(row) and row[-1] not in worker.eos_ids for row in sampled.response_ids],
        version=version,
        seconds=seconds,
    )


def judge(task: Task, example: Example, response: str) -> float | None:
    """Return the reward of a response, or None if the reward function cannot judge it.

    Return NaN if the function raises an error: the step is then skipped and counted, and the run goes on.
    """
    try:
        reward = task.reward(example, response)
        return None if reward is None else float(reward)
    except Exception as error:  # user code: no error in it may end the training run
        print(f"the reward function raised {type(error).__name__}: {error}", flush=True)
        return math.nan


LISTS = ("prompt_ids", "prompts", "responses", "rewards", "groups", "truncated")
"""Fields of `Collected` that have one item per response."""


def merge_ranks(parts: list[Collected]) -> Collected:
    """Concatenate the samples of all ranks, in rank order."""
    lists = {name: [item for part in parts for item in getattr(part, name)] for name in LISTS}
    return replace(parts[0], samples=joined([part.samples for part in parts]), **lists)


def scored(collected: Collected) -> Collected:
    """Return only the samples that have a reward; the others take no part in groups and losses."""
    rows = [row for row, reward in enumerate(collected.rewards) if reward is not None]
    lists = {name: [getattr(collected, name)[row] for row in rows] for name in LISTS}
    return replace(collected, samples=collected.samples.rows(rows), **lists)


def batch_of(collected: Collected, device: torch.device) -> TokenBatch:
    """Return padded tensors: ids, masks, rollout log-probs, rewards (NaN for None), group ids and policy versions."""
    rewards = [math.nan if reward is None else reward for reward in collected.rewards]
    versions = torch.full((len(collected.groups),), collected.version, device=device)
    if collected.samples.versions is not None:
        versions = right_padded(collected.samples.versions, torch.int64, device)[0]
    return to_batch(collected.prompt_ids, collected.samples, device).replace(
        rewards=torch.tensor(rewards, dtype=torch.float32, device=device),
        group_ids=torch.tensor(collected.groups, device=device),
        policy_versions=versions,
    )


def greedy(worker: RolloutWorker, examples: list[Example]) -> Collected:
    """Sample one greedy answer to each example."""
    return collect(worker, examples, samples=1, sampling=GREEDY, version=0, seed=0)


def greedy_accuracy(collected: Collected) -> float:
    """Return the share of the answers with a reward of 1, which are complete. An answer without a reward is not."""
    return sum(reward == 1 for reward in collected.rewards) / max(len(collected.rewards), 1)
