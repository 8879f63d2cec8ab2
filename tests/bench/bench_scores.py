"""`make bench ARGS=scores`: what the sketch of a real model takes, and how often intervals from sketches are right.

Time and memory are of SmolLM2-135M in float32: answers of 24 tokens after prompts of 36, random tokens, in 512
directions. The first answers are measured and 64 of them computed. Coverage is of the task in
`support/sketch_coverage.py`, over 200 draws of answers and directions.
"""

import itertools
import json
import resource
import time
from collections import Counter

import torch
from sketch_coverage import contains, intervals, task

from rlcorr.train.config.rollout import RolloutConfig
from rlcorr.train.config.training import TrainConfig
from rlcorr.train.inputs import smollm2
from rlcorr.train.learner.policy import load_lm
from rlcorr.train.sketches.sampled import token_scores
from rlcorr.train.sketches.token_scores import draw_directions, scored_copy
from rlcorr.types import TokenBatch

ANSWERS, MEASURED, PROMPT, TOKENS, DIRECTIONS = 64, 8, 36, 24, 512
GAPS, DRAWS, SAMPLED, REFERENCES = (0.01, 0.03, 0.1), 200, 1024, (0, 2048)


def of_a_real_model() -> None:
    lm = scored_copy(load_lm(smollm2.fetched(), torch.device("cpu")))
    wall, cpu = time.perf_counter(), time.process_time()
    directions = draw_directions(lm, 0, DIRECTIONS)
    print(f"drawing {DIRECTIONS} directions: {time.perf_counter() - wall:.0f} s", flush=True)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(10, lm.config.vocab_size, (MEASURED, PROMPT + TOKENS), generator=generator)
    mask = torch.ones(MEASURED, TOKENS, dtype=torch.bool)
    batch = TokenBatch(
        response_mask=mask, rollout_log_probs=torch.zeros(mask.shape), prompt_ids=ids[:, :PROMPT],
        prompt_mask=torch.ones(MEASURED, PROMPT, dtype=torch.bool), response_ids=ids[:, PROMPT:],
    )  # fmt: skip
    wall, cpu = time.perf_counter(), time.process_time()
    config = TrainConfig(rollout=RolloutConfig(engine="transformers", dtype="float32"))
    token_scores(lm, directions, batch, batch.response_mask, config)
    wall, cpu = ((now - then) * ANSWERS / MEASURED for now, then in (
        (time.perf_counter(), wall), (time.process_time(), cpu)
    ))  # fmt: skip
    memory, threads = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, torch.get_num_threads()
    print(
        f"{ANSWERS} answers × {TOKENS} tokens from {MEASURED} of them, {threads} threads: {wall:.0f} s, "
        f"{cpu:.0f} s of processors, {memory:.1f} GiB"
    )


def of_intervals() -> None:
    for gap, reference in itertools.product(GAPS, REFERENCES):
        tiny, right, whole = task(gap), Counter[str](), Counter[str]()
        for seed in range(DRAWS):
            for name, interval, truth in intervals(tiny, seed, SAMPLED, DIRECTIONS, reference):
                right[name] += contains(interval, truth)
                whole[name] += 1
        raw = {name: f"{right[name]}/{count}" for name, count in whole.items()}
        share, about = right.total() / whole.total(), f"gap {gap}, {reference} reference answers"
        print(f"{about}: {share:.3f} of {whole.total()} intervals; {json.dumps(raw, ensure_ascii=False)}", flush=True)


def main() -> None:
    of_intervals()
    of_a_real_model()


if __name__ == "__main__":
    main()
