"""`make bench ARGS=shared`: forward and backward passes of one thread, with and without a common prompt of the answers.

Random answers of one length to random prompts of another, eight to each, on SmolLM2-135M in bfloat16 and on the warm
start of 1.3 million parameters in float32. Nine minutes.
"""

import time
from statistics import median

import torch
from processes import ROOT

from rlcorr.train.inputs import smollm2
from rlcorr.train.learner.microbatch import lengths_of, plan_microbatches, slice_rows
from rlcorr.train.learner.policy import Policy, load_lm
from rlcorr.train.learner.shared_prompts import prompts_of
from rlcorr.train.rollout.engine import Samples, to_batch
from rlcorr.types import TokenBatch

CPU = torch.device("cpu")
PROMPTS, SAMPLES, REPEATS, BUDGET = 4, 8, 3, 768
SHAPES = ((36, 20), (60, 60), (36, 60), (36, 120))
"""Tokens of a prompt, and of an answer."""


def bench_shared() -> None:
    torch.set_num_threads(1)
    policies = {
        "SmolLM2-135M, bfloat16": Policy(load_lm(smollm2.fetched(), CPU), False, "bfloat16"),
        "warm start, float32": Policy(load_lm(ROOT / "runs" / "warm_start" / "checkpoint", CPU), False),
    }
    print("| model | prompt, answer | tokens left out | seconds alone | seconds with a common prompt | times as fast |")
    print("|---|---|---|---|---|---|")
    for name, policy in policies.items():
        for prompt, answer in SHAPES:
            batch = random_batch(prompt, answer, policy.lm.config.vocab_size)
            alone, shared = (median(seconds(policy, batch, share) for _ in range(REPEATS)) for share in (False, True))
            left_out = (1 - 1 / SAMPLES) * prompt / (prompt + answer)
            cells = f"{prompt}, {answer} | {left_out:.0%} | {alone:.3g} | {shared:.3g} | {alone / shared:.2f}"
            print(f"| {name} | {cells} |", flush=True)


def random_batch(prompt: int, answer: int, vocabulary: int) -> TokenBatch:
    chance = torch.Generator().manual_seed(0)
    prompts = torch.randint(3, vocabulary, (PROMPTS, prompt), generator=chance).repeat_interleave(SAMPLES, 0).tolist()
    answers = torch.randint(3, vocabulary, (PROMPTS * SAMPLES, answer), generator=chance).tolist()
    return to_batch(prompts, Samples(answers, [[0.0] * answer] * len(answers)), CPU)


def seconds(policy: Policy, batch: TokenBatch, share: bool) -> float:
    began = time.perf_counter()
    rows = range(len(batch.response_mask))
    for part in plan_microbatches(rows, lengths_of(batch), BUDGET, 1, prompts_of(batch) if share else None)[0]:
        policy(slice_rows(batch, part), 1.0, share_prompts=share).log_probs.sum().backward()
        policy.zero_grad()
    return time.perf_counter() - began
