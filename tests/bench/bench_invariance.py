"""`make bench ARGS=invariance`: whether SmolLM2's engine computes the same numbers alone and among 64 prompts.

Greedy answers to 64 prompts, once all together and once one after the other, in bfloat16 and in float32; then the
trainer's scores of the same answers, 8 rows and 1 row at a time. A log-prob counts up to the first token in which the
two answers differ, because after it the two computations have different inputs.

On a GPU, `VLLM_BATCH_INVARIANT=1` in front of the command selects vLLM's batch-invariant kernels.
"""

import itertools
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from rlcorr.train.config.learning import Precision
from rlcorr.train.config.rollout import GREEDY, Dtype, RolloutConfig
from rlcorr.train.inputs import smollm2
from rlcorr.train.inputs.tasks import examples, get_task
from rlcorr.train.inputs.tokenizer import encode, eos_ids, load_tokenizer
from rlcorr.train.learner.policy import Policy, load_lm
from rlcorr.train.learner.ranks import ALONE
from rlcorr.train.rollout.engine import RolloutEngine, Samples, joined, to_batch
from rlcorr.train.rollout.start import start_engine

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
PROMPTS = 64
DTYPES: tuple[Dtype, ...] = ("bfloat16", "float32")
PRECISIONS: dict[Dtype, Precision] = {"bfloat16": "bfloat16", "float32": "float32"}


def main() -> None:
    model, task = smollm2.fetched(), get_task("sum_questions")
    tokenizer = load_tokenizer(model)
    drawn = itertools.islice(examples(task, 0), PROMPTS)
    prompts = [encode(tokenizer, example.prompt, task.instruction, smollm2.SYSTEM) for example in drawn]
    policy, engines = Policy(load_lm(model, DEVICE), False), []  # kept: an engine that dies takes vLLM's state along
    print(f"{DEVICE.type}, VLLM_BATCH_INVARIANT={os.environ.get('VLLM_BATCH_INVARIANT', '0')}")
    print("| compared | the same to the last bit | mean abs. difference | largest | answers that differ | seconds |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for dtype in DTYPES:
            config = RolloutConfig(engine="vllm", dtype=dtype)
            engines.append(start_engine(config, model, ALONE, eos_ids(model, tokenizer), Path(folder) / "engine.log"))
            together, seconds = answers(engines[-1], [prompts])
            again, _ = answers(engines[-1], [prompts])
            alone, seconds_alone = answers(engines[-1], [[prompt] for prompt in prompts])
            show(f"engine in {dtype}, 64 prompts: twice", together, again, f"{seconds:.1f}")
            show(f"engine in {dtype}, 64 prompts, 1 prompt", together, alone, f"{seconds:.1f}, {seconds_alone:.1f}")
            eight, one = (scored(policy, prompts, together, PRECISIONS[dtype], rows) for rows in (8, 1))
            show(f"trainer in {dtype}, 8 rows, 1 row", eight, one, "")
            show(f"trainer in {dtype}, 8 rows; engine, 64 prompts", eight, together, "")


def answers(engine: RolloutEngine, groups: list[list[list[int]]]) -> tuple[Samples, float]:
    """Return the greedy answers to all groups, one group after the other, and the seconds that they took."""
    limit = get_task("sum_questions").max_tokens
    start = time.perf_counter()
    parts = [engine.generate(group, n=1, max_tokens=limit, sampling=GREEDY, seed=0) for group in groups]
    return joined(parts), time.perf_counter() - start


@torch.no_grad()
def scored(policy: Policy, prompts: list[list[int]], samples: Samples, precision: Precision, rows: int) -> Samples:
    """Return the same answers with the trainer's log-probs, computed this many rows at a time."""
    policy.precision = precision
    batch = to_batch(prompts, samples, DEVICE)
    parts = [slice(at, at + rows) for at in range(0, PROMPTS, rows)]
    scores = torch.cat([policy(batch.rows(part), 1.0).log_probs for part in parts])
    return Samples(
        samples.response_ids, [row[mask].tolist() for row, mask in zip(scores, batch.response_mask, strict=True)]
    )


def show(label: str, first: Samples, second: Samples, seconds: str) -> None:
    differences = torch.tensor([a - b for a, b in common(first, second)], dtype=torch.float64)
    pairs = zip(first.response_ids, second.response_ids, strict=True)
    changed = sum(a != b for a, b in pairs)
    same = f"{100 * float((differences == 0).double().mean()):.1f} % of {len(differences)}"
    sizes = f"{float(differences.abs().mean()):.2e} | {float(differences.abs().max()):.2e}"
    print(f"| {label} | {same} | {sizes} | {changed} | {seconds} |", flush=True)


def common(first: Samples, second: Samples) -> Iterator[tuple[float, float]]:
    """Yield both log-probs of each token before the first one in which two answers differ."""
    rows = zip(first.response_ids, second.response_ids, first.log_probs, second.log_probs, strict=True)
    for ids, others, log_probs, other_log_probs in rows:
        for one, other, a, b in zip(ids, others, log_probs, other_log_probs, strict=False):
            if one != other:
                break
            yield a, b
