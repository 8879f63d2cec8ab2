"""Which setting makes how much of the gap: a model's own answers, measured with one setting changed at a time.

The engine that samples computes in float32 and so does the trainer, except for what a setting changes. Every engine
runs in a process of its own, which gives its memory back.
"""

import math
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import torch
from torch import Tensor

from rlcorr.analysis.resampling import Estimate, resampled, with_interval
from rlcorr.errors import UsageError
from rlcorr.masked import masked_sum
from rlcorr.ratios import k3, log_ratio
from rlcorr.train.config.learning import Precision
from rlcorr.train.config.rollout import RolloutConfig
from rlcorr.train.learner.policy import Policy, engine_weights, load_lm
from rlcorr.train.learner.ranks import ALONE
from rlcorr.train.learner.score import over_microbatches
from rlcorr.train.rollout.engine import Samples, to_batch
from rlcorr.train.rollout.start import start_engine
from rlcorr.types import TokenBatch

MICROBATCH_TOKENS = 2048
"""Tokens, padding included, that are scored together; also the many answers that are compared with one at a time."""
ONE_ANSWER = 1
"""A budget of tokens so small that every answer is scored alone."""
TOP_P = 0.9


@dataclass(frozen=True)
class Request:
    """Answers to ask of a model: each prompt's ids, how many answers, and how long they may be."""

    model: Path
    prompts: list[list[int]]
    samples: int
    max_tokens: int
    eos_ids: list[int]
    engine: RolloutConfig  # its other settings, such as the size of the cache
    log: Path


@dataclass(frozen=True)
class Cause:
    """One changed setting, and the gap that it makes: d = log π_trainer − log π_engine of its tokens."""

    name: str
    tokens: int = 0
    k3: Estimate | None = None  # with a 95 % interval over prompts
    abs_log_ratio: float = math.nan
    p99: float = math.nan  # of |d|
    outside: float = math.nan  # share of the ratios outside 0.9 to 1.1
    mean_ratio: float = math.nan
    why_not: str = ""
    """Why it could not be measured; empty if it was."""


def engine_settings(request: Request) -> dict[str, RolloutConfig]:
    """Return name → the settings of each engine that samples. The first differs in nothing from the trainer."""
    exact = replace(request.engine, dtype="float32", kv_cache_dtype="auto", weights="none", top_p=1.0)
    settings = {"nothing: float32 on both sides": exact}
    settings["engine in bfloat16"] = replace(exact, dtype="bfloat16")
    if torch.cuda.is_available():  # on a CPU it is ten times slower than bfloat16
        settings["engine in float16"] = replace(exact, dtype="float16")
    settings["engine in bfloat16, KV cache in e4m3"] = replace(exact, dtype="bfloat16", kv_cache_dtype="fp8")
    settings["engine's weights in int8"] = replace(exact, weights="int8")
    settings["engine's weights in fp8"] = replace(exact, weights="fp8_e4m3")
    settings[f"top-p {TOP_P:g} in the engine only"] = replace(exact, top_p=TOP_P)
    return settings


def attribute(request: Request, device: torch.device) -> Iterator[Cause]:
    """Measure one setting after the other, and yield each as soon as it is measured.

    An engine that cannot start with a setting gives a cause with the reason. Raises `UsageError` if the first, which
    the trainer's settings are measured with, cannot start.
    """
    policy = Policy(load_lm(request.model, device), False).to(device)
    rows = [ids for ids in request.prompts for _ in range(request.samples)]
    exact: TokenBatch | None = None
    for name, settings in engine_settings(request).items():
        try:
            batch = to_batch(rows, _sample(request, settings), device)
        except UsageError as error:
            if exact is None:
                raise
            yield Cause(name, why_not=str(error))
            continue
        exact = batch if exact is None else exact
        yield measured(name, batch, scored(policy, batch, "float32", MICROBATCH_TOKENS), request.samples)
    assert exact is not None
    many = scored(policy, exact, "bfloat16", MICROBATCH_TOKENS)
    yield measured("trainer in bfloat16", exact, many, request.samples)
    alone = scored(policy, exact, "bfloat16", ONE_ANSWER)
    name = "trainer in bfloat16: many answers at a time against one"
    yield measured(name, exact.replace(rollout_log_probs=alone), many, request.samples)


def _sample(request: Request, settings: RolloutConfig) -> Samples:
    """Start the engine in a process of its own, and return its answers. Raises `UsageError` if it cannot start."""
    with ProcessPoolExecutor(1, get_context("spawn"), _write_to, (request.log,)) as process:
        try:
            return process.submit(sample, request, settings).result()
        except BrokenProcessPool as error:
            raise UsageError(f"the engine's process has ended; {request.log} may say why.") from error


def _write_to(log: Path) -> None:
    """Send what this process prints, and what its libraries print, to a file."""
    with log.open("ab") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)


def sample(request: Request, settings: RolloutConfig) -> Samples:
    """Start an engine with these settings, and return its answers, those to one prompt next to each other."""
    engine = start_engine(settings, request.model, ALONE, request.eos_ids, request.log)
    if settings.weights != "none":  # weights are rounded when they are sent
        policy = Policy(load_lm(request.model, torch.device("cpu")), False)
        engine.sync(engine_weights(policy.state_dict(), policy.lm))
    return engine.generate(
        request.prompts, n=request.samples, max_tokens=request.max_tokens, sampling=settings.sampling, seed=0
    )


@torch.no_grad()
def scored(policy: Policy, batch: TokenBatch, precision: Precision, budget: int) -> Tensor:
    """Return the trainer's log-probs in this precision, with at most `budget` tokens in one forward pass."""
    policy.precision = precision
    forward = lambda part: {"scores": policy(part, 1.0).log_probs}  # noqa: E731
    return over_microbatches(batch, forward, budget, ALONE)["scores"]


def measured(name: str, batch: TokenBatch, old_log_probs: Tensor, samples: int) -> Cause:
    """Return the gap between the batch's log-probs and the trainer's. Each prompt has `samples` rows."""
    mask = batch.response_mask
    d = log_ratio(old_log_probs, batch.rollout_log_probs, mask).double()
    sums = torch.stack([masked_sum(k3(d), mask, -1), mask.sum(-1).double()], -1)
    total = resampled(sums.view(-1, samples, 2).sum(1))
    flat = d[mask]
    return Cause(
        name,
        int(mask.sum()),
        with_interval(total[:, 0] / total[:, 1]),
        float(flat.abs().mean()),
        float(flat.abs().quantile(0.99)),
        float((flat.expm1().abs() > 0.1).double().mean()),
        float(flat.exp().mean()),
    )


def prompts_of(rows: Sequence[list[int]], count: int) -> list[list[int]]:
    """Return the first different prompts. Raises `UsageError` if there are fewer than two."""
    different = [list(ids) for ids in dict.fromkeys(map(tuple, rows))][:count]
    if len(different) < 2:
        raise UsageError("intervals are over prompts: give at least two different ones.")
    return different
